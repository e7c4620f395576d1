"""Physics metrics of the regressor, reduced in float64 from compact float32 residuals.

Axes: B events, D components of a target, N loss terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from xectool.tasks.base import AccumulatorState, MetricAccumulator, Outputs, WorstEvent
from xectool.tasks.residuals import Columns, residual_columns, task_metrics
from xectool.tasks.worst import WorstEvents

if TYPE_CHECKING:
    from xectool.data.batch import EventBatch
    from xectool.tasks.regression import RegressionTask

WORST_CAPACITY = 64


class RegressionMetrics(MetricAccumulator):
    """Metrics of all tasks of a regressor, and its worst events.

    Args:
        task: The task whose loss, transforms and balance are used: the objective is the one that is trained.
    """

    def __init__(self, task: RegressionTask) -> None:
        self._task = task
        self._sums = np.zeros((2, len(task.terms)))  # loss sums, counts
        self._columns: dict[str, list[Columns]] = {term: [] for term in task.terms}
        self._worst = WorstEvents(WORST_CAPACITY)

    @torch.no_grad()
    def update(self, outputs: Outputs, batch: EventBatch) -> None:
        """Add one batch; a task whose truth the batch lacks gets no metrics.

        Args:
            outputs: Network units by task, shape (B, D or 2D).
            batch: The events.
        """
        batch = self._with_all_targets(batch)
        per_event, known = self._task.event_losses(outputs, batch)
        weighted = per_event.double() * batch.weight.double()
        self._sums += torch.stack([weighted.sum(dim=1), known.sum(dim=1, dtype=torch.float64)]).cpu().numpy()
        ranking = (self._task.balance.effective_weights().unsqueeze(1) * per_event.double()).sum(dim=0)
        has_truth = known.any(dim=0).cpu().numpy()
        self._worst.update(ranking.cpu().numpy(), has_truth, batch)
        for index, term in enumerate(self._task.terms):
            self._add_columns(term, outputs[term], batch.targets[term], known[index])

    def compute(self) -> dict[str, float]:
        """Return all metrics; names as in the documentation of `task_metrics`, and ``val/...`` for the losses."""
        sums, counts = torch.from_numpy(self._sums[0]), torch.from_numpy(self._sums[1])
        found = {"val/loss": self._task.combine(sums, counts)}
        for index, term in enumerate(self._task.terms):
            if counts[index] > 0:
                found[f"val/{term}/loss"] = float(sums[index] / counts[index])
                columns = self._joined(term)
                found |= task_metrics(term, columns)
                found |= _physical_losses(term, columns, self._physical_beta(term))
        for name in ("smooth_l1", "l1", "mse"):
            parts = [found[f"val/{term}/{name}"] for term in self._task.terms if f"val/{term}/{name}" in found]
            found[f"val/{name}"] = float(np.sum(parts)) if parts else float("nan")
        return found

    def worst(self, count: int) -> list[WorstEvent]:
        """Return up to ``count`` (at most 64) events, largest loss first."""
        return self._worst.top(count)

    def state(self) -> AccumulatorState:
        """Return everything collected as plain arrays."""
        columns = {f"{term}/{name}": column for term in self._columns for name, column in self._joined(term).items()}
        return {"sums": self._sums, **{f"worst/{k}": v for k, v in self._worst.state().items()}, **columns}

    def merge(self, state: AccumulatorState) -> None:
        """Add what another rank's accumulator collected."""
        self._sums = self._sums + state["sums"]
        self._worst.merge({k.removeprefix("worst/"): v for k, v in state.items() if k.startswith("worst/")})
        for term, parts in self._columns.items():
            prefix = f"{term}/"
            found = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            if found:
                parts.append(found)

    def _add_columns(self, term: str, output: Tensor, truth: Tensor, known: Tensor) -> None:
        transform, width = self._task.transforms[term], truth.shape[-1]
        output = output[known].float()
        mean = output[:, :width]
        sigma = None
        if self._task.losses[term].head_factor == 2:
            sigma = _numpy(transform.decode_sigma(mean, output[:, width:]))
        prediction = _numpy(transform.decode(mean))
        self._columns[term].append(residual_columns(term, prediction, _numpy(truth[known]), sigma))

    def _with_all_targets(self, batch: EventBatch) -> EventBatch:
        missing = [term for term in self._task.terms if term not in batch.targets]
        if not missing:
            return batch
        unknown = {
            term: batch.weight.new_full((len(batch.weight), len(self._task.transforms[term].scale)), float("nan"))
            for term in missing
        }
        return replace(batch, targets={**batch.targets, **unknown})

    def _physical_beta(self, term: str) -> np.ndarray:
        """Return the edge of the quadratic region in physical units, shape (D,); a logarithm has no such edge."""
        transform, beta = self._task.transforms[term], self._task.settings[term].loss_beta
        scale = torch.ones_like(transform.scale) if transform.log_transform else transform.scale
        return beta * _numpy(scale)

    def _joined(self, term: str) -> Columns:
        parts = self._columns[term]
        if len(parts) > 1:
            joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            self._columns[term] = parts = [joined]
        return dict(parts[0]) if parts else {}


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().astype(np.float64)


def _physical_losses(term: str, columns: Mapping[str, np.ndarray], beta: np.ndarray) -> dict[str, float]:
    """Return mean l1, mse and smooth_l1 of the residuals in physical units, whatever loss is trained."""
    size = np.abs(columns["residual"].astype(np.float64))
    smooth = np.where(size < beta, 0.5 * np.square(size) / np.where(beta > 0, beta, 1.0), size - 0.5 * beta)
    values = {"smooth_l1": smooth, "l1": size, "mse": np.square(size)}
    return {f"val/{term}/{name}": float(value.mean()) for name, value in values.items()}
