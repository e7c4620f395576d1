"""What the page of each task shows, as a list of panels.

Axes: B events, D components of a task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from xectool.detector import coordinates
from xectool.report.energy_fit import LEAST_P_VALUE, NoFit, fit_energy_resolution
from xectool.report.panels import (
    Quantity,
    bias_profile,
    histogram,
    points,
    pull_histogram,
    resolution_profile,
    size_histogram,
    versus,
)
from xectool.report.predictions import TaskPredictions
from xectool.report.statistics import contained_width, effective_width, profile
from xectool.report.style import BLUE, GREY, RED, say

FloatArray = npt.NDArray[np.float64]
Panel = Callable[[Axes], None]

SIGMA = "$\\sigma_\\mathrm{eff}$"
SYMBOLS = (
    "$\\Delta$: predicted minus true.  $\\sigma_\\mathrm{eff}$: half of the shortest interval that holds 68 % of the "
    "events.  $p_{68}$: 68 % quantile of the absolute value.\n"
    "Errors: from 200 resamplings of the events.  Horizontal bars: range of the bin, the point at its mean."
)
FIT_SYMBOLS = (
    "\nIn the formula $E$ is in GeV; $\\oplus$: added in quadrature; intervals 68 %, from $\\chi^2$ minimised "
    "over the other terms; "
    f"of a fit with $p$ < {LEAST_P_VALUE} no terms are told."
)
SIGNAL_MEV = (50.0, 55.0)


@dataclass(frozen=True)
class Comparison:
    """Predictions of one task beside other truths of the same events.

    Attributes:
        events: The task's events.
        against: Quantities to bin in, with nan where unknown: true energy and position, as far as the file has them.
    """

    events: TaskPredictions
    against: tuple[Quantity, ...]

    def component(self, index: int, label: str, unit: str, factor: float = 1.0) -> Quantity:
        """Return the residual of one component in display units."""
        return Quantity(factor * self.events.residual[:, index], label, unit)

    def true(self, index: int, label: str, unit: str, factor: float = 1.0) -> Quantity:
        """Return the truth of one component in display units."""
        return Quantity(factor * self.events.truth[:, index], label, unit)


def symbols(task: str) -> str:
    """Return what the symbols of a task's page mean."""
    return SYMBOLS + FIT_SYMBOLS if task == "energy" else SYMBOLS


def panels(comparison: Comparison) -> list[Panel]:
    """Return the panels of a task's page."""
    return _PAGES.get(comparison.events.task, _generic)(comparison)


def _angle(comparison: Comparison) -> list[Panel]:
    events = comparison.events
    found: list[Panel] = [partial(size_histogram, size=Quantity(opening_angle_deg(events), "opening angle", "deg"))]
    for index, symbol in enumerate(("\\theta", "\\phi")):
        residual = comparison.component(index, f"$\\Delta{symbol}$", "deg")
        found.append(partial(histogram, residual=residual))
    for index, symbol in enumerate(("\\theta", "\\phi")):
        truth = comparison.true(index, f"${symbol}$", "deg")
        found.append(partial(versus, truth=truth, prediction=events.prediction[:, index]))
    for index, symbol in enumerate(("\\theta", "\\phi")):
        bias = comparison.component(index, f"mean $\\Delta{symbol}$", "deg")
        found.append(partial(bias_profile, against=comparison.true(index, f"true ${symbol}$", "deg"), residual=bias))
    opening = Quantity(opening_angle_deg(events), "opening angle $p_{68}$", "deg")
    directions = [comparison.true(i, f"true ${s}$", "deg") for i, s in enumerate(("\\theta", "\\phi"))]
    return found + [
        partial(resolution_profile, against=against, residual=opening, statistic=contained_width)
        for against in [*directions, *comparison.against]
    ]


def _energy(comparison: Comparison) -> list[Panel]:
    events = comparison.events
    truth = comparison.true(0, "$E$", "MeV", 1e3)
    relative = Quantity(100 * _ratio(events.residual[:, 0], events.truth[:, 0]), "$\\Delta E / E$", "%")
    signal = (truth.values >= SIGNAL_MEV[0]) & (truth.values <= SIGNAL_MEV[1])
    label = f"$\\Delta E$, {SIGNAL_MEV[0]:.0f}–{SIGNAL_MEV[1]:.0f} MeV"
    found: list[Panel] = [
        partial(histogram, residual=relative),
        partial(versus, truth=truth, prediction=1e3 * events.prediction[:, 0]),
        partial(_energy_resolution, truth_gev=events.truth[:, 0], relative_percent=relative.values),
        partial(bias_profile, against=_named(truth, "true $E$"), residual=_named(relative, "mean $\\Delta E/E$")),
        partial(histogram, residual=Quantity(1e3 * events.residual[signal, 0], label, "MeV")),
    ]
    width = _named(relative, f"{SIGMA}$/E$")
    positions = [against for against in comparison.against if against.label != "true $E$"]
    found += [partial(resolution_profile, against=against, residual=width) for against in positions]
    return found + _pulls(events)


