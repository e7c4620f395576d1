"""Files whose light is not where the geometry or the truth of the position says: once each, by their first events.

Axes: B events, S sensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.data.batch import EventBatch
from xectool.detector.light_pattern import (
    TRUTH_OF_PLACES,
    doubtful,
    light_of_one,
    light_places,
    misplaced,
    truth_elsewhere,
)
from xectool.detector.sensor_rows import displaced_rows

Array = npt.NDArray[Any]
LOOKS: Final = (16, 24, 36, 64)  # events of a file; more than the first where so few may disagree by chance
MOST_FILES: Final = 64  # those that come first; a fault of one production is in many
TRUTH_EVENTS: Final = 48  # of all files together


@dataclass(frozen=True)
class Misfit:
    """Light at another place: a message, and the file it is of, or the task whose truth of all files it is.

    ``copied`` says that it is no other place, but always the same.
    """

    message: str
    file_index: int | None = None
    task: str = ""
    copied: bool = False


@dataclass
class LightPlaces:
    """Where the light of the first events of each file lies; it is looked at when there are enough of them."""

    _rows: dict[int, list[Array]] = field(default_factory=dict)
    _judged: set[int] = field(default_factory=set)
    _doubts: dict[int, int] = field(default_factory=dict)
    _truth: list[tuple[Array, dict[str, Array]]] = field(default_factory=list)
    _truth_judged: bool = False
    _truth_elsewhere: bool = False

    @property
    def truth_judged(self) -> bool:
        """Whether enough events of this epoch have shown their truth."""
        return self._truth_judged

    def next_epoch(self) -> None:
        """Ask for the truth again, unless it was found elsewhere: what simulates or serves events may change."""
        self._truth_judged = self._truth_elsewhere
        self._truth.clear()
        self._doubts.clear()
        self._rows.clear()  # the same few events, served again, are no more of them

    def look(self, window: Sequence[EventBatch]) -> Iterator[Misfit]:
        """Take events of files that are not judged yet; yield what does not fit.

        Args:
            window: Batches of B events, photons of shape (B, S).
        """
        for batch in window:
            files = batch.file_index.tolist()
            wanted = [row for row, index in enumerate(files) if self._wants(index)]
            if not wanted:
                continue
            photons = batch.npho.numpy(force=True)[wanted]
            for row, readings in zip(wanted, photons, strict=True):
                if files[row] not in self._judged:
                    self._rows.setdefault(files[row], []).append(readings)
            yield from self._files()
            yield from self._positions(batch, wanted, photons)

    def _wants(self, index: int) -> bool:
        if not self._truth_judged:
            return True
        return index not in self._judged and (index in self._rows or len(self._rows) + len(self._judged) < MOST_FILES)

    def _files(self) -> Iterator[Misfit]:
        for index in [index for index, rows in self._rows.items() if len(rows) >= LOOKS[self._doubts.get(index, 0)]]:
            photons = np.stack(self._rows[index])
            places = light_places(photons)
            if doubtful(places) and len(photons) < LOOKS[-1]:
                self._doubts[index] = bisect_right(LOOKS, len(photons))
                continue
            del self._rows[index]
            self._judged.add(index)
            if message := light_of_one(places):
                yield Misfit(message, index, copied=True)
            elif message := misplaced(places) or displaced_rows(photons):
                yield Misfit(message, index)

    def _positions(self, batch: EventBatch, wanted: list[int], photons: Array) -> Iterator[Misfit]:
        told = {
            task: truth.numpy(force=True)[wanted] for task, truth in batch.targets.items() if task in TRUTH_OF_PLACES
        }
        self._truth_judged |= not told
        if self._truth_judged:
            return
        self._truth.append((photons, told))
        if self._num_told() >= TRUTH_EVENTS:
            yield from self._judge_truth()

    def rest(self) -> Iterator[Misfit]:
        """Judge the truth of what has been served where that were few events; an epoch or a validation is over."""
        if not self._truth_judged and self._num_told() >= LOOKS[0]:
            yield from self._judge_truth()

    def _num_told(self) -> int:
        return sum(len(photons) for photons, _ in self._truth)

    def _judge_truth(self) -> Iterator[Misfit]:
        self._truth_judged = True
        places = light_places(np.concatenate([photons for photons, _ in self._truth]))
        truths = {task: np.concatenate([truth[task] for _, truth in self._truth]) for task in self._truth[0][1]}
        self._truth.clear()
        for task, truth in truths.items():
            if message := truth_elsewhere(places, truth, task):
                self._truth_elsewhere = True
                yield Misfit(message, task=task)
