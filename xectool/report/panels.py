"""Single panels that the pages of all tasks are made of.

Axes: B events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from xectool.errors import counted
from xectool.report.statistics import (
    MIN_BIN_EVENTS,
    Profile,
    Statistic,
    bootstrap_error,
    contained_width,
    effective_width,
    mean,
    profile,
)
from xectool.report.style import BLUE, GREY, INK, ORANGE, RED, say, say_nothing_to_show

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Quantity:
    """Values with what stands on their axis.

    Attributes:
        values: Shape (B,).
        label: Symbol or name, may hold mathtext.
        unit: Unit, empty when dimensionless.
    """

    values: FloatArray
    label: str
    unit: str = ""

    @property
    def axis(self) -> str:
        """Label with unit."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label


def histogram(axes: Axes, residual: Quantity) -> None:
    """Draw a residual with its mean, sigma_eff and p68, in a range of five widths around the median."""
    values = residual.values
    if len(values) < MIN_BIN_EVENTS:
        _too_few(axes, len(values), residual.axis)
        return
    width, middle = effective_width(values), float(np.median(values))
    span = 5 * width or max(abs(middle), 1.0) * 1e-3
    edges = np.linspace(middle - span, middle + span, _num_bins(len(values)) + 1)
    counts = np.histogram(values, edges)[0]
    axes.stairs(counts, edges, fill=True, color=BLUE, alpha=0.25)
    axes.stairs(counts, edges, color=BLUE, linewidth=1.3)
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    outside = len(values) - int(counts.sum())
    error = bootstrap_error(values, effective_width)
    lines = [
        f"mean ${measured(values.mean(), values.std() / np.sqrt(len(values)))}$",
        f"$\\sigma_\\mathrm{{eff}} = {measured(width, error)}$",
        f"$p_{{68}} = {contained_width(values):.3g}$",
    ]
    say(axes, "\n".join([*lines, f"{outside} outside"] if outside else lines))
    axes.set(xlabel=residual.axis, ylabel="events", ylim=(0, counts.max() * 1.45), xlim=(edges[0], edges[-1]))


def size_histogram(axes: Axes, size: Quantity) -> None:
    """Draw a quantity that is never negative, with the line below which 68 % of the events lie."""
    values = size.values
    if len(values) < MIN_BIN_EVENTS:
        _too_few(axes, len(values), size.axis)
        return
    limit = contained_width(values)
    edges = np.linspace(0, max(4 * limit, 1e-12), _num_bins(len(values)) + 1)
    counts = np.histogram(values, edges)[0]
    axes.stairs(counts, edges, fill=True, color=BLUE, alpha=0.25)
    axes.stairs(counts, edges, color=BLUE, linewidth=1.3)
    axes.axvline(limit, color=RED, linewidth=1.2)
    error = bootstrap_error(values, contained_width)
    text = f"$p_{{68}} = {measured(limit, error)}$ {size.unit}\nmean ${values.mean():.3g}$ {size.unit}"
    say(axes, text, "upper right")
    axes.set(xlabel=size.axis, ylabel="events", ylim=(0, counts.max() * 1.2), xlim=(0, edges[-1]))


def versus(axes: Axes, truth: Quantity, prediction: FloatArray) -> None:
    """Draw prediction against truth as a two-dimensional histogram with the diagonal."""
    if len(prediction) < MIN_BIN_EVENTS:
        _too_few(axes, len(prediction), f"true {truth.axis}", f"predicted {truth.axis}")
        return
    low, high = _range(np.concatenate([truth.values, prediction]))
    bins = int(np.clip(np.sqrt(len(prediction)), 15, 60))
    counts, x, y = np.histogram2d(truth.values, prediction, bins=bins, range=[[low, high]] * 2)
    image = axes.pcolormesh(
        x, y, np.where(counts > 0, counts, np.nan).T, norm=LogNorm(1, max(counts.max(), 2)), cmap="viridis_r",
        rasterized=True,
    )  # fmt: skip
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, fraction=0.05)
    bar.ax.tick_params(which="both", labelsize=8)
    axes.plot([low, high], [low, high], color=RED, linewidth=0.8, linestyle="--")
    unit = f" [{truth.unit}]" if truth.unit else ""
    axes.set(xlabel=f"true {truth.axis}", ylabel=f"predicted {truth.label}{unit}", xlim=(low, high), ylim=(low, high))