def _timing(comparison: Comparison) -> list[Panel]:
    residual = comparison.component(0, "$\\Delta t$", "ps", 1e12)
    found: list[Panel] = [
        partial(histogram, residual=residual),
        partial(
            versus, truth=comparison.true(0, "$t$", "ns", 1e9), prediction=1e9 * comparison.events.prediction[:, 0]
        ),
    ]
    width = _named(residual, SIGMA)
    found += [partial(resolution_profile, against=against, residual=width) for against in comparison.against]
    return found + _pulls(comparison.events)


def _position(comparison: Comparison) -> list[Panel]:
    events = comparison.events
    distance = np.sqrt(np.square(events.residual).sum(axis=1))
    depth = comparison.true(2, "true $w$", "cm")
    rows: list[list[Panel]] = [[], [], []]
    for index, axis in enumerate("uvw"):
        residual = comparison.component(index, f"$\\Delta {axis}$", "cm")
        truth, prediction = comparison.true(index, f"${axis}$", "cm"), events.prediction[:, index]
        rows[0].append(partial(histogram, residual=residual))
        rows[1].append(partial(versus, truth=truth, prediction=prediction))
        width = _named(residual, f"{SIGMA} of $\\Delta {axis}$")
        rows[2].append(partial(resolution_profile, against=depth, residual=width))
    size = Quantity(distance, "distance", "cm")
    last: list[Panel] = [partial(size_histogram, size=size)]
    for against in comparison.against:
        reach = _named(size, "distance $p_{68}$")
        last.append(partial(resolution_profile, against=against, residual=reach, statistic=contained_width))
    # The page has four columns: u, v and w below each other, the distance in the fourth.
    return [panel for row, end in zip(rows, last, strict=False) for panel in (*row, end)] + last[len(rows) :]


def _generic(comparison: Comparison) -> list[Panel]:
    events, found = comparison.events, list[Panel]()
    for index in range(events.truth.shape[1]):
        name = f"{events.task}[{index}]"
        found.append(partial(histogram, residual=comparison.component(index, f"$\\Delta$ {name}", "")))
        found.append(partial(versus, truth=comparison.true(index, name, ""), prediction=events.prediction[:, index]))
    return found + _pulls(events)


def _pulls(events: TaskPredictions) -> list[Panel]:
    if events.sigma is None:
        return []
    return [partial(pull_histogram, pull=_ratio(events.residual[:, 0], events.sigma[:, 0]))]


def _energy_resolution(axes: Axes, truth_gev: FloatArray, relative_percent: FloatArray) -> None:
    """Draw sigma/E in bins of the true energy with the fitted calorimeter formula."""
    found = profile(1e3 * truth_gev, relative_percent, effective_width)
    axes.set(xlabel="true $E$ [MeV]", ylabel=f"{SIGMA}$/E$ [%]")
    if not points(axes, found, BLUE):
        return
    fit = fit_energy_resolution(found.centre / 1e3, found.value / 100, found.error / 100)
    if isinstance(fit, NoFit):
        say(axes, fit.reason)
    else:
        x = np.linspace(found.low[found.low > 0].min(), found.high.max(), 200)
        color, style = (RED, "-") if fit.describes else (GREY, "--")
        axes.plot(x, 100 * fit(x / 1e3), color=color, linestyle=style, linewidth=1.3, zorder=3)
        say(axes, f"$\\sigma/E = a\\,E^{{-1/2}} \\oplus b \\oplus c\\,E^{{-1}}$\n{fit.text()}", "upper right")
    top = float(np.max(found.value + found.error)) or 1.0
    axes.set(ylim=(0, 1.9 * top))


def opening_angle_deg(events: TaskPredictions) -> FloatArray:
    """Return the angle between predicted and true direction of (theta, phi) events, shape (B,)."""
    first = coordinates.angles_to_direction(events.prediction)
    second = coordinates.angles_to_direction(events.truth)
    # The chord keeps its precision at small angles, where arccos of the dot product has none.
    chord = np.sqrt(np.square(first - second).sum(axis=1)) / 2
    angle: FloatArray = np.degrees(2 * np.arcsin(np.clip(chord, 0, 1)))
    return angle


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)


def _named(quantity: Quantity, label: str) -> Quantity:
    return Quantity(quantity.values, label, quantity.unit)


_PAGES: dict[str, Callable[[Comparison], list[Panel]]] = {
    "angle": _angle,
    "energy": _energy,
    "timing": _timing,
    "uvwFI": _position,
}
