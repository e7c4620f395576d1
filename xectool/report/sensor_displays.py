"""Displays of events with hidden sensors: truth, what the network saw, what it predicted, and the difference.

Axes: S sensors (4760).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from xectool.detector.constants import NUM_SENSORS, UNKNOWN_ABOVE
from xectool.report.sensor_residuals import pieces
from xectool.report.style import INK, house_style, new_figure, save
from xectool.report.unrolled import FACE_LABELS, OUTLINE_CM, polygons
from xectool.report.worst import SensorFiles

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

DEAD_COLOR, HIDDEN_COLOR, EMPTY_COLOR = "#3a3a3a", "#f2c14e", "#f1f1f4"
PULL_LIMITS = (3.0, 30.0)
_KEY = {"hidden": HIDDEN_COLOR, "dead": DEAD_COLOR, "below one photon, or not asked for": EMPTY_COLOR}
_IDENTITY = ("file_index", "entry", "run", "event")


@dataclass(frozen=True)
class MaskedEvent:
    """One event and what was predicted of it.

    Attributes:
        npho: Raw photons of all sensors, shape (S,).
        predicted: Predicted photons, nan where nothing was predicted, shape (S,).
        hidden: Sensors hidden on purpose, shape (S,).
        title: Headline.
    """

    npho: FloatArray
    predicted: FloatArray
    hidden: BoolArray
    title: str

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
    for rows in pieces(predictions, (*_IDENTITY, "sensor", "mask_type", "pred_npho")):
        keys = np.column_stack([rows[name].astype(np.int64) for name in _IDENTITY])
        values = np.column_stack([rows[name].astype(np.float64) for name in ("sensor", "mask_type", "pred_npho")])
        starts = np.flatnonzero(np.any(np.diff(keys, axis=0, prepend=keys[:1] - 1) != 0, axis=1))
        for key, part in zip(map(tuple, keys[starts].tolist()), np.split(values, starts[1:]), strict=True):
            if key in found or len(found) <= count:
                found.setdefault(key, []).append(part)
        if len(found) > count:
            break
    return [_event(key, np.concatenate(parts), sources) for key, parts in list(found.items())[:count]]


def write_masked_event(event: MaskedEvent, out_dir: Path, stem: str) -> list[Path]:
    """Write the display of an event as PDF and PNG; returns both paths."""
    with house_style():
        return save(draw_masked_event(event), out_dir, stem)


def draw_masked_event(event: MaskedEvent) -> Figure:
    """Return truth, input, prediction and residual of one event, in the style that is active."""
    figure = new_figure(13.5, 13.0)
    figure.suptitle(event.title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    (truth, seen), (predicted, residual) = figure.subplots(2, 2)
    lit = ~event.dead & (event.npho >= 1)
    brightest = max(float(event.npho[lit].max(initial=0.0)), 10.0)
    norm = LogNorm(max(1.0, brightest * 1e-4), brightest)
    shown = np.where(lit, event.npho, np.nan)
    guess = np.where(event.predicted >= 1, event.predicted, np.nan)
    asked = event.hidden | np.isfinite(event.predicted)
    known = np.abs(event.pull[np.isfinite(event.pull)])
    limit = float(np.clip(np.ceil(np.percentile(known, 95)), *PULL_LIMITS)) if known.size else PULL_LIMITS[0]
    light, pull = (norm, "viridis"), (Normalize(-limit, limit), "coolwarm")
    # A hidden sensor whose truth or prediction is dark is not hidden there.
    absent, everything = np.stack([event.dead, np.zeros_like(event.hidden)]), np.stack([event.dead, event.hidden])
    _paint(truth, shown, absent, light, "truth [photons]")
    _paint(seen, np.where(event.hidden, np.nan, shown), everything, light, "what the network saw [photons]")
    _paint(predicted, np.where(asked, guess, shown), absent, light, "with predictions [photons]")
    _paint(residual, event.pull, absent, pull, r"(predicted $-$ truth) / $\sqrt{\mathrm{truth}}$")
    patches = [Patch(facecolor=color, edgecolor="#c9c9d2", label=label) for label, color in _KEY.items()]
    figure.legend(handles=patches, loc="upper right", ncols=len(patches), frameon=False, fontsize=10)
    return figure


def _event(key: tuple[int, ...], rows: FloatArray, sources: SensorFiles) -> MaskedEvent:
    file_index, entry, run, number = key
    npho, _ = sources.read(file_index, entry)
    sensors, hidden = rows[:, 0].astype(np.int64), np.zeros(NUM_SENSORS, dtype=bool)
    predicted = np.full(NUM_SENSORS, np.nan)
    predicted[sensors] = np.where(np.abs(rows[:, 2]) < UNKNOWN_ABOVE, rows[:, 2], np.nan)
    hidden[sensors[rows[:, 1] == 0]] = True
    title, filled = f"run {run}  event {number}: {int(hidden.sum())} hidden", int((rows[:, 1] != 0).sum())
    title += f", {filled} dead sensors filled" if filled else ""
    return MaskedEvent(npho, predicted, hidden, title)


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
