"""The figure of a sweep of the learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from xectool.report.style import BLUE, GREY, ORANGE, PANEL_SIZE_IN, RED, house_style, new_figure, save

Numbers = NDArray[np.float64]
FAR = 3.0  # losses beyond so many times the start are cut off, so that the others can be read


@dataclass(frozen=True)
class SweepPoints:
    """What rates reached after some steps.

    Attributes:
        name: Of their line.
        rates: Shape (N,).
        losses: Loss at each rate, shape (N,); NaN where it is none.
        errors: Their standard errors, shape (N,).
        norms: Largest gradient norm before clipping, shape (N,).
    """

    name: str
    rates: Numbers
    losses: Numbers
    errors: Numbers
    norms: Numbers


def plot_lr_sweep(
    lines: Sequence[SweepPoints], start: float, recommended: tuple[float, float, float] | None, out_dir: Path
) -> list[Path]:
    """Write ``lr_sweep.pdf`` and ``.png``, loss and gradient norm against the rate, into a folder made if needed.

    Args:
        lines: At least one; the last decides, others are drawn pale.
        start: Loss before the first step.
        recommended: Lowest rate that may be as good, the recommended one, the highest; None where there is none.
        out_dir: The folder.
    """
    with house_style():
        figure = new_figure(2 * PANEL_SIZE_IN[0], PANEL_SIZE_IN[1])
        left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
        for points in lines:
            _draw(left, right, points, start, 1.0 if points is lines[-1] else 0.35)
        left.axhline(start, color=GREY, linestyle="--", label="before the first step")
        left.set_ylabel("loss of the last steps")
        right.set_ylabel("largest gradient norm, before clipping")
        if any((points.norms > 0).any() for points in lines):
            right.set_yscale("log")
        for axes in (left, right):
            _finish(axes, np.concatenate([points.rates for points in lines]), recommended)
        left.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize="small")
        return save(figure, out_dir, "lr_sweep")


def _draw(left: Axes, right: Axes, points: SweepPoints, start: float, alpha: float) -> None:
    losses, norms = points.losses, points.norms
    known = np.isfinite(losses) & (np.abs(losses - start) <= FAR * max(abs(start), 1e-12))
    rates, errors = points.rates, points.errors[known]
    drawn = left.errorbar(rates[known], losses[known], yerr=errors, fmt="o-", color=BLUE, capsize=2)
    drawn.set_label(points.name)
    for artist in drawn.get_children():
        artist.set_alpha(alpha)
    finite = np.isfinite(norms) & (norms > 0)
    right.plot(rates[finite], norms[finite], "o-", color=ORANGE, alpha=alpha)


def _finish(axes: Axes, rates: Numbers, recommended: tuple[float, float, float] | None) -> None:
    axes.set_xscale("log")
    axes.set_xlim(rates.min() / 1.5, rates.max() * 1.5)
    axes.set_xlabel("learning rate")
    if recommended is not None:
        low, middle, high = recommended
        axes.axvspan(low, high, color=RED, alpha=0.12, label="may be as good")
        axes.axvline(middle, color=RED, label=f"recommended {middle:g}")
