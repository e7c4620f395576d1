"""Whether the light of events lies where the geometry and their truth say: the inner face sees them, and so do others.

A point that lies further along the beam lights the inner face further along it, and the downstream face more than the
upstream one. Sensors in another order break that, and so do faces that changed places.

Axes: B events, S sensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.detector import constants, faces, geometry

Array = npt.NDArray[Any]
AXES: Final = ("u", "v")
TRUTH_OF_PLACES: Final = {"uvwFI": (0, 1), "angle": (0, 1), "angleVec": (2, 1)}
"""Components of the truth that follow u and v of the light, by task: gammas come from the target, so directions do."""

ENDS: Final = (("us", "ds"), ("bot", "top"))
"""Faces at the low and the high end of u and v."""
LEAST_LIKENESS: Final = 0.3  # correlation over events; 0.8 to 1 with half of them piled up and a third of sensors dead
USUAL_LIKENESS: Final = 0.6  # of few events of a narrow cut with pile-up
LEAST_SPREAD: Final = (
    0.05  # of the share of an end face: light that always comes from one place correlates with nothing
)

LEAST_WIDTHS_CM: Final = (3.0, 12.0)
"""Spread of u and v on the inner face below which the end faces rather follow pile-up than the place: in a beam of 7 cm
in v they agree by 0.3."""

ONE_PLACE: Final = np.array((1e-3, 1e-3, 1e-5, 1e-5))
"""Spread of places, cm, and of shares of light below which events are copies. Rounding leaves 3e-5 and 1e-7; photons of
a lamp that is always the same fluctuate by more: a million of them leave 0.02 cm and 1e-3."""

_DEVIATIONS: Final = 2.5
_OF_FISHER: Final = 3  # his variance is 1 / (n - 3)
_DEVIATIONS_APART: Final = 3.5
FEWEST_LIKE: Final = 16
FEWEST_ENERGIES: Final = 48
ENOUGH_ENERGIES: Final = 192
_CHANCE: Final = 2.0
_EVENTS_OF_DEVIATION: Final = 75
"""Deviations of chance below which ranks of light and energy have nothing in common; fewer where events are few."""
_LEAST_ENERGY_SPREAD: Final = 0.1  # of a beam of one energy the light tells its place, not its energy
_MOST_LIGHT_SPREAD: Final = 1.6  # times that of the energy: beyond it much of the light is that of other gamma rays
_OFTEN: Final = 0.1
_FEWEST_SENSORS: Final = 3


def light_places(npho: Array) -> Array:
    """Return where the light of each event lies, by the inner face and by those at its ends.

    Args:
        npho: Photons, raw, shape (B, S); dead, invalid and negative channels count as dark.

    Returns:
        Shape (B, 4): light-weighted mean u and v of the inner face, cm, by squares, which diffuse light hardly moves;
        then for u and v how much more light the face at the high end has than that at the low end, -1 to 1. NaN where
        a face has no light.
    """
    light = np.where((npho >= 0) & (npho < constants.UNKNOWN_ABOVE), npho, 0.0).astype(np.float32, copy=False)
    squares, (low, high) = np.square(light) @ _inner_weights(), (light @ _end_weights()).T.reshape(2, len(ENDS), -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        places = squares[:, :2] / squares[:, 2:]
        # A face whose voltage is off says nothing.
        shares = np.where((low > 0) & (high > 0), (high - low) / (high + low), np.nan)
    return np.concatenate([places, shares.T], axis=1)


def light_of_one(places: Array) -> str:
    """Return that the light of all events is that of one, whatever its size, or an empty string.

    Args:
        places: As `light_places` returns them, of one file.
    """
    known = places[np.isfinite(places).all(axis=1)]
    if len(known) < FEWEST_LIKE or (known.std(axis=0) > ONE_PLACE).any():
        return ""
    return f"the light of all {len(known)} events looked at that are not dark is that of one event, larger or smaller"


def misplaced(places: Array) -> str:
    """Return in which way the faces disagree about where the light comes from, or an empty string.

    Args:
        places: As `light_places` returns them, of one file.
    """
    for axis, likeness, number in _likenesses(places):
        if likeness < LEAST_LIKENESS and _highest(likeness, number) < USUAL_LIKENESS:
            low, high = ENDS[axis]
            how = "have changed places, or are mirrored" if likeness < -LEAST_LIKENESS else "do not agree"
            return f"{AXES[axis]} by the inner face and by '{low}' and '{high}' {how} (correlation {likeness:.2f})"
    return ""


def doubtful(places: Array) -> bool:
    """Return whether the faces seem to disagree, but so few events may do so by chance."""
    found = [(likeness, _highest(likeness, number)) for _, likeness, number in _likenesses(places)]
    return any(likeness < LEAST_LIKENESS and highest >= USUAL_LIKENESS for likeness, highest in found)


def _likenesses(places: Array) -> Iterator[tuple[int, float, int]]:
    """Yield axis, correlation of the inner face and the ends, and events, where light comes from many places."""
    known = places[np.isfinite(places).all(axis=1)]
    for axis in range(len(AXES)):
        inner, ends = known[:, axis], known[:, 2 + axis]
        if len(known) > _OF_FISHER and ends.std() >= LEAST_SPREAD and inner.std() >= LEAST_WIDTHS_CM[axis]:
            yield axis, float(np.corrcoef(inner, ends)[0, 1]), len(known)


def _highest(likeness: float, number: int) -> float:
    """Return the highest true correlation that so many events may show as this one.

    Source: the variance of the inverse hyperbolic tangent of a correlation, Fisher 1915, doi:10.2307/2331838.
    """
    return float(np.tanh(np.arctanh(np.clip(likeness, -0.999, 0.999)) + _DEVIATIONS / np.sqrt(number - _OF_FISHER)))


def truth_elsewhere(places: Array, truth: Array, task: str = "uvwFI") -> str:
    """Return along which axis the true position or direction does not follow the light, or an empty string.

    Args:
        places: As `light_places` returns them.
        truth: Of these events, shape (B, D).
        task: What it is of, one of `TRUTH_OF_PLACES`. Directions may rise or fall along an axis, as their signs are a
            convention.
    """
    known = np.isfinite(places).all(axis=1) & (np.abs(truth) < constants.UNKNOWN_ABOVE).all(axis=1)
    light, values = places[known], truth[known].astype(np.float64)
    if task == "angle" and len(values):  # phi may begin anew at 180 degrees within the detector
        turns = np.exp(1j * np.radians(values[:, 1]))
        values[:, 1] = np.degrees(np.angle(turns / turns.mean()))
    for axis, (name, component) in enumerate(zip(AXES, TRUTH_OF_PLACES[task], strict=True)):
        wide = known.sum() > _OF_FISHER and light[:, axis].std() >= LEAST_WIDTHS_CM[axis]
        if not wide or not light[:, 2 + axis].std() >= LEAST_SPREAD or not values[:, component].std() > 0:
            continue
        # Of ranks: one position that is far off is an event, and says nothing of all others.
        ranks = [np.argsort(np.argsort(row, kind="stable")) for row in (light[:, axis], values[:, component])]
        likeness = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
        likeness = likeness if task == "uvwFI" else abs(likeness)
        if likeness < LEAST_LIKENESS and _highest(likeness, int(known.sum())) < USUAL_LIKENESS:
            what = name if task == "uvwFI" else f"{task}[{component}]"
            return f"{what} of the truth does not follow the light (correlation {likeness:.2f}, 0.8 to 1 is usual)"
    return ""


def energy_elsewhere(photons: Array, energy: Array, other: tuple[float, int] = (np.nan, 0)) -> str:
    """Return how the true energy has nothing to do with the amount of light, or an empty string.

    Args:
        photons: Light of each event, shape (B,).
        energy: True energies of these events, shape (B,), in any unit.
        other: What `energy_likeness` says of events that should be like these; with them, fewer tell.
    """
    likeness, number = energy_likeness(photons, energy)
    chance = min(_CHANCE, number / _EVENTS_OF_DEVIATION)
    alone = number >= FEWEST_ENERGIES and likeness * np.sqrt(number) < chance
    if not (alone or (likeness < LEAST_LIKENESS and _far_below((likeness, number), other))):
        return ""
    return f"the true energy does not follow the light (correlation of ranks {likeness:.2f}, 0.7 to 1 is usual)"


def energy_likeness(photons: Array, energy: Array) -> tuple[float, int]:
    """Return the correlation of ranks of light and true energy, and of how many events; NaN where it tells nothing.

    Args:
        photons: As for `energy_elsewhere`.
        energy: As there.
    """
    known = (photons > 0) & (energy > 0) & (energy < constants.UNKNOWN_ABOVE)
    number = int(known.sum())
    if number < FEWEST_LIKE:
        return np.nan, number
    light, truth = photons[known].astype(np.float64), energy[known].astype(np.float64)
    light_spread, spread = (values.std() / values.mean() for values in (light, truth))
    if not min(light_spread, spread) > _LEAST_ENERGY_SPREAD or light_spread > _MOST_LIGHT_SPREAD * spread:
        return np.nan, number
    ranks = [np.argsort(np.argsort(values, kind="stable")) for values in (light, truth)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1]), number


def _far_below(found: tuple[float, int], other: tuple[float, int]) -> bool:
    """Return whether a correlation, with its number of events, is lower than another by more than chance allows."""
    numbers = (found[1], other[1])
    if min(numbers) < FEWEST_LIKE:
        return False
    low, high = np.arctanh(np.clip((found[0], other[0]), -0.999, 0.999))
    return bool(high - low > _DEVIATIONS_APART * np.sqrt(sum(1 / (number - _OF_FISHER) for number in numbers)))


def times_elsewhere(npho: Array, time: Array) -> str:
    """Return how times belong to other sensors than the photons, or an empty string.

    A dead sensor has neither. Where as many dead ones have times as live ones have none, the two are not in one order.

    Args:
        npho: Photons, raw, shape (B, S).
        time: Times, raw, shape (B, S).
    """
    lit, timed = (np.abs(values) < constants.UNKNOWN_ABOVE for values in (npho, time))
    dead, untimed = ~lit.any(axis=0), ~timed.any(axis=0)
    strangers = dead & (timed.mean(axis=0) > _OFTEN)
    bright = lit.all(axis=0) & (np.where(lit, npho, 0.0).mean(axis=0) > 0)
    silent = bright & untimed & (_mean_of(timed) > _OFTEN)
    if min(strangers.sum(), silent.sum()) < _FEWEST_SENSORS or strangers.sum() < dead.sum() / 2:
        return ""
    return (
        f"the times are of other sensors than the photons: {strangers.sum()} of {dead.sum()} sensors without photons "
        f"have times (the first is {np.flatnonzero(strangers)[0]}), {silent.sum()} with photons never have one "
        f"(the first is {np.flatnonzero(silent)[0]})"
    )


def _mean_of(timed: Array) -> Array:
    """Return how often sensors of the same face have a time, shape (S,)."""
    share, ids = timed.mean(axis=0), faces.face_ids()
    return np.array([share[ids == face].mean() for face in range(len(faces.FACES))])[ids]


@cache
def _inner_weights() -> Array:
    """Return u, v in cm and 1 of each sensor of the inner face, 0 of all others, shape (S, 3)."""
    _, phi, z = geometry.cylindrical()
    ids = faces.sensors("inner")
    weights = np.zeros((len(z), 3), dtype=np.float32)
    weights[ids] = np.stack([z[ids], constants.REFERENCE_RADIUS_CM * phi[ids], np.ones(len(ids))], axis=-1)
    return weights


@cache
def _end_weights() -> Array:
    """Return 1 for each sensor of a face at an end, the low ends first, shape (S, 4)."""
    names = [pair[end] for end in (0, 1) for pair in ENDS]
    weights = np.zeros((len(geometry.cylindrical()[2]), len(names)), dtype=np.float32)
    for column, name in enumerate(names):
        weights[faces.sensors(name), column] = 1.0
    return weights
