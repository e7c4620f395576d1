"""What every guard is: it looks at a moment of the run and may have something to say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from xectool.data.batch import EventBatch
from xectool.training.stepping.evaluate import Predicted
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.stepping.step import StepResult


@dataclass(frozen=True)
class Notice:
    """What a guard has to say.

    Attributes:
        kind: Kind of the event in the record.
        data: Its fields.
        message: One sentence for the record and, unless ``say`` is False, for the user.
        say: Whether the user is told at once.
        code: Finding before the message, empty for none; that of the kind without.
    """

    kind: str
    data: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    say: bool = True
    code: str | None = None


@dataclass(frozen=True)
class StepFacts:
    """One step that counts.

    Attributes:
        window: Its events.
        result: What it did.
        wait_s: Seconds the loop waited for the events.
        step_s: Seconds of the whole step, waiting included.
    """

    window: Sequence[EventBatch]
    result: StepResult
    wait_s: float
    step_s: float


Notices = Iterator[Notice]


class Guard:
    """Abstract: one guard; every moment is silent unless a guard looks at it.

    Args:
        parts: What is trained.

    Attributes:
        code: ``G01`` to ``G32``, as in `xectool.config.guard_catalogue`.
        done: Whether it looks at no further step.
    """

    code: ClassVar[str]

    def __init__(self, parts: RunParts) -> None:
        self.parts = parts
        self.config = parts.config.guards
        self.done = False

    def begin(self, progress: Progress) -> Notices:
        """Look before the first step of this attempt."""
        return iter(())

    def before_step(self, progress: Progress, window: Sequence[EventBatch]) -> Notices:
        """Look at the events of the next step."""
        return iter(())

    def after_step(self, progress: Progress, step: StepFacts) -> Notices:
        """Look at a step that ``progress`` already counts."""
        return iter(())

    def watch(self, predicted: Iterable[Predicted]) -> Iterable[Predicted]:
        """Return the stream of a validation, looked at as it passes."""
        return predicted

    def after_validation(self, progress: Progress, metrics: dict[str, Any]) -> Notices:
        """Look at the metrics of a validation."""
        return iter(())

    def after_epoch(self, progress: Progress, metrics: dict[str, Any]) -> Notices:
        """Look at the metrics of an epoch, before its counters are reset."""
        return iter(())
