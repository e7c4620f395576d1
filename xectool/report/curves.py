"""Learning curves of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from xectool.config.tasks import HEADLINE_METRICS
from xectool.detector.faces import FACES
from xectool.report.style import (
    BLUE,
    BROWN,
    CYAN,
    GREY,
    ORANGE,
    PANEL_SIZE_IN,
    PURPLE,
    RED,
    grid_shape,
    house_style,
    new_figure,
    save,
)
from xectool.report.written import Written
from xectool.runlog.conventional import CONSTANT, conventional


@dataclass(frozen=True)
class Line:
    """One metric in a panel.

    Attributes:
        metric: Its name in the record.
        label: What the legend calls it.
        color: Its colour.
        style: Its dashes and marks, as matplotlib writes them.
    """

    metric: str
    label: str
    color: str = BLUE
    style: str = "o-"


def _losses(name: str) -> tuple[Line, ...]:
    return Line(f"train/{name}", "training"), Line(f"val/{name}", "validation", ORANGE)


_FACES: Final = tuple(zip(FACES, (BLUE, ORANGE, RED, PURPLE, BROWN, CYAN), strict=True))
_FACE_LOSSES = (
    *(Line(f"val/loss_{face}", face, color) for face, color in _FACES),
    *(Line(f"train/loss_{face}", "", color, "--") for face, color in _FACES),
)
_POSITION = tuple(
    Line(f"uvw_{axis}_res_68pct", axis, color) for axis, color in zip("uvw", (BLUE, ORANGE, RED), strict=True)
)

#: Panels in their order: title, unit factor, and the metrics drawn in it.
CURVES: tuple[tuple[str, float, tuple[Line, ...]], ...] = (
    ("objective", 1.0, _losses("loss")),
    ("photon loss", 1.0, _losses("loss_npho")),
    ("time loss", 1.0, _losses("loss_time")),
    ("loss by face (dashed: training)", 1.0, _FACE_LOSSES),
    ("mean |photon residual| by face", 1.0, tuple(Line(f"mae_{face}_npho", face, color) for face, color in _FACES)),
    ("rms photon residual", 1.0, (Line("rmse_npho", "network"),)),
    ("rms time residual", 1.0, (Line("rmse_time", "network"),)),
    ("opening angle $p_{68}$ [deg]", 1.0, (Line("angle_resolution_68pct", "network"),)),
    ("energy $p_{68}$ [MeV]", 1e3, (Line("energy_res_68pct", "network"),)),
    ("timing $p_{68}$ [ps]", 1e12, (Line("timing_res_68pct", "network"),)),
    ("distance $p_{68}$ [cm]", 1.0, (Line("uvw_dist_68pct", "network"),)),
    ("position $p_{68}$ [cm]", 1.0, _POSITION),
    ("direction vector $p_{68}$ [deg]", 1.0, (Line("angleVec_resolution_68pct", "network"),)),
    ("photon number accuracy", 1.0, (Line("n_gamma_accuracy", "network"),)),
    ("learning rate", 1.0, (Line("lr", "rate"),)),
    ("gradient norm (largest, before clipping)", 1.0, (Line("train/grad_norm_max", "norm"),)),
)
#: Metrics of which the best epoch is marked, and the conventional estimator drawn as a line beside the network.
RESOLUTIONS = (*HEADLINE_METRICS.values(), "n_gamma_accuracy")
LOG_SPAN = 20.0  # a curve that spans more than this factor is drawn on a logarithmic axis


def plot_learning_curves(epochs: Sequence[Mapping[str, Any]], out_dir: Path) -> Written:
    """Write ``learning_curves.pdf`` and ``.png``.

    Args:
        epochs: As :func:`draw_learning_curves` takes them.
        out_dir: Folder for the plots, made if needed.

    Returns:
        The files written; a note instead when no epoch has a metric to draw.
    """
    figure = draw_learning_curves(epochs)
    if figure is None:
        return Written(notes=["no learning curves: they have a point a finished epoch, and no epoch is finished"])
    with house_style():
        return Written(files=save(figure, out_dir, "learning_curves"))


def draw_learning_curves(epochs: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Return a page with a panel a quantity that was recorded; None where no epoch has one.

    Args:
        epochs: One mapping an epoch with ``epoch`` and metrics by name, either beside it or under ``metrics``.
    """
    rows = [{**epoch, **epoch.get("metrics", {})} for epoch in epochs]
    wanted = [curve for curve in CURVES if any(_finite(row.get(line.metric)) for row in rows for line in curve[2])]
    if not wanted:
        return None
    with house_style():
        height, width = grid_shape(len(wanted))
        figure = new_figure(PANEL_SIZE_IN[0] * width, PANEL_SIZE_IN[1] * height)
        for index, (title, factor, lines) in enumerate(wanted, start=1):
            _draw(figure.add_subplot(height, width, index), rows, title, factor, lines)
    return figure


def _draw(axes: Axes, rows: list[dict[str, Any]], title: str, factor: float, lines: tuple[Line, ...]) -> None:
    drawn: list[np.ndarray] = []
    for line in lines:
        points = np.array([(row["epoch"], factor * row[line.metric]) for row in rows if _finite(row.get(line.metric))])
        if len(points):
            label = line.label or None
            axes.plot(points[:, 0], points[:, 1], line.style, color=line.color, markersize=3, label=label)
            drawn.append(points)
    values = np.concatenate([points[:, 1] for points in drawn])
    if values.min() > 0 and values.max() > LOG_SPAN * values.min():
        axes.set_yscale("log")
    first = lines[0].metric
    if first in RESOLUTIONS:
        _mark_best(axes, drawn[0], largest="accuracy" in first)
    baselines = _baselines(rows, first)
    if baselines:
        estimate, of = min(baselines)
        label = CONSTANT if of == CONSTANT else "conventional"
        axes.axhline(factor * estimate, color=PURPLE, linewidth=1.2, linestyle="--", label=label)
    if len(drawn) > 1 or baselines:
        axes.legend(loc="upper right", ncols=2 if len(drawn) > 3 else 1)
    axes.set(xlabel="epoch", ylabel=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if len(rows) == 1:  # else the axis goes from 0.945 to 1.055
        axes.set_xlim(rows[0]["epoch"] - 0.5, rows[0]["epoch"] + 0.5)


def _baselines(rows: list[dict[str, Any]], metric: str) -> list[tuple[float, str]]:
    """Return what conventional estimators have for a metric, with their names, in the last epoch that scored them."""
    for row in reversed(rows):
        found = [(row[name], of) for of, name in conventional(metric, row).items() if _finite(row[name])]
        if found:
            return found
    return []


def _mark_best(axes: Axes, points: np.ndarray, largest: bool) -> None:
    best = points[np.argmax(points[:, 1]) if largest else np.argmin(points[:, 1])]
    axes.plot(*best, "o", markersize=9, markerfacecolor="none", color=RED)
    axes.axhline(best[1], color=GREY, linewidth=0.8, linestyle=":")
    axes.set_title(f"best {best[1]:.4g} in epoch {int(best[0])}", loc="right", fontsize=9.5)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))
