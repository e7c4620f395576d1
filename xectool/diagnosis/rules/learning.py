"""Runs in which nothing breaks and nothing is learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from xectool.diagnosis import fixes
from xectool.diagnosis.cases.plateau import (
    TRIVIAL_SHARE,
    TermLevel,
    enough_to_learn,
    no_step_size,
    still_falling,
    term_levels,
)
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.statistics import median
from xectool.diagnosis.gradient_bands import suggested_clip
from xectool.findings import Severity

DEAD_STEPS: Final = 20  # steps in a row with exactly no gradient; dropout of a whole block so often is no chance
ADAM_EPS: Final = 1e-8
CONSTANT: Final = 1e-4  # spread of predictions over that of the truth, far below what a young network gives
CLIPPED_MOST: Final = 0.5  # E.7
HEADS: Final = "heads."


class NoLearning(DiagnosisRule):
    """The loss stays at what the best constant prediction gives."""

    code = "XT-NO-LEARNING"
    title = "the loss stays at the trivial baseline"

    def unseen(self, evidence: Evidence) -> str:
        """Return that nothing was recorded to compare."""
        return "" if len(evidence.steps) else "no step was recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the loss with the baseline, and look at the rate and the gradient."""
        stuck, levels = self._frozen(evidence), term_levels(evidence)
        lines = [level.text() for level in levels]
        told = evidence.last("no_learning")
        if clipped_away(evidence):
            clip = evidence.setting("training.grad_clip")
            text = (
                f"training.grad_clip {clip} leaves less of the gradient than AdamW adds to it (1e-8): no weight moves"
            )
            fix = fixes.train_again(evidence, "training.grad_clip=1.0", name="clip")
            yield replace(self._cause(evidence, 0.95, text, lines), fix=fix)
            return
        if stuck:
            yield self._cause(evidence, 0.95, stuck, lines)
            return
        flat = [level for level in levels if level.trivial_reached]
        telling = flat if told is not None else [level for level in flat if level.tells_alone]
        # One term of several says little: a head may learn late, and the total still falls.
        if (levels and len(flat) < len(levels)) or still_falling(evidence):
            if telling:
                yield replace(self._cause(evidence, 0.5, _slow_text(telling), lines), severity=Severity.INFO)
        elif told is not None:
            text = told.message or "the loss stays at that of the best constant prediction"
            yield self._cause(evidence, 0.85, text, lines or _told_lines(told.data))
        elif telling and enough_to_learn(evidence):
            text = f"the loss is still at {TRIVIAL_SHARE:g} or more of what a constant prediction gives"
            yield self._cause(evidence, 0.8, text, lines)

    def _frozen(self, evidence: Evidence) -> str:
        tiny = no_step_size(evidence)
        if tiny:
            return tiny
        norms = evidence.steps["grad_norm"][evidence.steps.good_rows]
        if norms.size >= DEAD_STEPS and not np.any(norms[np.isfinite(norms)]) and np.isfinite(norms).any():
            return "every gradient is exactly zero: nothing that is trained reaches the loss"
        return ""

    def _cause(self, evidence: Evidence, confidence: float, problem: str, lines: list[str]) -> Cause:
        return Cause(self.code, confidence, problem, tuple(lines), other_lr(evidence), symptom="plateau")


