"""Regression of angle, energy, timing, position and photon number from the sensors.

Axes: B events, N loss terms (one a task), D components of a target, C values a loss returns for an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor, nn

from xectool.errors import ConfigError, DataFileError, event_named
from xectool.tasks.balance import LossBalance, ManualBalance, UncertaintyBalance
from xectool.tasks.base import TASKS, LossTerms, Outputs, TrainingTask, valid_truth
from xectool.tasks.losses import LOSSES, Loss
from xectool.tasks.metrics import RegressionMetrics
from xectool.tasks.trivial import trivial_baseline

if TYPE_CHECKING:
    from xectool.config.root import RegressorConfig, RunConfig
    from xectool.config.tasks import TaskConfig
    from xectool.data.batch import EventBatch
    from xectool.models.heads import TargetTransform
    from xectool.models.regressor import Regressor


class RegressionTask(TrainingTask):
    """One loss for each enabled task, added up by the balance.

    Args:
        tasks: Configuration of the enabled tasks, in the order of the terms.
        transforms: The model's transform between physical and network units, by task.
        balance: How the task losses add up.
    """

    def __init__(
        self, tasks: Mapping[str, TaskConfig], transforms: Mapping[str, TargetTransform], balance: LossBalance
    ) -> None:
        super().__init__()
        self.terms = tuple(tasks)
        self.settings = dict(tasks)
        self.losses: dict[str, Loss] = {term: LOSSES[setting.loss_fn] for term, setting in tasks.items()}
        # A plain dict: the transforms belong to the model and move with it.
        self.transforms = {term: transforms[term] for term in tasks}
        self.balance = balance

    def counts(self, batch: EventBatch) -> Tensor:
        """Return how many events have a known truth, by task, float64, shape (N,).

        Raises:
            DataFileError: The batch lacks a task's truth.
            ConfigError: ``log_transform`` meets a truth that is not positive.
        """
        valid = torch.stack([valid_truth(self._truth(term, batch)) for term in self.terms])
        for term, known in zip(self.terms, valid, strict=True):
            if self.settings[term].log_transform:
                _require_positive(term, self._truth(term, batch), known, batch)
        return valid.sum(dim=1, dtype=torch.float64)

    def event_losses(self, outputs: Outputs, batch: EventBatch) -> tuple[Tensor, Tensor]:
        """Return each event's loss and whether its truth is known.

        Args:
            outputs: Network units by task, shape (B, D or 2D).
            batch: The events.

        Returns:
            Losses without sample weight, zero where the truth is unknown, and booleans; both of shape (N, B).
        """
        found = [self._term_losses(term, outputs[term], self._truth(term, batch)) for term in self.terms]
        return torch.stack([loss for loss, _ in found]), torch.stack([known for _, known in found])

    def loss(self, outputs: Outputs, batch: EventBatch, counts: Tensor) -> LossTerms:
        """Return ``sum over tasks of weight * (sum over events of sample weight * loss) / counts``.

        Sample weights are not renormalised: their mean over the data set is one by construction.
        """
        per_event, known = self.event_losses(outputs, batch)
        sums = (per_event.double() * batch.weight.double()).sum(dim=1)
        divisor = counts.to(sums.device).clamp_min(1)
        total = self.balance.combine(sums / divisor, known.sum(dim=1) / divisor)
        return LossTerms(total, sums.detach())

    @torch.no_grad()
    def combine(self, sums: Tensor, counts: Tensor) -> float:
        """Return the objective from accumulated sums; NaN when no event had any truth."""
        if not bool((counts > 0).any()):
            return float("nan")
        device = self.balance.effective_weights().device
        sums, counts = sums.to(device), counts.to(device)
        return float(self.balance.combine(sums / counts.clamp_min(1), (counts > 0).double()))

    def accumulator(self) -> RegressionMetrics:
        """Return an empty accumulator."""
        return RegressionMetrics(self)

    def scalars(self) -> dict[str, float]:
        """Return learned task weights under automatic balance."""
        return self.balance.scalars(self.terms)

    def trivial_losses(self, targets: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the loss of the best constant, by task, over the events whose truth is known."""
        found = {}
        for term in self.terms:
            truth = torch.as_tensor(targets[term], dtype=torch.float64)
            truth = truth[valid_truth(truth)]
            if len(truth):
                units = self._in_loss_units(term, truth.to(self._device())).cpu()
                found[term] = trivial_baseline(self.losses[term], units, self.settings[term].loss_beta)
        return found

    def _device(self) -> torch.device:
        return self.balance.effective_weights().device

    def _truth(self, term: str, batch: EventBatch) -> Tensor:
        if term not in batch.targets:
            raise DataFileError(
                f"the events carry no truth for task '{term}'",
                where=f"truth at hand: {', '.join(batch.targets) or 'none'}",
                fix=f"data.truth_branches.{term}: <branch>, or tasks.{term}.enabled: false",
            )
        return batch.targets[term]

    def _term_losses(self, term: str, output: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses and validity, both of shape (B,)."""
        loss, setting = self.losses[term], self.settings[term]
        if truth.ndim != 2:
            loss(output, truth, setting.loss_beta)  # raises with both shapes
        known = valid_truth(truth)
        # Unknown truth is replaced before the loss: a NaN masked afterwards still has a NaN gradient.
        target = self._in_loss_units(term, torch.where(known.unsqueeze(-1), truth, torch.ones_like(truth)))
        values = loss(self._output_in_loss_units(term, output), target, setting.loss_beta).mean(dim=-1)
        return torch.where(known, values, torch.zeros_like(values)), known

    def _in_loss_units(self, term: str, truth: Tensor) -> Tensor:
        units = self.losses[term].units
        if units == "network":
            return self.transforms[term].encode(truth)
        return truth if units == "physical" else truth / self._ratio_unit(term)

    def _output_in_loss_units(self, term: str, output: Tensor) -> Tensor:
        units = self.losses[term].units
        if units == "network":
            return output
        decoded = self.transforms[term].decode(output.to(torch.promote_types(output.dtype, torch.float32)))
        return decoded if units == "physical" else decoded / self._ratio_unit(term)

    def _ratio_unit(self, term: str) -> Tensor:
        """Return the unit in which relative losses floor the target, shape (D,)."""
        transform = self.transforms[term]
        return torch.ones_like(transform.scale) if transform.log_transform else transform.scale


def _require_positive(term: str, truth: Tensor, known: Tensor, batch: EventBatch) -> None:
    wrong = (known & (truth <= 0).any(dim=-1)).nonzero().flatten()
    if len(wrong):
        row = int(wrong[0])
        raise ConfigError(
            f"log_transform needs positive truth, but {term} is {truth[row].tolist()}",
            where=f"{event_named(int(batch.run[row]), int(batch.event[row]))}, entry {int(batch.entry[row])}",
            fix=f"tasks.{term}.log_transform: false",
        )


@TASKS.register("regressor")
def build(cfg: RunConfig, model: nn.Module) -> RegressionTask:
    """Return the regression task of a configuration for its model."""
    cfg = cast("RegressorConfig", cfg)
    tasks = cfg.tasks.enabled()
    balance: LossBalance
    if cfg.loss_balance == "auto":
        balance = UncertaintyBalance(len(tasks))
    else:
        balance = ManualBalance([setting.weight for setting in tasks.values()])
    transforms = cast("Regressor", model).target_transforms
    return RegressionTask(tasks, {name: cast("TargetTransform", transforms[name]) for name in tasks}, balance)
