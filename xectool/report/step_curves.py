"""What the steps of a run looked like: loss, gradient norm, rate, and where their time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xectool.report.style import (
    BLUE,
    BROWN,
    CYAN,
    GREY,
    ORANGE,
    PANEL_SIZE_IN,
    PURPLE,
    RED,
    VIOLET,
    house_style,
    new_figure,
    say_nothing_to_show,
)

FloatArray = npt.NDArray[np.float64]

MOST_POINTS = 1500
_COLORS = (RED, CYAN, BLUE, PURPLE, ORANGE, BROWN, VIOLET, GREY)  # one a part, in the order they are given


@dataclass(frozen=True)
class StepCourse:
    """Columns of the steps of a run, each of shape (n,).

    Attributes:
        step: Number of the step.
        loss: Its loss; NaN where it was not finite.
        grad_norm: Norm of all gradients before clipping.
        lr: Learning rate.
        seconds: Seconds of each part of a step by its name, such as ``forward``.
        incidents: Steps with an incident.
    """

    step: FloatArray
    loss: FloatArray
    grad_norm: FloatArray
    lr: FloatArray
    seconds: Mapping[str, FloatArray]
    incidents: Sequence[int] = ()


def draw_steps(course: StepCourse) -> Figure:
    """Return a page of four panels."""
    width, height = PANEL_SIZE_IN
    with house_style():
        figure = new_figure(2 * width, 2 * height)
        loss, norm, lr, time = figure.subplots(2, 2).flat
        _curve(loss, course.step, course.loss, "loss", BLUE)
        _curve(norm, course.step, course.grad_norm, "gradient norm before clipping", ORANGE)
        _curve(lr, course.step, course.lr, "learning rate", RED)
        _shares(time, course)
        for axes in (loss, norm):
            _mark_incidents(axes, course.incidents)
        figure.draw_without_rendering()
    return figure


def _curve(axes: Axes, step: FloatArray, values: FloatArray, name: str, color: str) -> None:
    """Draw the range of a quantity in bins of steps as a band, and its median as a line."""
    axes.set(xlabel="step", ylabel=name)
    if not np.isfinite(values).any():
        say_nothing_to_show(axes, f"no finite {name}")
        return
    parts = np.array_split(np.arange(len(step)), min(MOST_POINTS, len(step)))
    finite = [part for part in parts if np.isfinite(values[part]).any()]
    x = [float(step[part].mean()) for part in finite]
    low, mid, high = ([float(look(values[part])) for part in finite] for look in (np.nanmin, np.nanmedian, np.nanmax))
    axes.fill_between(x, low, high, color=color, alpha=0.25, linewidth=0)
    axes.plot(x, mid, color=color)
    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive) and np.nanmin(values) > 0 and positive.max() > 20 * positive.min():
        axes.set_yscale("log")


def _mark_incidents(axes: Axes, incidents: Sequence[int]) -> None:
    for step in incidents:
        axes.axvline(step, color=RED, linewidth=1.0, linestyle=":")
    if incidents:
        axes.set_title("red: incidents", loc="right", fontsize=9.5)


def _shares(axes: Axes, course: StepCourse) -> None:
    """Draw where the time of the steps went, in up to 60 bins of steps, as stacked shares."""
    axes.set(xlabel="step", ylabel="share of the time", ylim=(0, 1))
    parts = np.array_split(np.arange(len(course.step)), min(60, len(course.step)))
    sums = {
        name: np.array([float(np.nansum(values[part])) for part in parts]) for name, values in course.seconds.items()
    }
    total = np.sum(list(sums.values()), axis=0) if sums else np.zeros(0)
    if not total.any():
        say_nothing_to_show(axes, "no times recorded")
        return
    shares = [np.divide(values, total, out=np.zeros_like(values), where=total > 0) for values in sums.values()]
    x = [float(course.step[part].mean()) for part in parts]
    axes.stackplot(x, shares, labels=list(sums), colors=_COLORS, linewidth=0)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=8)  # above the shares