class Collapsed(DiagnosisRule):
    """Predictions are nearly constant."""

    code = "XT-COLLAPSED"
    title = "predictions have collapsed to a constant"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the spread of the predictions is recorded only by validations."""
        return "" if evidence.epochs or evidence.of("collapsed") else "no validation has been recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report tasks whose predictions spread less than a hundredth of the truth."""
        event = evidence.last("collapsed")
        if event is None or no_step_size(evidence):
            return
        tasks = {name: values for name, values in (event.data.get("tasks") or {}).items() if isinstance(values, dict)}
        lines = [
            f"{name}: predictions spread {_of(values, 'pred_std')}, truth {_of(values, 'target_std')}"
            for name, values in tasks.items()
        ]
        sure = self._constant(tasks) or self._useless(evidence, tasks)
        yield Cause(
            code=self.code,
            confidence=0.88 if sure else 0.5,
            problem=f"predictions of {', '.join(tasks) or 'a task'} have collapsed to a constant",
            evidence=(*(lines or [event.message]), *(level.text() for level in term_levels(evidence))),
            fix=other_lr(evidence),
            severity=Severity.ERROR if sure else Severity.INFO,
            symptom="collapsed",
        )

    def _constant(self, tasks: Mapping[str, Mapping[str, Any]]) -> bool:
        """Return whether a prediction does not vary at all, which slow learning does not explain."""
        ratios = [number(values.get("pred_std")) / number(values.get("target_std")) for values in tasks.values()
                  if number(values.get("target_std")) > 0]  # fmt: skip
        return bool(ratios) and min(ratios) < CONSTANT

    def _useless(self, evidence: Evidence, tasks: Mapping[str, Any]) -> bool:
        """Return whether the losses agree: no better than a constant although there was time to learn."""
        known = term_levels(evidence)
        if not known:
            return enough_to_learn(evidence)
        if not (evidence.of("no_learning") or any(level.tells_alone for level in known)):
            return False
        levels = {level.term: level.trivial_reached for level in known}
        flat = any(levels.get(name, all(levels.values())) for name in tasks)
        return flat and enough_to_learn(evidence) and not still_falling(evidence)


class UntrainedHead(DiagnosisRule):
    """One head gets no gradient while others learn."""

    code = "XT-UNTRAINED-HEAD"
    title = "a head is not trained"

    def unseen(self, evidence: Evidence) -> str:
        """Return that gradients by block are not recorded in older runs."""
        known = evidence.steps.blocks or evidence.of("zero_gradient")
        return "" if known else "gradients by block were not recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Look for parameters and blocks of heads without gradient; a loss alone does not tell late from never."""
        if no_step_size(evidence):
            return
        named = [
            str(name)
            for event in evidence.of("zero_gradient")
            for name in event.data.get("parameters") or ()
            if HEADS in str(name)
        ]
        dead = dead_blocks(evidence)
        if named or dead:
            flat = [level.text() for level in term_levels(evidence) if level.trivial_reached]
            lost = list(dict.fromkeys([*named, *dead]))
            heads = sorted({_head(name) for name in lost})
            yield self._cause(evidence, heads, [f"no gradient: {', '.join(lost[:5])}", *flat])

    def _cause(self, evidence: Evidence, heads: list[str], lines: list[str]) -> Cause:
        weights = {head: f"tasks.{head.removeprefix(HEADS)}.weight" for head in heads}
        without = [key for key in weights.values() if evidence.setting(key) == 0]
        # With a weight, steps of the configuration as it is now tell a loss of gradients from an older program's.
        look = f"xectool diagnose gradients {fixes.config_path(evidence)}"
        again = fixes.train_again(evidence, *(f"{key}=1.0" for key in without), name="all-tasks")
        return Cause(
            code=self.code,
            confidence=0.93,
            problem=f"{', '.join(heads)} is not trained while the rest of the network is"
            + (f": {', '.join(without)} is 0" if without else ""),
            evidence=tuple(lines),
            fix=again if without else look,
            symptom="head",
        )


class ClippingMostSteps(DiagnosisRule):
    """Most gradients are clipped; AdamW takes no harm from it, so this is a note."""

    code = "XT-GRAD-CLIP"
    title = "the gradient is clipped in most steps"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the steps are missing where they are."""
        return "" if len(evidence.steps) else "no step was recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Count clipped steps."""
        rows = evidence.steps.good_rows
        coefficients = evidence.steps["clip_coef"][rows]
        if rows.size < DEAD_STEPS or float(np.mean(coefficients < 1)) <= CLIPPED_MOST:
            return
        norms = evidence.steps["grad_norm"][rows]
        yield Cause(
            code=self.code,
            confidence=0.9,
            problem=f"{np.mean(coefficients < 1):.0%} of the steps are clipped (median norm {median(norms):.3g})",
            evidence=("clipping keeps the direction, and AdamW divides by the size: this alone does no harm",),
            fix=fixes.train_again(evidence, f"training.grad_clip={suggested_clip(norms):.3g}", name="clip"),
            severity=Severity.INFO,
            step=1,
            symptom="clipping",
        )


