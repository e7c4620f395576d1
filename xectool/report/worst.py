"""The events whose predictions are furthest off, with the sensors they were made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xectool.config.tasks import TASK_UNITS
from xectool.errors import event_named
from xectool.report.displays import Display
from xectool.report.predictions import PredictionFile, TaskPredictions
from xectool.report.statistics import contained_width
from xectool.rootio.reader import EventFile


@dataclass(frozen=True)
class SensorFiles:
    """Where the sensor values of predicted events lie.

    Attributes:
        paths: Input files in the order of ``file_index``; ``file.root:tree`` names another tree.
        tree: Tree of the files that name none.
        npho_branch: Photons.
        time_branch: Times, s.
    """

    paths: Sequence[str]
    tree: str = "tree"
    npho_branch: str = "npho"
    time_branch: str = "relative_time"

    def read(self, file_index: int, entry: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return npho and time of one event, each of shape (S,).

        Raises:
            DataFileError: The file cannot be read.
        """
        with EventFile(self.paths[file_index], self.tree) as file:
            npho, time = (
                file.read_column(branch, entry, entry + 1).ravel().astype(np.float64)
                for branch in (self.npho_branch, self.time_branch)
            )
        return npho, time


def worst_rows(tasks: Sequence[TaskPredictions], count: int) -> list[int]:
    """Return the entries with the largest error, worst first.

    The error of a task is its residual in units of the residuals' own 68 % width, so that no task's unit dominates; the
    largest over tasks and components counts.

    Args:
        tasks: Tasks with at least one event each.
        count: How many.
    """
    errors: dict[int, float] = {}
    for events in tasks:
        size = np.abs(events.residual)
        widths = np.array([contained_width(column) for column in size.T])
        relative = np.divide(size, widths, out=np.zeros_like(size), where=widths > 0).max(axis=1)
        for row, error in zip(events.rows.tolist(), relative.tolist(), strict=True):
            errors[row] = max(errors.get(row, 0.0), error)
    return sorted(errors, key=lambda row: (-errors[row], row))[:count]


def display_events(
    file: PredictionFile, rows: Sequence[int], tasks: Sequence[TaskPredictions], sources: SensorFiles
) -> Iterator[Display]:
    """Yield what the displays of some entries show.

    Args:
        file: The prediction file.
        rows: Its entries to display.
        tasks: Tasks whose predictions are written into the title.
        sources: Where the sensor values lie.

    Raises:
        DataFileError: A file of the sources cannot be read.
    """
    identity = file.identity() if rows else {}
    for row in rows:
        who = {name: int(values[row]) for name, values in identity.items()}
        npho, time = sources.read(who["file_index"], who["entry"])
        lines, marks = _comparison(row, tasks)
        yield Display(npho, time, event_named(who["run"], who["event"]), tuple(lines), marks)


def _comparison(row: int, tasks: Sequence[TaskPredictions]) -> tuple[list[str], dict[str, tuple[float, float]]]:
    lines, marks = [], {}
    for events in tasks:
        place = int(np.searchsorted(events.rows, row))
        if place < len(events.rows) and events.rows[place] == row:
            truth, prediction = events.truth[place], events.prediction[place]
            unit, factor = _DISPLAY_UNITS.get(events.task, (TASK_UNITS.get(events.task, ""), 1.0))
            values = f"true {_numbers(factor * truth)}, predicted {_numbers(factor * prediction)} {unit}"
            lines.append(f"{events.task}: {values}")
            if events.task == "uvwFI":
                marks = {"true": (truth[0], truth[1]), "predicted": (prediction[0], prediction[1])}
    return lines, marks


_DISPLAY_UNITS = {"energy": ("MeV", 1e3), "timing": ("ns", 1e9)}


def _numbers(values: npt.NDArray[np.float64]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
