"""Events whose readings are far beyond what any network takes: more than a few of them stop a run.

A file in another unit beside sound ones: the first batch may be half of either, and what events do to the loss says
nothing of their unit.

Axes: B events, S sensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import torch

from xectool.config.document import CONFIG_FILE
from xectool.config.input_limits import OUT_OF_REACH
from xectool.data.batch import EventBatch
from xectool.errors import DataUnusable, counted, in_shell
from xectool.models.normalize import Normalizer
from xectool.training.guards.inputs import CHANNELS
from xectool.training.guards.report import Reporter
from xectool.training.healing.implausible import FAR_SENSORS
from xectool.training.stepping.parts import RunParts

Key = TypeVar("Key", int, str)
MOST_FILES: Final = 3  # that are named
MEANING: Final = "they are in another unit"


class EventsInReach:
    """Counts the events of each training file, and those of them that are out of reach.

    Args:
        parts: What is trained.
        reporter: Hears of it, once.
    """

    def __init__(self, parts: RunParts, reporter: Reporter) -> None:
        self.parts = parts
        self.reporter = reporter
        self.met = False
        self._seen, self._far, self._channels = Counter[int](), Counter[int](), Counter[str]()
        self._told = False

    def add(self, batch: EventBatch, normalizer: Normalizer, usual: bool) -> None:
        """Count the events of a batch; those of a ``usual`` one are within reach."""
        files = batch.file_index.tolist()
        self._seen.update(files)
        for row, channel in () if usual else out_of_reach(batch, normalizer):
            self._far[files[row]] += 1
            self._channels[channel] += 1
            self.met = True

    def require(self) -> None:
        """Stop where more events than a run has a right to are out of reach, or tell of it; called on all ranks.

        Raises:
            DataUnusable: There are more, and ``guards.on_input_scale`` is ``stop``.
        """
        self.met = False
        of_ranks = self.parts.ranks.gather((dict(self._seen), dict(self._far), dict(self._channels)))
        seen, far = _sum([rank[0] for rank in of_ranks]), _sum([rank[1] for rank in of_ranks])
        channels = _sum([rank[2] for rank in of_ranks])
        if self._told or far.total() <= self.parts.quarantine.few:
            return
        self._told, stops = True, self.parts.config.guards.on_input_scale == "stop"
        files = self.parts.train_loader.source.files
        odd = [index for index, _ in far.most_common(MOST_FILES)]
        shares = ", ".join(f"{far[index]} of the {seen[index]} read so far of {files[index].name}" for index in odd)
        channel = channels.most_common(1)[0][0]
        problem = (
            f"{counted(far.total(), 'event')} of {seen.total()} have {'times' if channel == 'time' else 'photons'} "
            f"beyond {OUT_OF_REACH:g} in network units (0 to 3 is usual), more than single bad events: {shares}"
        )
        self.reporter.event(
            "files_differ", problem, say=not stops, files=[files[index].name for index in odd], meaning=MEANING
        )
        if stops:
            named = " ".join(in_shell(files[index].name) for index in odd)
            raise DataUnusable(
                f"{problem}: {MEANING}",
                where=f"data.train_path, normalization; step {self.reporter.step}",
                fix=f"xectool check-data {named} --config {in_shell(self.reporter.writer.run_dir / CONFIG_FILE)}   "
                "# or, to train all the same: --set guards.on_input_scale=warn",
                code="XT-INPUT-SCALE",
            )


def out_of_reach(batch: EventBatch, normalizer: Normalizer) -> Iterator[tuple[int, str]]:
    """Yield row and channel of each event of which a fifth of the readings of a channel are beyond `OUT_OF_REACH`.

    Single sensors are no matter of units; readings that do not exist or are not finite have guards of their own.
    """
    with torch.no_grad():
        values, valid = normalizer.normalize(batch.npho, batch.time)
    valid = valid & torch.isfinite(values)
    far = (valid & (values.abs() >= OUT_OF_REACH)).sum(dim=1) > FAR_SENSORS * valid.sum(dim=1)
    for row in far.any(dim=1).nonzero().flatten().tolist():
        yield row, CHANNELS[int(far[row].nonzero()[-1])]


def _sum(found: Sequence[dict[Key, int]]) -> Counter[Key]:
    total = Counter[Key]()
    for counts in found:
        total.update(counts)
    return total
