"""All plots of a sensor prediction file: residuals, resolution of each face, resolution against signal, displays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from xectool.detector import faces
from xectool.report.plots import Written
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

FACE_COLORS = dict(zip(faces.FACES, (BLUE, ORANGE, RED, PURPLE, GREY, VIOLET), strict=True))
NUM_DISPLAYS = 3
_REBIN = 10
Statistic = Callable[[np.ndarray, float], float]


def write_sensor_plots(
    predictions: Path, out_dir: Path, *, sources: SensorFiles | None = None, num_displays: int = NUM_DISPLAYS
) -> Written:
    """Write ``sensors_npho``, ``sensors_time`` and ``masked_events/event_NN``, each as PDF and PNG.

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
    _draw_against_signal(resolution, residuals, against_signal, width, "68 % width of ")
    _draw_against_signal(offset, residuals, against_signal, bias, "median of ")
    return save(figure, out_dir, stem)


def _draw_distribution(axes: Axes, residuals: SensorResiduals, shape: ResidualAxis) -> None:
    edges = shape.edges[::_REBIN]
    for number, (face, color) in enumerate(FACE_COLORS.items()):
        counts = residuals.counts[shape.name][number].sum(axis=0).reshape(-1, _REBIN).sum(axis=1)
        if counts.any():
            axes.stairs(counts / counts.sum() / np.diff(edges), edges, color=color, label=face)
    axes.set(yscale="log", xlabel=shape.label, ylabel="share of sensors per unit")
    axes.legend(ncols=2)


def _draw_faces(axes: Axes, residuals: SensorResiduals, shape: ResidualAxis) -> None:
    counts = residuals.counts[shape.name].sum(axis=1)
    names = [*faces.FACES, "all"]
    tables = [*counts, counts.sum(axis=0)]
    widths = [width(table, shape.limit) for table in tables]
    shown = [(name, value) for name, value in zip(names, widths, strict=True) if np.isfinite(value)]
    if not shown:
        say_nothing_to_show(axes, "fewer than 20 sensors on every face")
        return
    axes.bar(
        [name for name, _ in shown],
        [value for _, value in shown],
        color=[FACE_COLORS.get(n, "black") for n, _ in shown],
    )
    axes.set(ylabel=f"68 % width of {shape.label}")
    axes.tick_params(axis="x", which="minor", bottom=False, top=False)
    biases = "\n".join(
        f"{name}: median {bias(table, shape.limit):+.2g}" for name, table in zip(names, tables, strict=True)
    )
    say(axes, biases, "upper right")


def _draw_against_signal(
    axes: Axes, residuals: SensorResiduals, shape: ResidualAxis, statistic: Statistic, what: str
) -> None:
    centre = np.sqrt(SIGNAL_EDGES[1:] * SIGNAL_EDGES[:-1])
    drawn = False
    for number, (face, color) in enumerate(FACE_COLORS.items()):
        values = np.array([statistic(table, shape.limit) for table in residuals.counts[shape.name][number]])
        known = np.isfinite(values)
        if known.any():
            axes.plot(centre[known], values[known], "o-", color=color, label=face)
            drawn = True
    if not drawn:
        say_nothing_to_show(axes, "fewer than 20 sensors in every bin")
        return
    axes.set(xscale="log", xlabel="true photons of the sensor", ylabel=f"{what}{shape.label}")
    axes.legend(ncols=2)
