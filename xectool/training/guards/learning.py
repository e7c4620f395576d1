"""Guards on whether anything is learned: the trivial baseline, collapsed predictions, dead parameters.

Axes: B events, S sensors, D components of a target.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from xectool.data.batch import EventBatch
from xectool.errors import counted
from xectool.tasks.base import Outputs, valid_truth
from xectool.tasks.masked_batch import MaskedBatch
from xectool.tasks.regression import RegressionTask
from xectool.tasks.sensor_task import SensorTask
from xectool.training.events.baseline import TOTAL
from xectool.training.guards.base import Guard, Notice, StepFacts
from xectool.training.stepping.evaluate import Predicted
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress

TRIVIAL_RATIO: Final = 0.98
FEWEST_STEPS: Final = 100  # before that a healthy run may not have learned anything yet
ENOUGH_STEPS: Final = 500
ENOUGH_EPOCHS: Final = 2
COLLAPSED_SHARE: Final = 0.01
CONSTANT_SHARE: Final = 1e-5
"""Of the spread of the truth; sound networks of float32 have a hundred times more after some steps."""
CONSTANT_STEPS: Final = 20
GRADIENT_STEPS: Final = 3


def may_be_judged(progress: Progress, steps_per_epoch: int, warmup_steps: int) -> bool:
    """Return whether a run had the time to learn: after the warm-up 100 steps, and 500 steps or two epochs."""
    learned = progress.step - warmup_steps
    return learned >= FEWEST_STEPS and learned >= min(ENOUGH_STEPS, ENOUGH_EPOCHS * steps_per_epoch)


class NoLearning(Guard):
    """G08: a loss that does not get below that of the best constant prediction."""

    code = "G08"

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self._said: set[str] = set()
        self._last: dict[str, float] = {}

    def begin(self, progress: Progress) -> Iterator[Notice]:
        """Record what the best constant reaches, of each attempt: files and objective of a resume may be other ones."""
        baseline = self.parts.baseline
        if baseline.terms:
            targets: dict[str, Any] = {
                "target_std": baseline.target_std,
                "target_far": baseline.far,
                "target_unit": baseline.units,
                "val_target_unit": baseline.val_units,
                "target_unit_files": baseline.unit_files,
                "val_target_unit_files": baseline.val_unit_files,
                "target_impossible": baseline.impossible,
                "target_never_filled": baseline.never_filled,
                "target_no_number": baseline.no_number,
            }
            yield Notice("baseline", {"terms": baseline.terms, "val_terms": baseline.val_terms} | targets)

    def after_epoch(self, progress: Progress, metrics: dict[str, Any]) -> Iterator[Notice]:
        """Compare the validation loss of each term, or the training loss where there is none."""
        schedule = self.parts.schedule
        if not may_be_judged(progress, schedule.steps_per_epoch, schedule.warmup_steps):
            return
        learned, stuck, falling = progress.step - schedule.warmup_steps, {}, set()
        for term, trivial in self.parts.baseline.terms.items():
            loss = self._loss(term, metrics)
            if not self._stands_still(term, learned, loss):
                falling.add(term)
            if loss >= trivial - (1 - TRIVIAL_RATIO) * abs(trivial):
                stuck[term] = {"loss": loss, "trivial": trivial, "ratio": loss / trivial if trivial else math.inf}
        # The objective may begin far above its baseline, and one head of several may learn late.
        some_learn = len(stuck.keys() - {TOTAL}) < len(self.parts.baseline.terms.keys() - {TOTAL})
        found = {term: v for term, v in stuck.items() if term not in falling or (term != TOTAL and not some_learn)}
        new = set(found) - self._said
        self._said = set(found)
        if new:
            parts = ", ".join(f"{term} {v['loss']:.4g} (constant: {v['trivial']:.4g})" for term, v in found.items())
            message = f"after {counted(progress.step, 'step')} no better than the best constant prediction: {parts}"
            yield Notice("no_learning", {"terms": found, "after_steps": progress.step}, message)

    def _loss(self, term: str, metrics: dict[str, Any]) -> float:
        names = ("val/loss", "train/loss") if term == TOTAL else (f"val/{term}/loss", f"train/{term}/loss")
        return float(next((metrics[name] for name in names if name in metrics), math.nan))

    def _stands_still(self, term: str, learned: int, loss: float) -> bool:
        """Return whether a term has had its time and falls no more."""
        before = self._last.get(term, math.nan)
        self._last[term] = loss
        return learned >= ENOUGH_STEPS and loss > TRIVIAL_RATIO * before


class Spread:
    """Spread of predictions and truth of one validation, by task or channel, in one unit for both.

    Args:
        task: Whose outputs are looked at.
    """

    def __init__(self, task: Any) -> None:
        self.task = task
        self._sums: dict[str, Tensor] = {}
        self._base: dict[str, Tensor] = {}

    def watch(self, predicted: Iterable[Predicted]) -> Iterator[Predicted]:
        """Pass on every batch after a look at it."""
        for batch, outputs in predicted:
            for name, prediction, truth in self._pairs(batch, outputs):
                self._add(name, prediction, truth)
            yield batch, outputs

    def ratios(self) -> dict[str, dict[str, float]]:
        """Return ``pred_std`` and ``target_std`` of each task."""
        found = {}
        for name, sums in self._sums.items():
            count = sums[0].clamp_min(1)
            prediction = (sums[2] / count - (sums[1] / count).square()).clamp_min(0).mean().sqrt()
            target = (sums[4] / count - (sums[3] / count).square()).clamp_min(0).mean().sqrt()
            found[name] = {"pred_std": float(prediction), "target_std": float(target)}
        return found

    @torch.no_grad()
    def _pairs(self, batch: EventBatch, outputs: Outputs) -> Iterator[tuple[str, Tensor, Tensor]]:
        if isinstance(self.task, RegressionTask):
            for term in self.task.terms:
                if term not in batch.targets:
                    continue
                truth = batch.targets[term]
                known = valid_truth(truth)
                mean = outputs[term][known][:, : truth.shape[-1]].float()
                yield term, self.task.transforms[term].decode(mean).double(), truth[known].double()
        elif isinstance(self.task, SensorTask) and isinstance(batch, MaskedBatch):
            predictions = self.task.reconstruction(outputs)
            for place, channel in enumerate(self.task.channels):
                index = 0 if channel == "npho" else 1
                hidden = batch.mask & batch.valid[..., index]
                yield (
                    channel,
                    predictions[..., place][hidden][:, None].double(),
                    batch.x[..., index][hidden][:, None].double(),
                )

    def _add(self, name: str, prediction: Tensor, truth: Tensor) -> None:
        if not len(truth):
            return
        # Around the first truth seen: raw sums of squares of a narrow distribution lose their digits.
        base = self._base.setdefault(name, truth[0].clone())
        a, b = prediction - base, truth - base
        ones = torch.full_like(base, float(len(truth)))
        sums = torch.stack([ones, a.sum(0), a.square().sum(0), b.sum(0), b.square().sum(0)])
        self._sums[name] = self._sums[name] + sums if name in self._sums else sums


class Collapsed(Guard):
    """G09: predictions that hardly differ from event to event."""

    code = "G09"

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self.spread = Spread(parts.task)

    def watch(self, predicted: Iterable[Predicted]) -> Iterable[Predicted]:
        """Return the stream of a validation with a look at every batch."""
        self.spread = Spread(self.parts.task)
        return self.spread.watch(predicted)

    def after_validation(self, progress: Progress, metrics: dict[str, Any]) -> Iterator[Notice]:
        """Compare the spread of predictions with that of the truth."""
        share = self._share(progress)
        flat = {name: v for name, v in self.spread.ratios().items() if v["pred_std"] < share * v["target_std"]}
        if flat:
            names = ", ".join(f"{name} {v['pred_std']:.3g} of {v['target_std']:.3g}" for name, v in flat.items())
            facts: dict[str, Any] = {"tasks": flat, "early": share < COLLAPSED_SHARE}
            yield Notice("collapsed", facts, f"predictions hardly differ from event to event: {names}")

    def _share(self, progress: Progress) -> float:
        """Return below which share of the spread of the truth predictions have collapsed; 0 where it is too early.

        That nothing varies at all can be told long before anything has been learned; half precision rounds too much.
        """
        schedule = self.parts.schedule
        if may_be_judged(progress, schedule.steps_per_epoch, schedule.warmup_steps):
            return COLLAPSED_SHARE
        early = progress.step >= CONSTANT_STEPS and self.parts.execution.autocast_dtype is None
        return CONSTANT_SHARE if early else 0.0


class ZeroGradient(Guard):
    """G10: what no loss reaches in the first three steps: parameters without a gradient, blocks whose gradient is zero.

    A single parameter may rightly have a zero gradient, such as a bias in front of a norm; a whole block may not. Heads
    of tasks that are not trained are no fault.
    """

    code = "G10"

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self._silent: set[str] | None = None
        self._steps = 0

    def after_step(self, progress: Progress, step: StepFacts) -> Iterator[Notice]:
        """Look at the gradients that the step has left behind."""
        if self._steps >= GRADIENT_STEPS or not step.result.taken:
            return
        self._steps += 1
        self.done = self._steps == GRADIENT_STEPS
        wanted = [(name, p) for name, p in self.parts.model.named_parameters() if p.requires_grad]
        silent = {name for name, p in wanted if p.grad is None and not self._is_idle(name)}
        silent |= {block for block, norm in step.result.block_norms.items() if norm == 0}
        self._silent = silent if self._silent is None else self._silent & silent
        if self._steps == GRADIENT_STEPS and self._silent:
            names = sorted(self._silent)
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            message = f"no gradient in the first {GRADIENT_STEPS} steps: {shown}"
            yield Notice("zero_gradient", {"parameters": names, "after_steps": progress.step}, message)

    def _is_idle(self, name: str) -> bool:
        """Return whether a parameter belongs to the head of a task that is not trained."""
        place, _, rest = name.partition(".")
        return place == "heads" and rest.partition(".")[0] not in self.parts.task.terms
