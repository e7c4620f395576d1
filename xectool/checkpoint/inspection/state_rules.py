"""Rules on what a resume needs beyond the weights: optimizer, schedule, gradient scaler."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from xectool.checkpoint.inspection.facts import Inspected
from xectool.checkpoint.inspection.fitness import KINDS
from xectool.checkpoint.inspection.layout import XECTOOL
from xectool.checkpoint.inspection.training_state import resume_gaps, scheduler_problem
from xectool.config.root import base_of
from xectool.config.serialize import starting_from
from xectool.findings import Finding
from xectool.rules import Rule

_SHOWN: Final = 12
_HALVES: Final = frozenset(("state", "param_groups"))


class OptimizerFits(Rule[Inspected]):
    """A state of another shape loads silently and fails in the first step."""

    code = "K10"
    title = "The optimizer state belongs to these weights"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error for each contradiction."""
        state = facts.optimizer
        fix = "resume with the program that wrote it, from another of its checkpoints; the weights are not concerned"
        if facts.layout.is_ours:
            fix = f"xectool train CONFIG {starting_from(facts.contents.path)}"
        for problem in (state.problems if state else ())[:_SHOWN]:
            yield self.error(problem.where, problem.what, fix)
        for first in (state.strangers if state else ())[:1]:
            more = f" ({len(state.strangers)} such states)" if state and len(state.strangers) > 1 else ""
            told = f"{first.what}{more}: its tensor is not in the file, perhaps a weight of the loss"
            yield self.info(first.where, told, "save that tensor beside the weights, a resume needs it")
        kept = facts.layout.training.get("optimizer")
        if state is None and kept and (facts.layout.is_ours or _is_half(kept)):
            yield self.error("optimizer", f"the optimizer state lacks {_lacking(kept)}", fix)


class ResumeIsWhole(Rule[Inspected]):
    """A run that goes on without its random states or its place draws other events than it would have."""

    code = "K13"
    title = "All that a resume needs is there"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield a warning that names what a checkpoint of ours with a training state lacks."""
        layout = facts.layout
        trains = layout.origin == XECTOOL and base_of(layout.kind) in KINDS and layout.training
        gaps = resume_gaps(layout) if trains else []
        if gaps:
            fix = f"xectool train CONFIG {starting_from(facts.contents.path)}"
            yield self.warning("training", f"no run can go on from it as it was: {'; '.join(gaps[:4])}", fix)


class ScheduleFits(Rule[Inspected]):
    """A scheduler beyond its end raises the rate again."""

    code = "K11"
    title = "The schedule stands where the epoch does"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield a warning for a schedule beyond its end."""
        problem = scheduler_problem(facts.layout)
        if problem:
            yield self.warning("scheduler", problem, "start a new run from the weights: checkpoint.init_from")


class ScalerIsSound(Rule[Inspected]):
    """A gradient scaler halves its scale at every overflow."""

    code = "K12"
    title = "The gradient scaler is sound"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error for a scale that cannot be, a warning for one that overflows have used up."""
        state = facts.layout.training.get("scaler")
        scale = state.get("scale") if isinstance(state, Mapping) else None
        if not isinstance(scale, int | float):
            return
        fix = "train in bf16, whose range is that of float32: --set training.amp=bf16"
        if not math.isfinite(scale) or scale <= 0:
            yield self.error("scaler.scale", f"the scale of the gradients is {scale}", fix)
        elif scale < 1:
            yield self.warning("scaler.scale", f"the scale of the gradients fell to {scale:g}: fp16 overflows", fix)


def _is_half(kept: Any) -> bool:
    """Return whether something is an optimizer state without one of its halves; settings of one are no state."""
    return isinstance(kept, Mapping) and not _HALVES.isdisjoint(kept)


def _lacking(kept: Any) -> str:
    return " and ".join(sorted(_HALVES - (kept.keys() if isinstance(kept, Mapping) else set())))


STATE_RULES: tuple[Rule[Inspected], ...] = (OptimizerFits(), ResumeIsWhole(), ScheduleFits(), ScalerIsSound())