def resolution_profile(
    axes: Axes, against: Quantity, residual: Quantity, statistic: Statistic = effective_width
) -> None:
    """Draw a width of the residual in bins of another quantity."""
    known = np.isfinite(against.values)
    found = profile(against.values[known], residual.values[known], statistic)
    if points(axes, found, BLUE):
        top = float(np.max(found.value + found.error)) or 1.0
        axes.set(ylim=(0, 1.35 * top))
    axes.set(xlabel=against.axis, ylabel=residual.axis)


def bias_profile(axes: Axes, against: Quantity, residual: Quantity) -> None:
    """Draw the mean residual in bins of another quantity."""
    known = np.isfinite(against.values)
    found = profile(against.values[known], residual.values[known], mean)
    if points(axes, found, ORANGE):
        axes.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
        limit = 1.4 * float(np.max(np.abs(found.value) + found.error)) or 1.0
        axes.set(ylim=(-limit, limit))
    axes.set(xlabel=against.axis, ylabel=residual.axis)


def pull_histogram(axes: Axes, pull: FloatArray) -> None:
    """Draw residual over predicted sigma beside the unit Gaussian."""
    pull = pull[np.isfinite(pull)]
    if len(pull) < MIN_BIN_EVENTS:
        _too_few(axes, len(pull), "residual / predicted $\\sigma$")
        return
    edges = np.linspace(-5, 5, 51)
    counts = np.histogram(pull, edges)[0]
    axes.stairs(counts, edges, fill=True, color=BLUE, alpha=0.25)
    axes.stairs(counts, edges, color=BLUE, linewidth=1.3)
    x = np.linspace(-5, 5, 201)
    gauss = len(pull) * (edges[1] - edges[0]) * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    axes.plot(x, gauss, color=RED, linewidth=1.2, label="unit Gaussian")
    axes.legend(loc="upper right")
    say(axes, f"mean ${pull.mean():+.2f}$\nrms ${pull.std():.2f}$")
    top = max(float(counts.max()), float(gauss.max()))
    axes.set(xlabel="residual / predicted $\\sigma$", ylabel="events", ylim=(0, 1.45 * top), xlim=(-5, 5))


def _too_few(axes: Axes, num_events: int, x: str, y: str = "events") -> None:
    """Say in an empty panel what it would show, and how many events that takes."""
    say_nothing_to_show(axes, f"{counted(num_events, 'event')}: drawn from {MIN_BIN_EVENTS} on")
    axes.set(xlabel=x, ylabel=y)


def points(axes: Axes, found: Profile, color: str, label: str | None = None) -> bool:
    """Draw a profile as points with errors; says so and returns False where there is none."""
    if len(found.value) == 0:
        say_nothing_to_show(axes, f"fewer than {MIN_BIN_EVENTS} events: drawn from {MIN_BIN_EVENTS} on")
        return False
    spread = [found.centre - found.low, found.high - found.centre]
    axes.errorbar(
        found.centre, found.value, yerr=found.error, xerr=spread, fmt="o", color=color, markersize=4, linewidth=1.0,
        markeredgecolor=INK, markeredgewidth=0.3, label=label,
    )  # fmt: skip
    return True


def measured(value: float, error: float) -> str:
    """Return value and error to two digits of the error, as mathtext.

    >>> measured(1.23456, 0.0123)
    '1.235 \\\\pm 0.012'
    """
    if not 1e-6 < error < 1e6:
        return f"{value:.3g}"
    digits = max(0, 1 - int(np.floor(np.log10(error))))
    return f"{value:.{digits}f} \\pm {error:.{digits}f}"


def _num_bins(num_events: int) -> int:
    return int(np.clip(2 * num_events ** (1 / 3) * 2, 20, 100))


def _range(values: FloatArray) -> tuple[float, float]:
    low, high = np.percentile(values, [0.2, 99.8])
    margin = 0.04 * (high - low) or max(abs(high), 1.0) * 1e-3
    return float(low - margin), float(high + margin)
