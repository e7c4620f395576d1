"""All plots of a sensor prediction file: residuals, resolution of each face, resolution against signal, displays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter

from xectool.detector import faces
from xectool.report.sensor_displays import masked_events, write_masked_event
from xectool.report.sensor_residuals import (
    PULL,
    RELATIVE,
    SIGNAL_EDGES,
    TIME,
    ResidualAxis,
    SensorResiduals,
    bias,
    read_residuals,
    width,
)
from xectool.report.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PANEL_SIZE_IN,
    PURPLE,
    RED,
    VIOLET,
    house_style,
    new_figure,
    save,
    say,
    say_nothing_to_show,
)
from xectool.report.worst import SensorFiles
from xectool.report.written import Written

FACE_COLORS = dict(zip(faces.FACES, (BLUE, ORANGE, RED, PURPLE, GREY, VIOLET), strict=True))
NUM_DISPLAYS = 3
SHOWN_SHARE, SHOWN_BINS = 0.999, 60
Statistic = Callable[[np.ndarray, float], float]


def write_sensor_plots(
    predictions: Path, out_dir: Path, *, sources: SensorFiles | None = None, num_displays: int = NUM_DISPLAYS
) -> Written:
    """Write ``sensors_npho``, ``sensors_time`` and ``masked_events/event_NN`` and ``event_NN_time``, as PDF and PNG.

    Args:
        predictions: A sensor prediction file.
        out_dir: Folder for the plots, made if needed.
        sources: The files that were predicted; without them there are no event displays.
        num_displays: How many events to display.

    Returns:
        The files written, and notes on what could not be drawn.

    Raises:
        DataFileError: The prediction file cannot be read.
    """
    residuals, written = read_residuals(predictions), Written()
    if residuals.num_nonfinite:
        written.notes.append(f"{residuals.num_nonfinite} of {residuals.num_rows} predictions are not finite")
    for channel, shape, against_signal in (("npho", PULL, RELATIVE), ("time", TIME, TIME)):
        if not residuals.counts[shape.name].any():
            written.notes.append(f"{channel}: no plots, no hidden sensor has both a prediction and a truth")
            continue
        with house_style():
            written.files.extend(_write_page(residuals, shape, against_signal, out_dir, f"sensors_{channel}"))
    if sources is not None:
        for rank, event in enumerate(masked_events(predictions, sources, num_displays), start=1):
            written.files.extend(write_masked_event(event, out_dir / "masked_events", f"event_{rank:02d}"))
    return written


def _write_page(
    residuals: SensorResiduals, shape: ResidualAxis, against_signal: ResidualAxis, out_dir: Path, stem: str
) -> list[Path]:
    figure = new_figure(2 * PANEL_SIZE_IN[0] + 1.0, 2 * PANEL_SIZE_IN[1] + 0.8)
    entries = int(residuals.counts[shape.name].sum())
    figure.suptitle(f"{entries} hidden sensors", x=0.01, ha="left", fontsize=13, fontweight="bold")
    (distribution, by_face), (resolution, offset) = figure.subplots(2, 2)
    _draw_distribution(distribution, residuals, shape)
    _draw_faces(by_face, residuals, shape)
    _draw_against_signal(resolution, residuals, against_signal, width)
    _draw_against_signal(offset, residuals, against_signal, bias)
    return save(figure, out_dir, stem)


def _draw_distribution(axes: Axes, residuals: SensorResiduals, shape: ResidualAxis) -> None:
    """Draw the residuals of each face over the range that holds nearly all; how many lie beyond is stated."""
    everything = residuals.counts[shape.name].sum(axis=(0, 1))
    inside, rebin = _shown_bins(everything)
    edges = shape.edges[inside.start : inside.stop + 1 : rebin]
    for number, (face, color) in enumerate(FACE_COLORS.items()):
        counts = residuals.counts[shape.name][number].sum(axis=0)
        density = counts[inside].reshape(-1, rebin).sum(axis=1) / max(counts.sum(), 1) / np.diff(edges)
        if density.any():
            axes.stairs(density, edges, color=color, label=face)
    axes.set(yscale="log", xlabel=shape.label, ylabel="share of sensors per unit")
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top * (top / bottom) ** 0.25)  # room for the legend
    beyond = 1 - everything[inside].sum() / max(everything.sum(), 1)
    say(axes, f"beyond $\\pm{edges[-1]:g}$:\n{100 * beyond:.2g} %", "upper right")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(ncols=3, loc="upper left", columnspacing=1.0, handlelength=1.2)


def _shown_bins(counts: npt.NDArray[np.int64]) -> tuple[slice, int]:
    """Return which bins of a histogram (K,) to draw, symmetric about zero, and how many to draw as one.

    The outermost bins hold everything beyond the axis and are never drawn.
    """
    half = len(counts) // 2
    folded = (counts[half:] + counts[:half][::-1])[:-1].cumsum()
    needed = int(np.searchsorted(folded, SHOWN_SHARE * folded[-1])) + 1
    rebin = -(-needed // SHOWN_BINS)
    reach = min(rebin * SHOWN_BINS, (half - 1) // rebin * rebin)
    return slice(half - reach, half + reach), rebin


def _draw_faces(axes: Axes, residuals: SensorResiduals, shape: ResidualAxis) -> None:
    """Draw width and median of each face and of all sensors."""
    counts = residuals.counts[shape.name].sum(axis=1)
    tables = dict(zip([*faces.FACES, "all"], [*counts, counts.sum(axis=0)], strict=True))
    found = {name: (width(table, shape.limit), bias(table, shape.limit)) for name, table in tables.items()}
    shown = {name: values for name, values in found.items() if np.isfinite(values).all()}
    if not shown:
        say_nothing_to_show(axes, "fewer than 20 sensors on every face, or all beyond the axis")
        return
    names, (widths, medians) = list(shown), np.array(list(shown.values())).T
    bars = axes.bar(names, widths, color=[FACE_COLORS.get(name, INK) for name in names], label="68 % width")
    axes.bar_label(bars, [f"{value:.3g}" for value in widths], fontsize=9.5, padding=2)
    axes.plot(names, medians, "D", color="white", markeredgecolor=INK, markersize=5, label="median")
    axes.axhline(0.0, color=INK, linewidth=0.8)
    axes.set(ylabel=shape.label, ylim=(min(1.3 * medians.min(), 0.0), 1.3 * max(widths.max(), medians.max())))
    axes.tick_params(axis="x", which="both", bottom=False, top=False)
    axes.legend(loc="upper right", ncols=2)


def number_log_axis(axis: Axis) -> None:
    """Write plain numbers along a logarithmic axis: many where it spans less than a decade, and none over another."""

    def label(value: float, _: int | None) -> str:
        low, high = axis.get_view_interval()
        decades = np.log10(high / low)
        first = "1235" if decades < 2 else "125" if decades < 3 else "1"
        return f"{value:g}" if decades < 0.7 or f"{value:e}"[0] in first else ""

    axis.set_major_formatter(FuncFormatter(label))
    axis.set_minor_formatter(FuncFormatter(label))


def _draw_against_signal(axes: Axes, residuals: SensorResiduals, shape: ResidualAxis, statistic: Statistic) -> None:
    """Draw a statistic of each face in bins of the true photons."""
    centre = np.sqrt(SIGNAL_EDGES[1:] * SIGNAL_EDGES[:-1])
    drawn = False
    for number, (face, color) in enumerate(FACE_COLORS.items()):
        values = np.array([statistic(table, shape.limit) for table in residuals.counts[shape.name][number]])
        known = np.isfinite(values)
        if known.any():
            axes.plot(centre[known], values[known], "o-", color=color, label=face)
            drawn = True
    if not drawn:
        say_nothing_to_show(axes, "fewer than 20 sensors in every bin, or all beyond the axis")
        return
    axes.set(xscale="log", xlabel="true photons of the sensor")
    number_log_axis(axes.xaxis)
    if statistic is width:
        axes.set(yscale="log", ylabel=f"68 % width, {shape.label}")
        number_log_axis(axes.yaxis)
    else:
        axes.axhline(0.0, color=INK, linewidth=0.8)
        axes.set(ylabel=f"median, {shape.label}")
    axes.legend(ncols=2)
