"""The guards of a run, in the order in which they look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from xectool.config.guard_catalogue import BY_NAME
from xectool.data.batch import EventBatch
from xectool.training.guards.base import Guard, Notice, StepFacts
from xectool.training.guards.compile_time import CompileTime
from xectool.training.guards.inputs import InputScale
from xectool.training.guards.learning import Collapsed, NoLearning, ZeroGradient
from xectool.training.guards.loop import DataWait, LazyState, MetricGraph, RankHashes, RankSteps
from xectool.training.guards.memory import HostMemory, MemoryGrowth
from xectool.training.guards.numbers import AmpScale, GradientNorm, LearningRateSanity
from xectool.training.guards.report import Reporter
from xectool.training.stepping.evaluate import Predicted
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress

KINDS: Final[tuple[type[Guard], ...]] = (
    RankHashes,
    InputScale,
    LazyState,
    CompileTime,
    AmpScale,
    ZeroGradient,
    LearningRateSanity,
    GradientNorm,
    NoLearning,
    Collapsed,
    DataWait,
    RankSteps,
    MetricGraph,
    MemoryGrowth,
    HostMemory,
)


class GuardSet:
    """Lets every guard that is on look at each moment of a run.

    Args:
        parts: What is trained.
        reporter: Hears what they have to say.
    """

    def __init__(self, parts: RunParts, reporter: Reporter) -> None:
        self.reporter = reporter
        self.guards = [kind(parts) for kind in KINDS if parts.config.guards.active(kind.code)]
        self._before_step = self._looking("before_step")
        self._after_step = self._looking("after_step")
        self._disabled = parts.config.guards.disable

    def begin(self, progress: Progress) -> None:
        """Look before the first step of this attempt, and say which guards are off."""
        if self._disabled:
            names = ", ".join(f"{code} ({BY_NAME[code].name})" for code in self._disabled)
            self.reporter.observer.message(f"guards.disable: off are {names}")
        for guard in self.guards:
            self._report(guard.begin(progress))

    def before_step(self, progress: Progress, window: Sequence[EventBatch]) -> None:
        """Look at the events of the next step."""
        for guard in self._before_step:
            self._report(guard.before_step(progress, window))

    def after_step(self, progress: Progress, step: StepFacts) -> None:
        """Look at a step that counts."""
        for guard in self._after_step:
            self._report(guard.after_step(progress, step))
        self._after_step = [guard for guard in self._after_step if not guard.done]

    def watch(self, predicted: Iterable[Predicted]) -> Iterable[Predicted]:
        """Return the stream of a validation, looked at as it passes."""
        for guard in self.guards:
            predicted = guard.watch(predicted)
        return predicted

    def after_validation(self, progress: Progress, metrics: dict[str, Any]) -> None:
        """Look at the metrics of a validation."""
        for guard in self.guards:
            self._report(guard.after_validation(progress, metrics))

    def after_epoch(self, progress: Progress, metrics: dict[str, Any]) -> None:
        """Look at the metrics of an epoch."""
        for guard in self.guards:
            self._report(guard.after_epoch(progress, metrics))

    def _looking(self, moment: str) -> list[Guard]:
        """Return the guards that look at a moment of every step; the others cost nothing there."""
        return [guard for guard in self.guards if getattr(type(guard), moment) is not getattr(Guard, moment)]

    def _report(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            if notice.kind:
                self.reporter.event(notice.kind, notice.message, say=notice.say, code=notice.code, **notice.data)
            elif notice.message:
                self.reporter.observer.message(notice.message)
