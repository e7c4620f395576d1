"""The state of every sensor on the unrolled detector, and histograms of the readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch

from xectool.detector import faces
from xectool.errors import counted
from xectool.report.style import BLUE, INK, ORANGE, PURPLE, RED, house_style, new_figure, save
from xectool.report.unrolled import FACE_LABELS, OUTLINE_CM, polygons

FloatArray = npt.NDArray[np.floating]

# In the order of the numbers that stand for them.
STATES = ("good", "dead", "constant", "hot", "noisy")
_COLORS = ("#dfe8d8", "#3a3a3a", PURPLE, RED, ORANGE)
_SIZE_IN = (13.5, 6.6)
_BINS = 80


@dataclass(frozen=True)
class HealthMap:
    """What is drawn.

    Attributes:
        state: Number of the state of each sensor, shape (4760,).
        mean: Mean photons of each sensor, shape (4760,).
        valid_share: Share of events with a valid reading, shape (4760,).
        events: Events it rests on.
        title: What was looked at.
    """

    state: npt.NDArray[np.integer]
    mean: FloatArray
    valid_share: FloatArray
    events: int
    title: str


def write_health_map(health: HealthMap, out_dir: Path) -> list[Path]:
    """Write ``sensor_health.pdf`` and ``.png``: the state of every sensor, and its mean photon number."""
    with house_style():
        figure = new_figure(*_SIZE_IN)
        figure.suptitle(
            f"sensors in {counted(health.events, 'event')} of {health.title}", x=0.01, ha="left", fontsize=13
        )
        left, right = figure.subplots(1, 2)
        _draw_states(left, health)
        _draw_means(right, health)
        return save(figure, out_dir, "sensor_health")


def write_histograms(ours: Mapping[str, FloatArray], theirs: Mapping[str, FloatArray], out_dir: Path) -> list[Path]:
    """Write ``readings.pdf`` and ``.png``: photons and times on each face, beside those of another sample.

    Args:
        ours: Valid photons and times, shape (events, 4760), NaN elsewhere.
        theirs: The same of the other sample; may be empty.
        out_dir: Folder for the plots.
    """
    with house_style():
        figure = new_figure(3.2 * len(faces.FACES), 6.0)
        grid = figure.subplots(2, len(faces.FACES), squeeze=False)
        for row, (channel, unit, factor) in enumerate((("npho", "photons", 1.0), ("time", "time [ns]", 1e9))):
            for axes, face in zip(grid[row], faces.FACES, strict=True):
                _draw_readings(axes, channel, face, factor, (ours, theirs))
                axes.set(xlabel=unit, title=f"{face}" if row == 0 else "")
        return save(figure, out_dir, "readings")


def _draw_readings(
    axes: Axes, channel: str, face: str, factor: float, samples: tuple[Mapping[str, FloatArray], ...]
) -> None:
    ids = faces.sensors(face)
    chosen = [np.asarray(sample[channel])[:, ids] * factor for sample in samples if channel in sample]
    chosen = [values[np.isfinite(values)] for values in chosen]
    filled = np.concatenate(chosen) if chosen else np.empty(0)
    if not len(filled):
        axes.text(0.5, 0.5, "no valid reading", transform=axes.transAxes, ha="center", color=INK)
        return
    low, high = (float(value) for value in np.quantile(filled, (0.001, 0.999)))
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    for values, color, label in zip(chosen, (BLUE, ORANGE), ("checked", "compared with"), strict=False):
        if len(values):
            heights = np.histogram(values, edges)[0] / len(values)
            axes.stairs(heights, edges, color=color, label=label)
    axes.set_yscale("log")
    if len(chosen) > 1 and face == faces.FACES[0]:
        axes.legend(loc="upper right")


def _draw_states(axes: Axes, health: HealthMap) -> None:
    colors = [_COLORS[int(state)] for state in health.state]
    axes.add_collection(
        PolyCollection(polygons(), facecolors=colors, edgecolors="#c9c9d2", linewidths=0.15, rasterized=True)
    )
    counts = np.bincount(health.state, minlength=len(STATES))
    key = [
        Patch(facecolor=color, label=f"{name}: {count}")
        for name, color, count in zip(STATES, _COLORS, counts, strict=True)
    ]
    _frame(axes)
    axes.legend(handles=key, loc="lower right", frameon=False)
    axes.set_title("state", loc="left")


def _draw_means(axes: Axes, health: HealthMap) -> None:
    lit = (health.valid_share > 0) & (health.mean > 0)
    brightest = float(health.mean[lit].max()) if lit.any() else 10.0
    shapes = polygons()
    axes.add_collection(PolyCollection(shapes, facecolors="#f1f1f4", edgecolors="#c9c9d2", linewidths=0.15))
    drawn = PolyCollection(
        [shape for shape, show in zip(shapes, lit, strict=True) if show], array=np.asarray(health.mean[lit]),
        norm=LogNorm(max(brightest * 1e-4, 1e-3), max(brightest, 10.0)), cmap="viridis", edgecolors="none",
        rasterized=True,
    )  # fmt: skip
    axes.add_collection(drawn)
    axes.figure.colorbar(drawn, ax=axes, pad=0.01, fraction=0.035).set_label("mean photons")
    _frame(axes)
    axes.set_title("mean of valid readings", loc="left")


def _frame(axes: Axes) -> None:
    for label, (x, y) in FACE_LABELS.items():
        axes.text(x, y, label, ha="center", va="bottom", fontsize=9, color=INK)
    left, right, bottom, top = OUTLINE_CM
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    axes.set_axis_off()
