"""The figure of a sweep of the learning rate."""

from __future__ import annotations

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
    """What is drawn.

    Attributes:
        rates: Shape (N,).
        losses: Loss at each rate, shape (N,); NaN where it is none.
        errors: Their standard errors, shape (N,).
        norms: Largest gradient norm before clipping, shape (N,).
        start: Loss before the first step.
        recommended: Lowest rate a seed recommends, the recommended one, the highest; None where there is none.
    """

    rates: Numbers
    losses: Numbers
    errors: Numbers
    norms: Numbers
    start: float
    recommended: tuple[float, float, float] | None


def plot_lr_sweep(points: SweepPoints, out_dir: Path) -> list[Path]:
    """Write ``lr_sweep.pdf`` and ``.png``, loss and gradient norm against the rate, into a folder made if needed."""
    rates, losses, norms, start = points.rates, points.losses, points.norms, points.start
    with house_style():
        figure = new_figure(2 * PANEL_SIZE_IN[0], PANEL_SIZE_IN[1])
        left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
        known = np.isfinite(losses) & (np.abs(losses - start) <= FAR * max(abs(start), 1e-12))
        left.errorbar(rates[known], losses[known], yerr=points.errors[known], fmt="o-", color=BLUE, capsize=2)
        left.axhline(start, color=GREY, linestyle="--", label="before the first step")
        left.set_ylabel("loss of the last steps")
        finite = np.isfinite(norms) & (norms > 0)
        right.plot(rates[finite], norms[finite], "o-", color=ORANGE)
        right.set_ylabel("largest gradient norm, before clipping")
        if finite.any():
            right.set_yscale("log")
        for axes in (left, right):
            _finish(axes, rates, points.recommended)
        left.legend(frameon=False)
        return save(figure, out_dir, "lr_sweep")


def _finish(axes: Axes, rates: Numbers, recommended: tuple[float, float, float] | None) -> None:
    axes.set_xscale("log")
    axes.set_xlim(rates.min() / 1.5, rates.max() * 1.5)
    axes.set_xlabel("learning rate")
    if recommended is not None:
        low, middle, high = recommended
        axes.axvspan(low, high, color=RED, alpha=0.12, label="single seeds")
        axes.axvline(middle, color=RED, label=f"recommended {middle:g}")
