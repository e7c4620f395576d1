"""Learning curves of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from xectool.report.style import (
    BLUE,
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

#: Panels in their order: title, unit factor, and the metrics drawn in it.
CURVES: tuple[tuple[str, float, tuple[str, ...]], ...] = (
    ("objective", 1.0, ("train/loss", "val/loss")),
    ("opening angle $p_{68}$ [deg]", 1.0, ("angle_resolution_68pct",)),
    ("energy $p_{68}$ [MeV]", 1e3, ("energy_res_68pct",)),
    ("timing $p_{68}$ [ps]", 1e12, ("timing_res_68pct",)),
    ("distance $p_{68}$ [cm]", 1.0, ("uvw_dist_68pct",)),
    ("position $p_{68}$ [cm]", 1.0, ("uvw_u_res_68pct", "uvw_v_res_68pct", "uvw_w_res_68pct")),
    ("direction vector $p_{68}$ [deg]", 1.0, ("angleVec_resolution_68pct",)),
    ("photon number accuracy", 1.0, ("n_gamma_accuracy",)),
    ("learning rate", 1.0, ("lr",)),
    ("gradient norm (largest, before clipping)", 1.0, ("train/grad_norm_max",)),
)
#: Metrics of conventional estimators on the same events, drawn as a line beside the network's.
BASELINES = {
    "angle_resolution_68pct": "baseline_angle",
    "energy_res_68pct": "baseline_energy",
    "timing_res_68pct": "baseline_timing",
    "uvw_dist_68pct": "baseline_uvwFI",
}
_COLORS = (BLUE, ORANGE, RED)
LOG_SPAN = 20.0  # a curve that spans more than this factor is drawn on a logarithmic axis


def plot_learning_curves(epochs: Sequence[Mapping[str, Any]], out_dir: Path) -> Written:
    """Write ``learning_curves.pdf`` and ``.png``.

    Args:
        epochs: One mapping an epoch with ``epoch`` and metrics by name, either beside it or under ``metrics``.
        out_dir: Folder for the plots, made if needed.

    Returns:
        The files written; a note instead when no epoch has a metric to draw.
    """
    rows = [{**epoch, **epoch.get("metrics", {})} for epoch in epochs]
    wanted = [curve for curve in CURVES if any(_finite(row.get(name)) for row in rows for name in curve[2])]
    if not wanted:
        return Written(notes=["no learning curves: no epoch has recorded a metric yet"])
    with house_style():
        lines, columns = grid_shape(len(wanted))
        figure = new_figure(PANEL_SIZE_IN[0] * columns, PANEL_SIZE_IN[1] * lines)
        for index, (title, factor, names) in enumerate(wanted, start=1):
            _draw(figure.add_subplot(lines, columns, index), rows, title, factor, names)
        return Written(files=save(figure, out_dir, "learning_curves"))


def _draw(axes: Axes, rows: list[dict[str, Any]], title: str, factor: float, names: tuple[str, ...]) -> None:
    drawn: list[np.ndarray] = []
    for name, color in zip(names, _COLORS, strict=False):
        points = np.array([(row["epoch"], factor * row[name]) for row in rows if _finite(row.get(name))])
        if len(points):
            axes.plot(points[:, 0], points[:, 1], "o-", color=color, markersize=3, label=_short(name))
            drawn.append(points)
    values = np.concatenate([points[:, 1] for points in drawn])
    if values.min() > 0 and values.max() > LOG_SPAN * values.min():
        axes.set_yscale("log")
    if names[0] in (*BASELINES, "angleVec_resolution_68pct", "n_gamma_accuracy"):
        _mark_best(axes, drawn[0], largest="accuracy" in names[0])
    baseline = BASELINES.get(names[0], "")
    baselines = [row[baseline] for row in rows if _finite(row.get(baseline))]
    if baselines:
        axes.axhline(factor * baselines[-1], color=PURPLE, linewidth=1.2, linestyle="--", label="conventional")
    if len(drawn) > 1 or baselines:
        axes.legend(loc="upper right")
    axes.set(xlabel="epoch", ylabel=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _mark_best(axes: Axes, points: np.ndarray, largest: bool) -> None:
    best = points[np.argmax(points[:, 1]) if largest else np.argmin(points[:, 1])]
    axes.plot(*best, "o", markersize=9, markerfacecolor="none", color=RED)
    axes.axhline(best[1], color=GREY, linewidth=0.8, linestyle=":")
    axes.set_title(f"best {best[1]:.4g} in epoch {int(best[0])}", loc="right", fontsize=9.5)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))


def _short(name: str) -> str:
    return {"train/loss": "training", "val/loss": "validation"}.get(name, name.split("_")[1] if "uvw" in name else name)
