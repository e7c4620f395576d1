"""How the readings look after normalisation, and which constants would suit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.checks.cells import CellScan, EventReservoir
from xectool.checks.normalizing import NphoMap
from xectool.checks.sums import SensorSums
from xectool.config.normalization import TIME_SCALES_S, NormalizationConfig
from xectool.detector import faces
from xectool.detector.constants import LARGEST_NPHO, LARGEST_TIME_S, UNKNOWN_ABOVE

Array = npt.NDArray[Any]

# Constants that are in use, with the names they go by; the first that fits is proposed.
KNOWN: Final[dict[str, dict[str, object]]] = {
    "current": {
        "npho_scheme": "log1p", "npho_scale": 1000.0, "npho_scale2": 4.08, "time_scale": 1.14e-7, "time_shift": -0.46,
    },
    "legacy": {
        "npho_scheme": "log1p", "npho_scale": 0.58, "npho_scale2": 1.0, "time_scale": 6.5e-8, "time_shift": 0.5,
    },
}  # fmt: skip
_LARGEST: Final = {"npho": LARGEST_NPHO, "time": LARGEST_TIME_S}
HIGHEST_Z: Final = 10.0
SMALLEST_STD: Final = 1e-3
LARGEST_STD: Final = 20.0
_WANTED_MAX: Final = 1.5
_DIGITS: Final = 3
# Fewer readings have no spread worth a word: of a face, of all.
_FEWEST: Final = (1000, 100)


@dataclass(frozen=True)
class RawRow:
    """One line of the table of raw readings; valid ones only, quantiles from the kept events.

    Where most readings are of another unit than a sensor's, all figures are of them, from the kept events.
    """

    feature: str
    min: float
    max: float
    mean: float
    std: float
    p1: float
    p99: float


@dataclass(frozen=True)
class NormalizedRow:
    """One channel after normalisation, over all sensors or one face: valid readings only."""

    channel: str
    face: str
    readings: int
    min: float
    max: float
    mean: float
    std: float


def valid_readings(kept: EventReservoir, settings: NormalizationConfig) -> tuple[Array, Array]:
    """Return photons and times of the kept events, shape (E, S) each, NaN where they are not valid.

    Readings that no sensor delivers are not either, unless most are such: the channel is then in another unit.
    """
    lowest = NphoMap(settings).lowest
    npho, time = kept.npho, kept.time
    measured = (np.abs(npho) <= UNKNOWN_ABOVE) & (npho >= lowest)
    timed = measured & (npho >= settings.npho_threshold) & (np.abs(time) <= UNKNOWN_ABOVE)
    return _delivered("npho", npho, measured), _delivered("time", time, timed)


def _delivered(channel: str, values: Array, valid: npt.NDArray[np.bool_]) -> Array:
    """Return the valid readings, NaN elsewhere; those that no sensor delivers only where they are the most of them."""
    possible = valid & (np.abs(values) <= _LARGEST[channel])
    few = 2 * np.count_nonzero(possible) >= np.count_nonzero(valid)
    return np.where(possible if few else valid, values, np.nan)


def raw_table(cells: CellScan, npho: Array, time: Array) -> list[RawRow]:
    """Return the table of raw readings from the sums over all events and the kept readings."""
    rows = []
    for feature, sums, values in (("npho", cells.npho, npho), ("time", cells.time, time)):
        chosen = values[np.isfinite(values)]
        if not len(chosen):
            continue
        mean, std = float(chosen.mean()), float(chosen.std())
        if not _of_another_unit(feature, sums, chosen):
            count = int(sums.valid.sum())
            mean = float(sums.sum.sum() / count)
            std = float(np.sqrt(max(sums.squares.sum() / count - mean**2, 0.0)))
        p1, p99 = (float(value) for value in np.quantile(chosen, (0.01, 0.99)))
        rows.append(RawRow(feature, *_ends(feature, sums, chosen), mean, std, p1, p99))
    return rows


def _of_another_unit(channel: str, sums: SensorSums, kept: Array) -> bool:
    """Return whether most readings are none that a sensor delivers: the sums then hold what is left of them."""
    return not sums.valid.any() or bool(np.median(np.abs(kept)) > _LARGEST[channel])


def _ends(channel: str, sums: SensorSums, kept: Array, ids: Any = slice(None)) -> tuple[float, float]:
    """Return the smallest and the largest of the valid readings, those of another unit as they are."""
    if _of_another_unit(channel, sums, kept):
        return float(kept.min()), float(kept.max())
    seen = sums.valid[ids] > 0
    return float(sums.lowest[ids][seen].min()), float(sums.highest[ids][seen].max())


def normalized_table(cells: CellScan, npho: Array, time: Array, settings: NormalizationConfig) -> list[NormalizedRow]:
    """Return how each channel looks after normalisation, in all and on each face."""
    convert = NphoMap(settings)
    lowest = {"npho": convert.lowest, "time": -np.inf}
    rows = []
    for channel, values, sums, function in (
        ("npho", npho, cells.npho, convert.npho), ("time", time, cells.time, convert.time)
    ):  # fmt: skip
        for face in ("all", *faces.FACES):
            ids = slice(None) if face == "all" else faces.sensors(face)
            part = values[:, ids]
            chosen = part[part >= lowest[channel]]  # NaN compares false
            if len(chosen) < _FEWEST[face == "all"] or not sums.valid[ids].any():
                continue
            ends = function(np.maximum(_ends(channel, sums, chosen, ids), lowest[channel]))
            normal = function(chosen)
            rows.append(
                NormalizedRow(
                    channel, face, int(sums.valid[ids].sum()), float(ends[0]), float(ends[1]),
                    float(normal.mean()), float(normal.std()),
                )
            )  # fmt: skip
    return rows


def fits(rows: list[NormalizedRow]) -> bool:
    """Say whether every channel ends up in the range a network can use."""
    return all(
        row.max <= HIGHEST_Z and row.min >= -HIGHEST_Z and SMALLEST_STD <= row.std <= LARGEST_STD
        for row in rows
        if row.face == "all"
    )


def suggest(cells: CellScan, npho: Array, time: Array, settings: NormalizationConfig) -> dict[str, object]:
    """Return constants that suit the readings: none where those in use fit, a known set, or new ones of what is off.

    New ones bring the photon number to at most 1.5, and the times to 0 to 1.5, above the sentinel.
    """
    if not np.isfinite(npho).any():
        return {}
    for constants in ({}, *KNOWN.values()):
        trial = settings.model_copy(update=constants)
        if fits(normalized_table(cells, npho, time, trial)) and _is_wide(npho, trial):
            return constants
    rows = normalized_table(cells, npho, time, settings)
    off = {row.channel for row in rows if not fits([row])} | ({"npho"} if not _is_wide(npho, settings) else set())
    known = time[np.isfinite(time)]
    return (_npho_constants(npho) if "npho" in off else {}) | (
        _time_constants(known) if "time" in off and len(known) else {}
    )


def _npho_constants(npho: Array) -> dict[str, object]:
    highest = float(np.nanmax(npho))
    scale = max(_round(float(np.nanquantile(np.abs(npho), 0.9))), 1e-6)
    scale2 = max(_round(float(np.log1p(max(highest, scale) / scale)) / _WANTED_MAX), 0.1)
    return {"npho_scheme": "log1p", "npho_scale": scale, "npho_scale2": scale2}


def _time_constants(known: Array) -> dict[str, object]:
    """Return none where the times spread as no seconds do: they are in another unit, which no constant cures."""
    low, high = np.quantile(known, (0.001, 0.999))
    scale = _round(float(high - low) / _WANTED_MAX)
    if not TIME_SCALES_S[0] <= scale <= TIME_SCALES_S[1]:
        return {}
    return {"time_scale": scale, "time_shift": _round(float(low) / scale)}


def _is_wide(npho: Array, settings: NormalizationConfig) -> bool:
    """Say whether the brightest reading lies above 0.1: a scale in another unit squeezes all readings into nothing."""
    return float(NphoMap(settings).npho(np.array(np.nanmax(npho)))) > 0.1


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
