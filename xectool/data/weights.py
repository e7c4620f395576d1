"""Event weights that flatten the distribution of targets in the training events.

Axes: N events, D numbers of a task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from xectool.config.reweighting import ReweightingConfig, TaskReweightingConfig
from xectool.data.events import EventSource
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.errors import ConfigError, DataUnusable

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BinnedWeights:
    """Weights of one task on an equal-width grid.

    Attributes:
        edges: Edges of the bins of each number of the task.
        weights: Weight of each bin, shape (bins of the first number, of the second, ...).
    """

    edges: tuple[FloatArray, ...]
    weights: FloatArray

    @classmethod
    def fit(cls, truth: FloatArray, num_bins: Sequence[int]) -> Self:
        """Return weights (N / filled bins) / (events of the bin), 0 for empty bins (the older system's rule).

        Args:
            truth: Known truth, shape (N, D).
            num_bins: Bins of each number.
        """
        edges = tuple(
            np.linspace(low, high, bins + 1)
            for low, high, bins in zip(truth.min(axis=0), truth.max(axis=0), num_bins, strict=True)
        )
        index = _bin_index(truth, edges)
        counts = np.zeros([len(edge) - 1 for edge in edges])
        np.add.at(counts, index, 1.0)
        filled = counts > 0
        weights = np.where(filled, len(truth) / filled.sum() / np.maximum(counts, 1.0), 0.0)
        return cls(edges, weights)

    def look_up(self, truth: npt.NDArray[Any]) -> FloatArray:
        """Return the weight of each event, shape (N,); 1 where the truth, shape (N, D), is unknown.

        Truth outside of the fitted range takes the nearest bin.
        """
        known = known_truth(truth)
        found = np.ones(len(truth))
        found[known] = self.weights[_bin_index(truth[known].astype(np.float64), self.edges)]
        return found


@dataclass(frozen=True)
class SampleReweighter:
    """Weights of training events: the product over the tasks that are reweighted.

    Attributes:
        tasks: Weights of each task.
    """

    tasks: Mapping[str, BinnedWeights]

    @classmethod
    def fit(cls, source: EventSource, config: ReweightingConfig) -> Self:
        """Fit on the served events of a data set, that is after the fiducial cut; unknown truth is left out.

        Raises:
            ConfigError: A reweighted task is not trained.
            DataUnusable: No event has a known truth of a reweighted task.
        """
        fitted: dict[str, BinnedWeights] = {}
        for task, bins in config.enabled().items():
            if task not in source.widths:
                raise ConfigError(
                    f"events are to be weighed by {task}, whose truth is not read because the task is off",
                    where=f"reweighting.{task}.enabled",
                    fix=f"--set tasks.{task}.enabled=true   # or --set reweighting.{task}.enabled=false",
                )
            parts = [source.truth(index, task) for index in range(len(source.files))]
            truth = np.concatenate(parts).astype(np.float64)
            truth = truth[known_truth(truth)]
            if not len(truth):
                raise DataUnusable(
                    f"no training event has a known truth of task {task} to weigh by",
                    where=f"reweighting.{task}, branch {source.branches.truth[task]}",
                    fix=f"--set reweighting.{task}.enabled=false",
                    code="XT-DATA-NO-TRUTH",
                )
            fitted[task] = BinnedWeights.fit(truth, bin_counts(task, bins))
        return cls(fitted)

    def weights(
        self, targets: Mapping[str, npt.NDArray[np.float32]], npho: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        """Return the weight of each event, shape (N,), from its truth, each of shape (N, D); photons do not matter."""
        product = np.ones(len(next(iter(targets.values()))))
        for task, binned in self.tasks.items():
            product *= binned.look_up(targets[task])
        return product.astype(np.float32)

    def to_arrays(self) -> dict[str, FloatArray]:
        """Return the weights as plain arrays, as they are kept with a run."""
        arrays: dict[str, FloatArray] = {}
        for task, binned in self.tasks.items():
            arrays[f"{task}/weights"] = binned.weights
            arrays |= {f"{task}/edges{axis}": edges for axis, edges in enumerate(binned.edges)}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the reweighter that ``to_arrays`` wrote."""
        tasks = {name.split("/")[0] for name in arrays}
        return cls({task: _read_binned(arrays, task) for task in sorted(tasks)})


def bin_counts(task: str, config: TaskReweightingConfig) -> tuple[int, ...]:
    """Return the bins of each number of a task: two for angle, the first of them thrice for uvwFI, one otherwise."""
    if task == "angle":
        return config.nbins_2d
    if task == "uvwFI":
        return (config.nbins_2d[0],) * 3
    return (config.nbins,)


def known_truth(truth: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Say which events have a known truth, shape (N,), from values of shape (N, D)."""
    with np.errstate(invalid="ignore"):
        known = np.isfinite(truth) & (np.abs(truth) < UNKNOWN_ABOVE)
    return np.asarray(known.all(axis=1), dtype=np.bool_)


def _bin_index(truth: FloatArray, edges: Sequence[FloatArray]) -> tuple[npt.NDArray[np.intp], ...]:
    # A value on an edge belongs to the bin below it, as in the older system; the range's ends are clamped into it.
    return tuple(
        np.clip(np.searchsorted(edge, truth[:, axis], side="left") - 1, 0, len(edge) - 2)
        for axis, edge in enumerate(edges)
    )


def _read_binned(arrays: Mapping[str, npt.NDArray[Any]], task: str) -> BinnedWeights:
    weights = np.asarray(arrays[f"{task}/weights"], dtype=np.float64)
    edges = tuple(np.asarray(arrays[f"{task}/edges{axis}"], dtype=np.float64) for axis in range(weights.ndim))
    return BinnedWeights(edges, weights)