def dead_blocks(evidence: Evidence) -> list[str]:
    """Return the heads whose gradient is exactly zero in all of at least 20 steps while others have one."""
    started = evidence.last("run_start")
    named = [str(name) for name in (started.data.get("blocks") if started else None) or ()]
    found = [name for name in silent_blocks(evidence) if name.startswith(HEADS)]
    if evidence.steps.good_rows.size >= DEAD_STEPS and _some_learn(evidence):
        found += _frozen_heads(named, (started.data.get("tasks") if started else None) or ())
    return found


def silent_blocks(evidence: Evidence) -> list[str]:
    """Return the blocks without any gradient in all of at least 20 steps while others have one."""
    blocks, rows = evidence.steps.blocks, evidence.steps.good_rows
    if not _some_learn(evidence):
        return []
    found = []
    for name, norms in blocks.items():
        known = norms[rows][np.isfinite(norms[rows])]
        if known.size >= DEAD_STEPS and not known.any():
            found.append(name)
    if rows.size >= DEAD_STEPS:
        # What nothing reaches has no gradient at all, so only the list of trained blocks knows of it.
        started = evidence.last("run_start")
        named = (started.data.get("blocks") if started else None) or ()
        found += [str(name) for name in named if str(name) not in blocks]
    return found


def _some_learn(evidence: Evidence) -> bool:
    return any(np.nansum(norms) > 0 for norms in evidence.steps.blocks.values())


def clipped_away(evidence: Evidence) -> bool:
    """Return whether clipping leaves no step enough of a gradient for AdamW, which adds 1e-8 to its size."""
    rows = evidence.steps.good_rows
    norms = evidence.steps["grad_norm"][rows]
    factors = evidence.steps["clip_coef"][rows]
    tiny = (norms > 0) & (factors < 1) & (norms * factors < ADAM_EPS)
    return bool(rows.size >= DEAD_STEPS and tiny.all())


def other_lr(evidence: Evidence) -> str:
    """Return the run at the default rate of its kind, or the sweep of rates where it had about that one."""
    default = fixes.default_lr(evidence)
    known = evidence.setting("training.lr")
    near = isinstance(known, int | float) and default / 3 < known < 3 * default
    if near:
        return fixes.sweep_lr(evidence)
    return fixes.train_again(evidence, f"training.lr={default:.2g}", name="other-lr")


def _frozen_heads(blocks: list[str], tasks: Sequence[object]) -> list[str]:
    """Return the heads of enabled tasks that are not among the trained blocks, where other heads are."""
    heads = [f"{HEADS}{task}" for task in tasks]
    trained = [head for head in heads if any(block == head or block.startswith(head + ".") for block in blocks)]
    return [head for head in heads if head not in trained] if trained else []


def _head(parameter: str) -> str:
    """Return ``heads.energy`` of ``heads.energy.6.weight``."""
    parts = parameter.split(".")
    return ".".join(parts[parts.index("heads") :][:2]) if "heads" in parts else parameter


def _slow_text(flat: list[TermLevel]) -> str:
    return f"not better than a constant so far, while the loss falls: {', '.join(level.term for level in flat)}"


def _told_lines(data: object) -> list[str]:
    terms = data.get("terms") if isinstance(data, dict) else None
    return [
        f"{term}: loss {_of(values, 'loss')}, best constant {_of(values, 'trivial')}"
        for term, values in (terms or {}).items()
        if isinstance(values, dict)
    ]


def _of(values: Mapping[str, Any], name: str) -> str:
    return f"{number(values.get(name)):.4g}"
