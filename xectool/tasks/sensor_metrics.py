"""Metrics of reconstructed sensors, as sums over sensors: memory does not grow with the events.

Axes: B events, S sensors (4760), C predicted channels, F faces, N loss terms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from xectool.detector import faces
from xectool.tasks.base import AccumulatorState, MetricAccumulator, Outputs, WorstEvent
from xectool.tasks.baseline_scores import STATISTICS, BaselineScores, error_metrics, error_sums
from xectool.tasks.masked_batch import MaskedBatch
from xectool.tasks.sensor_losses import photons
from xectool.tasks.worst import WorstEvents

if TYPE_CHECKING:
    from xectool.data.batch import EventBatch
    from xectool.tasks.sensor_task import SensorTask

WORST_CAPACITY = 64


class SensorMetrics(MetricAccumulator):
    """Metrics over hidden sensors.

    Denominators are always the sensors that enter the numerator: for npho those hidden with a valid npho, for time
    those of them that enter the time loss.

    Args:
        task: Whose loss, masks and reconstruction are used.
        baselines: Conventional estimators scored on the same sensors, or None.
    """

    def __init__(self, task: SensorTask, baselines: BaselineScores | None) -> None:
        self._task = task
        self._baselines = baselines
        num_faces, num_channels = len(faces.FACES), len(task.channels)
        names = () if baselines is None else tuple(baselines.estimators)
        self._baseline_names = names
        self._sums: dict[str, np.ndarray] = {
            "loss": np.zeros((2, len(task.terms))),  # sums, weights
            "ratio": np.zeros(3),  # hidden with a reading, with a reading, all sensors
            "errors": np.zeros((5, num_faces, num_channels)),  # absolute, squared, count; truth, its square
            "photons": np.zeros((num_faces, len(STATISTICS))),
            "baselines": np.zeros((len(names), num_faces, len(STATISTICS))),
        }
        self._worst = WorstEvents(WORST_CAPACITY)

    @torch.no_grad()
    def update(self, outputs: Outputs, batch: EventBatch) -> None:
        """Add one batch.

        Args:
            outputs: Of the model called with the batch's mask.
            batch: The events, prepared or not; a mask is a function of the event.
        """
        masked = self._task.prepare(batch)
        prediction = self._task.reconstruction(outputs)
        weights = self._task.loss_fn.weights(masked)
        losses = torch.where(weights > 0, self._task.loss_fn.values(prediction, masked) * weights, 0.0)
        groups = self._task.groups
        sums = torch.stack([groups.sums(losses.sum(dim=0)).flatten(), groups.sums(weights.sum(dim=0)).flatten()])
        self._sums["loss"] += sums.cpu().numpy()
        self._sums["ratio"] += self._task.tallies(masked).cpu().numpy()
        self._add_errors(prediction, weights > 0, masked)
        self._add_worst(losses, weights, batch)
        if self._baselines is not None:
            self._sums["baselines"] += self._baselines.score(masked)

    def compute(self) -> dict[str, float]:
        """Return all metrics.

        ``val/loss`` is the objective; ``val/loss_<term>`` the mean loss of each term, ``val/loss_<face>`` and
        ``val/loss_<channel>`` its sums. ``mae_``, ``rmse_`` (network units) and for photons also ``bias_`` come for all
        sensors and for each face where ``training.track_mae_rmse`` asks for them, else ``rmse_`` of all alone. In front
        of those of a conventional estimator stands ``baseline_<name>_``, and ``baseline_constant_rmse_`` is that of the
        mean hidden reading of each face, which no constant is better than. The ratios are ``masked_of_valid``,
        ``masked_of_all`` and ``hidden_of_all``, the last with sensors that have no reading.
        """
        sums, counts = (torch.from_numpy(row) for row in self._sums["loss"])
        found = {"val/loss": self._task.combine(sums, counts)}
        found |= {f"val/{name}": value for name, value in self._task.mean_losses(*self._sums["loss"]).items()}
        found |= self._task.tally_metrics(self._sums["ratio"].tolist())
        errors = self._channel_errors()
        if self._task.training_config.track_mae_rmse:
            found |= errors
            if "npho" in self._task.channels:
                found |= error_metrics("", self._sums["photons"])
        else:  # what tells whether anything was learned
            told = [f"{of}rmse_{channel}" for channel in self._task.channels for of in ("", "baseline_constant_")]
            found |= {name: errors[name] for name in told if name in errors}
        for name, row in zip(self._baseline_names, self._sums["baselines"], strict=True):
            found |= error_metrics(f"baseline_{name}_", row)
        return found

    def worst(self, count: int) -> list[WorstEvent]:
        """Return up to ``count`` (at most 64) events, largest mean loss of a hidden reading first."""
        return self._worst.top(count)

    def state(self) -> AccumulatorState:
        """Return everything collected as plain arrays."""
        return {
            **{name: values.copy() for name, values in self._sums.items()},
            **{f"worst/{name}": values for name, values in self._worst.state().items()},
        }

    def merge(self, state: AccumulatorState) -> None:
        """Add what another rank's accumulator collected."""
        for name in self._sums:
            self._sums[name] = self._sums[name] + state[name]
        self._worst.merge({k.removeprefix("worst/"): v for k, v in state.items() if k.startswith("worst/")})

    def _add_errors(self, prediction: Tensor, scored: Tensor, batch: MaskedBatch) -> None:
        targets = self._task.loss_fn.targets(batch)
        error = torch.where(scored, prediction - targets, 0.0).double()
        truth = torch.where(scored, targets, 0.0).double()
        by_face, columns = self._task.faces, (error.abs(), error.square(), scored.double(), truth, truth.square())
        parts = [by_face.sums(part.sum(dim=0)) for part in columns]
        self._sums["errors"] += torch.stack(parts).cpu().numpy()
        if "npho" in self._task.channels:
            channel = self._task.channels.index("npho")
            places = scored[..., channel]
            predicted = self._task.normalizer.inverse_npho(prediction[..., channel][places].double())
            difference = (predicted - photons(batch)[places].double()).cpu().numpy()
            face = faces.face_ids()[places.nonzero()[:, 1].cpu().numpy()]
            self._sums["photons"] += error_sums(error[..., channel][places].cpu().numpy(), difference, face)

    def _add_worst(self, losses: Tensor, weights: Tensor, batch: EventBatch) -> None:
        channel_weights = self._task.balance.effective_weights()[: losses.shape[-1]].to(losses.device)
        total = (losses.double() * channel_weights).sum(dim=(1, 2))
        count = weights.double().sum(dim=(1, 2))
        mean = (total / count.clamp_min(torch.finfo(torch.float32).tiny)).cpu().numpy()
        self._worst.update(mean, (count > 0).cpu().numpy(), batch)

    def _channel_errors(self) -> dict[str, float]:
        found = {}
        for index, channel in enumerate(self._task.channels):
            table = self._sums["errors"][..., index]
            named = ("", table.sum(axis=1)), *((f"{face}_", table[:, i]) for i, face in enumerate(faces.FACES))
            for name, (absolute, square, count, *_) in named:
                if count > 0:
                    found[f"mae_{name}{channel}"] = float(absolute / count)
                    found[f"rmse_{name}{channel}"] = float(np.sqrt(square / count))
            found |= _of_constants(table, channel)
        return found


def _of_constants(table: np.ndarray, channel: str) -> dict[str, float]:
    """Return the errors where every hidden reading of a face is predicted as their mean, from sums, shape (5, F)."""
    _, _, count, truth, square = table
    scatter = (square - np.divide(truth**2, count, out=np.zeros_like(truth), where=count > 0)).clip(min=0.0)
    sums = {"": (scatter.sum(), count.sum())}
    sums |= {f"{face}_": pair for face, pair in zip(faces.FACES, zip(scatter, count, strict=True), strict=True)}
    return {
        f"baseline_constant_rmse_{name}{channel}": float(np.sqrt(of_all / hidden))
        for name, (of_all, hidden) in sums.items()
        if hidden > 0
    }
