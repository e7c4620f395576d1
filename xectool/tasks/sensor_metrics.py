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
            "errors": np.zeros((3, num_faces, num_channels)),  # absolute, squared, count
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
        sensors and for each face, the same of a conventional estimator with ``baseline_<name>_`` in front. The ratios
        are ``masked_of_valid``, ``masked_of_all`` and ``hidden_of_all``, the last with sensors that have no reading.
        """
        sums, counts = (torch.from_numpy(row) for row in self._sums["loss"])
        found = {"val/loss": self._task.combine(sums, counts)}
        found |= {f"val/{name}": value for name, value in self._task.mean_losses(*self._sums["loss"]).items()}
        found |= self._task.tally_metrics(self._sums["ratio"].tolist())
        if self._task.training_config.track_mae_rmse:
            found |= self._channel_errors()
            if "npho" in self._task.channels:
                found |= error_metrics("", self._sums["photons"])
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
        error = torch.where(scored, prediction - self._task.loss_fn.targets(batch), 0.0).double()
        by_face = self._task.faces
        parts = [by_face.sums(part.sum(dim=0)) for part in (error.abs(), error.square(), scored.double())]
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
            for name, (absolute, square, count) in named:
                if count > 0:
                    found[f"mae_{name}{channel}"] = float(absolute / count)
                    found[f"rmse_{name}{channel}"] = float(np.sqrt(square / count))
        return found
