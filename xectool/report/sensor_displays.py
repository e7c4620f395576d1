"""Displays of events with hidden sensors: truth, what the network saw, what it predicted, and the difference.

Axes: S sensors (4760).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from xectool.detector.constants import NUM_SENSORS, UNKNOWN_ABOVE
from xectool.errors import event_named
from xectool.report.displays import MIN_TIMED_NPHO
from xectool.report.sensor_residuals import pieces
from xectool.report.style import INK, house_style, new_figure, save
from xectool.report.unrolled import FACE_LABELS, OUTLINE_CM, polygons
from xectool.report.worst import SensorFiles

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

DEAD_COLOR, HIDDEN_COLOR, EMPTY_COLOR = "#3a3a3a", "#f2c14e", "#f1f1f4"
PULL_LIMITS, TIME_LIMITS = (3.0, 30.0), (1.0, 30.0)
_NO_VALUE = {"photons": "below one photon, or not asked for", "ns": "too dim for a time, or not asked for"}
_IDENTITY = ("file_index", "entry", "run", "event")
_COLUMNS = ("sensor", "mask_type", "pred_npho", "truth_time", "pred_time")


@dataclass(frozen=True)
class MaskedEvent:
    """One event and what was predicted of it.

    Attributes:
        npho: Raw photons of all sensors, shape (S,).
        predicted: Predicted photons, nan where nothing was predicted, shape (S,).
        hidden: Sensors hidden on purpose, shape (S,).
        title: Headline.
        time_s: Raw times, nan where they mean nothing, shape (S,); empty where no time was predicted.
        predicted_s: Predicted times, nan where nothing was predicted, shape (S,).
    """

    npho: FloatArray
    predicted: FloatArray
    hidden: BoolArray
    title: str
    time_s: FloatArray = field(default_factory=lambda: np.empty(0))
    predicted_s: FloatArray = field(default_factory=lambda: np.empty(0))

    @property
    def dead(self) -> BoolArray:
        """Sensors without a reading, shape (S,)."""
        return ~(np.abs(self.npho) < UNKNOWN_ABOVE)

    @property
    def pull(self) -> FloatArray:
        """Prediction minus truth over the root of the truth at the hidden sensors, nan elsewhere, shape (S,)."""
        known = self.hidden & ~self.dead
        truth = np.where(known, self.npho, 0.0)
        return np.where(known, (self.predicted - truth) / np.sqrt(np.maximum(truth, 1.0)), np.nan)


def masked_events(predictions: Path, sources: SensorFiles, count: int) -> list[MaskedEvent]:
    """Return the first ``count`` events of a sensor prediction file.

    Args:
        predictions: The prediction file; rows of an event follow each other.
        sources: The files that were predicted.
        count: How many.

    Raises:
        DataFileError: A file cannot be read.
    """
    found: dict[tuple[int, ...], list[FloatArray]] = {}
    for rows in pieces(predictions, (*_IDENTITY, *_COLUMNS)):
        keys = np.column_stack([rows[name].astype(np.int64) for name in _IDENTITY])
        values = np.column_stack([rows[name].astype(np.float64) for name in _COLUMNS])
        starts = np.flatnonzero(np.any(np.diff(keys, axis=0, prepend=keys[:1] - 1) != 0, axis=1))
        for key, part in zip(map(tuple, keys[starts].tolist()), np.split(values, starts[1:]), strict=True):
            if key in found or len(found) <= count:
                found.setdefault(key, []).append(part)
        if len(found) > count:
            break
    return [_event(key, np.concatenate(parts), sources) for key, parts in list(found.items())[:count]]


def write_masked_event(event: MaskedEvent, out_dir: Path, stem: str) -> list[Path]:
    """Write the displays of an event as PDF and PNG, ``stem`` for photons and ``stem_time``; returns all paths.

    Photons are left out where only times were predicted.
    """
    timed = bool(event.time_s.size)
    with house_style():
        written = [] if timed and not np.isfinite(event.predicted).any() else save(draw_photons(event), out_dir, stem)
        return written + (save(draw_times(event), out_dir, f"{stem}_time") if timed else [])


def draw_photons(event: MaskedEvent) -> Figure:
    """Return truth, input, prediction and residual of the photons of one event, in the style that is active."""
    lit = ~event.dead & (event.npho >= 1)
    brightest = max(float(event.npho[lit].max(initial=0.0)), 10.0)
    norm = LogNorm(max(1.0, brightest * 1e-4), brightest)
    shown = np.where(lit, event.npho, np.nan)
    guess = np.where(event.predicted >= 1, event.predicted, np.nan)
    asked = event.hidden | np.isfinite(event.predicted)
    values = (shown, np.where(asked, guess, shown), event.pull)
    residual = (r"(predicted $-$ truth) / $\sqrt{\mathrm{truth}}$", _limit(event.pull, PULL_LIMITS))
    return _draw(event, values, (norm, "viridis", "photons"), residual)


def draw_times(event: MaskedEvent) -> Figure:
    """Return truth, input, prediction and residual of the times of one event, in the style that is active."""
    truth, predicted = 1e9 * event.time_s, 1e9 * event.predicted_s
    known = truth[np.isfinite(truth)]
    low, high = np.percentile(known, (1, 99)) if known.size else (0.0, 1.0)
    residual = np.where(event.hidden, predicted - truth, np.nan)
    values = (truth, np.where(np.isfinite(predicted), predicted, truth), residual)
    norm = Normalize(low, max(high, low + 1e-3))
    return _draw(event, values, (norm, "coolwarm", "ns"), (r"predicted $-$ truth [ns]", _limit(residual, TIME_LIMITS)))


def _draw(
    event: MaskedEvent,
    values: tuple[FloatArray, FloatArray, FloatArray],
    look: tuple[Normalize, str, str],
    residual: tuple[str, float],
) -> Figure:
    """Return the four panels of one channel.

    Args:
        event: The event.
        values: Truth, truth with predictions, and residual, each of shape (S,).
        look: Norm, colour map and unit of the readings.
        residual: Title and range of the residual.
    """
    norm, colors, unit = look
    title, limit = residual
    figure = new_figure(13.5, 13.0)
    figure.suptitle(event.title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    (truth, seen), (predicted, difference) = figure.subplots(2, 2)
    # A hidden sensor whose truth or prediction is dark is not hidden there.
    absent, everything = np.stack([event.dead, np.zeros_like(event.hidden)]), np.stack([event.dead, event.hidden])
    _paint(truth, values[0], absent, (norm, colors), f"truth [{unit}]")
    shown = np.where(event.hidden, np.nan, values[0])
    _paint(seen, shown, everything, (norm, colors), f"what the network saw [{unit}]")
    _paint(predicted, values[1], absent, (norm, colors), f"with predictions [{unit}]")
    _paint(difference, values[2], absent, (Normalize(-limit, limit), "coolwarm"), title)
    key = {"hidden": HIDDEN_COLOR, "dead": DEAD_COLOR, _NO_VALUE[unit]: EMPTY_COLOR}
    patches = [Patch(facecolor=color, edgecolor="#c9c9d2", label=label) for label, color in key.items()]
    figure.legend(handles=patches, loc="upper right", ncols=len(patches), frameon=False, fontsize=10)
    return figure


def _limit(residual: FloatArray, ends: tuple[float, float]) -> float:
    """Return the range of colours that holds 95 % of the residuals, within ``ends``."""
    known = np.abs(residual[np.isfinite(residual)])
    return float(np.clip(np.ceil(np.percentile(known, 95)), *ends)) if known.size else ends[0]


def _event(key: tuple[int, ...], rows: FloatArray, sources: SensorFiles) -> MaskedEvent:
    file_index, entry, run, number = key
    npho, time = sources.read(file_index, entry)
    sensors, asked = rows[:, 0].astype(np.int64), rows[:, 1] == 0
    hidden = np.zeros(NUM_SENSORS, dtype=bool)
    hidden[sensors[asked]] = True
    predicted, truth_s, predicted_s = (_by_sensor(sensors, rows[:, column]) for column in (2, 3, 4))
    title, filled = f"{event_named(run, number)}: {int(hidden.sum())} hidden", int((~asked).sum())
    title += f", {filled} dead sensors filled" if filled else ""
    if not np.isfinite(predicted_s).any():
        return MaskedEvent(npho, predicted, hidden, title)
    bright = (npho >= MIN_TIMED_NPHO) & (npho < UNKNOWN_ABOVE) & (np.abs(time) < UNKNOWN_ABOVE)
    return MaskedEvent(
        npho, predicted, hidden, title, np.where(hidden, truth_s, np.where(bright, time, np.nan)), predicted_s
    )


def _by_sensor(sensors: npt.NDArray[np.int64], values: FloatArray) -> FloatArray:
    """Return the values of some sensors as (S,), nan for all others and where a value says that there is none."""
    found = np.full(NUM_SENSORS, np.nan)
    found[sensors] = np.where(np.abs(values) < UNKNOWN_ABOVE, values, np.nan)
    return found


def _paint(axes: Axes, values: FloatArray, absent: BoolArray, look: tuple[Normalize, str], title: str) -> None:
    """Draw all sensors: coloured where the value is finite, else dark where they are dead, else pale or hidden.

    Args:
        axes: Where to.
        values: What to colour by, shape (S,).
        absent: Which sensors are ``dead`` or ``hidden``, shape (2, S).
        look: Norm and colour map.
        title: Of the panel.
    """
    shapes, shown = polygons(), np.isfinite(values)
    dead, hidden = absent
    plain = np.where(dead, DEAD_COLOR, np.where(hidden, HIDDEN_COLOR, EMPTY_COLOR))
    axes.add_collection(
        PolyCollection(shapes, facecolors=plain, edgecolors="#c9c9d2", linewidths=0.15, rasterized=True)
    )
    coloured = PolyCollection(
        [shape for shape, show in zip(shapes, shown, strict=True) if show],
        # Edges in the colour of the face close the hairlines between neighbours.
        array=values[shown], norm=look[0], cmap=look[1], edgecolors="face", linewidths=0.3, rasterized=True,
    )  # fmt: skip
    axes.add_collection(coloured)
    axes.figure.colorbar(coloured, ax=axes, pad=0.01, fraction=0.035)
    for label, (x, y) in FACE_LABELS.items():
        axes.text(x, y, label, ha="center", va="bottom", fontsize=9, color=INK)
    left, right, bottom, top = OUTLINE_CM
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    axes.set_axis_off()
    axes.set_title(title, loc="left", color=INK)
