"""All plots of a prediction file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from xectool.errors import counted
from xectool.report.displays import write_display
from xectool.report.pages import Comparison, Panel, panels, symbols
from xectool.report.panels import Quantity
from xectool.report.predictions import PredictionFile, TaskPredictions
from xectool.report.style import INK, PANEL_SIZE_IN, grid_shape, house_style, new_figure, save
from xectool.report.worst import SensorFiles, display_events, worst_rows
from xectool.report.written import Written

NUM_WORST = 5


def write_plots(
    predictions: Path, out_dir: Path, *, sources: SensorFiles | None = None, num_worst: int = NUM_WORST
) -> Written:
    """Write ``resolution_<task>.pdf`` and ``.png``, and displays of the worst events.

    Args:
        predictions: A prediction file.
        out_dir: Folder for the plots, made if needed.
        sources: The files that were predicted; without them there are no event displays.
        num_worst: How many events to display.

    Returns:
        The files written, and notes on what could not be drawn.

    Raises:
        DataFileError: The prediction file cannot be read.
    """
    written = Written()
    with PredictionFile(predictions) as file, house_style():
        found = [file.task(task) for task in file.tasks]
        for task, events in zip(file.tasks, found, strict=True):
            _write_task(task, events, file, out_dir, written)
        if sources is not None:
            usable = [events for events in found if events is not None and len(events.rows)]
            rows = worst_rows(usable, num_worst)
            for rank, display in enumerate(display_events(file, rows, usable, sources), start=1):
                written.files.extend(write_display(display, out_dir / "worst_events", f"worst_{rank:02d}"))
    return written


def _write_task(
    task: str, events: TaskPredictions | None, file: PredictionFile, out_dir: Path, written: Written
) -> None:
    if events is None:
        written.notes.append(f"{task}: no plots, the file has no truth_{task} of the same width")
        return
    if events.num_nonfinite:
        written.notes.append(f"{task}: {events.num_nonfinite} of {file.num_events} predictions are not finite")
    if not len(events.rows):
        written.notes.append(f"{task}: no plots, no event has a known truth and a finite prediction")
        return
    title = f"{task}: {counted(len(events.rows), 'event')}"
    if events.num_nonfinite:
        title += f", {events.num_nonfinite} not finite"
    drawn = panels(Comparison(events, _against(file, events)))
    written.files.extend(save(_page(drawn, title, symbols(task)), out_dir, f"resolution_{task}"))


def _page(drawn: list[Panel], title: str, legend: str) -> Figure:
    rows, columns = grid_shape(len(drawn))
    figure = new_figure(PANEL_SIZE_IN[0] * columns, PANEL_SIZE_IN[1] * rows + 0.9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    figure.supxlabel(legend, x=0.01, ha="left", fontsize=9, color=INK, linespacing=1.5)
    for index, panel in enumerate(drawn, start=1):
        panel(figure.add_subplot(rows, columns, index))
    return figure


def _against(file: PredictionFile, events: TaskPredictions) -> tuple[Quantity, ...]:
    """Return the true energy and position of the events, as far as any of them is known."""
    found = []
    energy, position = file.truth("energy"), file.truth("uvwFI")
    if energy is not None:
        found.append(Quantity(1e3 * energy[events.rows, 0], "true $E$", "MeV"))
    if position is not None:
        found += [Quantity(position[events.rows, i], f"true ${axis}$", "cm") for i, axis in enumerate("uvw")]
    return tuple(quantity for quantity in found if np.isfinite(quantity.values).any())
