"""Event displays: the six faces of the detector unrolled, in centimetres.

The view is from the target outwards with upstream on the right: downstream, inner and upstream face side by side, top
above, bottom below, outer face apart. Axes: S sensors (4760).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.report.style import INK, RED, house_style, new_figure, save
from xectool.report.unrolled import FACE_LABELS, OUTLINE_CM, polygons

FloatArray = npt.NDArray[np.float64]

MIN_TIMED_NPHO = 100.0
DEAD_COLOR, EMPTY_COLOR = "#3a3a3a", "#f1f1f4"
SIZE_IN = (13.5, 6.6)
_MARKS = {"true": ("x", RED), "predicted": ("+", "black")}
_HALO = [withStroke(linewidth=4, foreground="white")]


@dataclass(frozen=True)
class Display:
    """One event as it is drawn.

    Attributes:
        npho: Photons, raw, shape (S,); not finite or above 9e9 is a dead channel.
        time_s: Times, raw, s, shape (S,); shown where the sensor has at least 100 photons.
        title: Headline.
        lines: Text below it.
        marks: Points (u, v) in cm to mark on the inner face, by name (``true``, ``predicted``).
    """

    npho: FloatArray
    time_s: FloatArray
    title: str
    lines: tuple[str, ...] = ()
    marks: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def write_display(display: Display, out_dir: Path, stem: str) -> list[Path]:
    """Write a display as PDF and PNG; returns both paths."""
    with house_style():
        return save(draw(display), out_dir, stem)


def draw(display: Display) -> Figure:
    """Return the figure of a display, in the style that is active."""
    figure = new_figure(*SIZE_IN)
    text = "\n".join(["   ".join(display.lines[i : i + 2]) for i in range(0, len(display.lines), 2)])
    figure.suptitle(display.title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    left, right = figure.subplots(1, 2)
    _draw_npho(left, display)
    _draw_time(right, display)
    if text:
        figure.supxlabel(text, x=0.01, ha="left", fontsize=9)
    return figure


def _draw_npho(axes: Axes, display: Display) -> None:
    dead = ~np.isfinite(display.npho) | (np.abs(display.npho) >= UNKNOWN_ABOVE)
    lit = ~dead & (display.npho >= 1)
    brightest = float(display.npho[lit].max()) if lit.any() else 10.0
    norm = LogNorm(max(1.0, brightest * 1e-4), max(brightest, 10.0))
    faces = _paint(axes, np.where(lit, display.npho, np.nan), dead, norm, "viridis")
    bar = axes.figure.colorbar(faces, ax=axes, pad=0.01, fraction=0.035)
    bar.set_label("photons")
    axes.set_title(f"photons: {display.npho[lit].sum():.3g} in all, {int(dead.sum())} dead channels", loc="left")
    for name, (u, v) in display.marks.items():
        marker, color = _MARKS[name]
        axes.plot(-u, v, marker, color=color, markersize=9, markeredgewidth=1.8, label=name, path_effects=_HALO)
    if display.marks:
        axes.legend(loc="lower right", handletextpad=0.1)


def _draw_time(axes: Axes, display: Display) -> None:
    npho, time_s = display.npho, display.time_s
    dead = ~np.isfinite(npho) | (np.abs(npho) >= UNKNOWN_ABOVE)
    timed = ~dead & (npho >= MIN_TIMED_NPHO) & np.isfinite(time_s) & (np.abs(time_s) < UNKNOWN_ABOVE)
    values = np.where(timed, 1e9 * time_s, np.nan)
    low, high = np.percentile(values[timed], [1, 99]) if timed.any() else (0.0, 1.0)
    norm = Normalize(float(low), float(high) if high > low else float(low) + 1.0)
    faces = _paint(axes, values, dead, norm, "coolwarm")
    bar = axes.figure.colorbar(faces, ax=axes, pad=0.01, fraction=0.035)
    bar.set_label("time [ns]")
    axes.set_title(f"time: {int(timed.sum())} sensors with at least {MIN_TIMED_NPHO:.0f} photons", loc="left")


def _paint(
    axes: Axes, values: FloatArray, dead: npt.NDArray[np.bool_], norm: Normalize, colormap: str
) -> PolyCollection:
    """Draw all sensors, coloured where the value is finite; returns what the colour bar belongs to."""
    shapes = polygons()
    shown = np.isfinite(values)
    colors = np.where(dead, DEAD_COLOR, EMPTY_COLOR)
    plain = PolyCollection(shapes, facecolors=colors, edgecolors="#c9c9d2", linewidths=0.15, rasterized=True)
    axes.add_collection(plain)
    coloured = PolyCollection(
        [shape for shape, show in zip(shapes, shown, strict=True) if show],
        array=values[shown], norm=norm, cmap=colormap, edgecolors="none", rasterized=True,
    )  # fmt: skip
    axes.add_collection(coloured)
    for label, (x, y) in FACE_LABELS.items():
        axes.text(x, y, label, ha="center", va="bottom", fontsize=9, color=INK)
    left, right, bottom, top = OUTLINE_CM
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    axes.set_axis_off()
    return coloured
