"""Conventional estimators of the same quantities, calibrated on training events: what a network has to beat.

Axes: B events, S sensors (4760), P inner-face sensors (4092), K features, D components of a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xectool.detector import constants, coordinates, faces, geometry
from xectool.tasks.linear_fit import LinearFit
from xectool.tasks.residuals import headline

if TYPE_CHECKING:
    from xectool.data.batch import EventBatch

FloatArray = npt.NDArray[np.float64]

MIN_TIMED_NPHO = 100.0  # below it a sensor's time is too poor; the default of normalization.npho_threshold
ESTIMATED_TASKS = ("angle", "energy", "timing", "uvwFI")


def light_features(npho: FloatArray, time_s: FloatArray) -> FloatArray:
    """Return the sums over sensors that the estimators use; dead, invalid and negative channels count as dark.

    The width is a depth proxy. A point at depth w above a plane lights it as ``n ~ w / (r^2 + w^2)^1.5``; then
    ``sum(n)^2 / sum(n^2)`` is proportional to w^2, so its root times the sensor pitch is linear in w.

    Args:
        npho: Photons, raw, shape (B, S).
        time_s: Times, raw, shape (B, S).

    Returns:
        Shape (B, 6): all photons; light-weighted mean (u, v) of the inner face and width of the light there, cm;
        light-weighted mean time, s, and mean distance of those sensors from the point (u, v, width), cm.
    """
    dark = ~(npho < constants.UNKNOWN_ABOVE) | (npho < 0)
    light = np.where(dark, 0.0, npho)
    share = _normalised(light[:, faces.index_map("inner").ravel()])
    squared = np.einsum("bp,bp->b", share, share)[:, np.newaxis]
    width = np.divide(constants.INNER_PITCH_Z_CM, np.sqrt(squared), out=np.zeros_like(squared), where=squared > 0)
    point_cm = np.concatenate([share @ _inner_uv_cm(), width], axis=1)
    timed = (light >= MIN_TIMED_NPHO) & (np.abs(time_s) < constants.UNKNOWN_ABOVE)
    weights = _normalised(np.where(timed, light, 0.0))
    time = np.einsum("bs,bs->b", weights, np.where(timed, time_s, 0.0))
    distance = np.einsum("bs,bs->b", weights, _distances_cm(point_cm))
    return np.column_stack([light.sum(axis=1), point_cm, time, distance])


def _normalised(values: FloatArray) -> FloatArray:
    total = values.sum(axis=1, keepdims=True)
    shares: FloatArray = np.divide(values, total, out=np.zeros_like(values), where=total > 0)
    return shares


def _inner_uv_cm() -> FloatArray:
    _, phi, z = geometry.cylindrical()
    ids = faces.index_map("inner").ravel()
    return np.stack([z[ids], constants.REFERENCE_RADIUS_CM * phi[ids]], axis=-1)


def _distances_cm(uvw_cm: FloatArray) -> FloatArray:
    """Return distances from points, shape (B, 3), to all sensors, shape (B, S)."""
    points, sensors = coordinates.uvw_to_xyz(uvw_cm), geometry.positions_cm()
    squared = np.square(points).sum(axis=1)[:, np.newaxis] + np.square(sensors).sum(axis=1) - 2 * points @ sensors.T
    distances: FloatArray = np.sqrt(squared.clip(min=0.0))
    return distances


class ConventionalEstimator:
    """Energy from the light sum, position from the light's centroid and width, direction from the target's centre.

    * energy: linear in the sum of all photons.
    * uvwFI: u and v linear in the centroid on the inner face, w linear in the width of the light there.
    * angle: theta and phi linear in the direction from the detector's origin to that position.
    * timing: linear in the light-weighted mean time and in the mean distance of those sensors.

    Args:
        fits: Calibrations by task, one an axis for the position; none makes an estimator that has yet to be fitted.
    """

    def __init__(self, fits: Mapping[str, list[LinearFit]] | None = None) -> None:
        self._fits = dict(fits or {})

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks that have been calibrated."""
        return tuple(task for task in ESTIMATED_TASKS if task in self._fits)

    def fit(self, batches: Iterable[EventBatch]) -> ConventionalEstimator:
        """Calibrate on training events; the position first, since the direction follows from it.

        Of each event only its features and truth are kept, so memory does not grow with the sensors read. A task that
        no event has truth for stays uncalibrated.
        """
        features, truth = _collect(batches)
        self._fits = {}
        for task in ("uvwFI", "energy", "angle", "timing"):
            known = _known(truth[task]) if task in truth else np.zeros(0, dtype=bool)
            if known.any():
                inputs, components = self._inputs(task, features[known]), truth[task][known]
                targets = [components] if len(inputs) == 1 else np.split(components, len(inputs), axis=1)
                self._fits[task] = [LinearFit.fit(x, y) for x, y in zip(inputs, targets, strict=True)]
        return self

    def predict(self, batch: EventBatch) -> dict[str, FloatArray]:
        """Return estimates in physical units by calibrated task, shape (B, D)."""
        features = _batch_features(batch)
        return {task: self._estimate(task, features) for task in self.tasks}

    def state(self) -> dict[str, Any]:
        """Return the calibration as plain lists of floats."""
        return {
            task: [{"offset": fit.offset.tolist(), "slope": fit.slope.tolist()} for fit in fits]
            for task, fits in self._fits.items()
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ConventionalEstimator:
        """Return the estimator a `state` was taken from."""
        return cls(
            {
                task: [LinearFit(np.array(f["offset"]), np.array(f["slope"])) for f in fits]
                for task, fits in state.items()
            }
        )

    def _estimate(self, task: str, features: FloatArray) -> FloatArray:
        inputs = self._inputs(task, features)
        return np.concatenate([fit(x) for fit, x in zip(self._fits[task], inputs, strict=True)], axis=1)

    def _inputs(self, task: str, features: FloatArray) -> list[FloatArray]:
        """Return what each fit of a task takes, each of shape (B, K)."""
        if task == "uvwFI":
            return [features[:, 1:2], features[:, 2:3], features[:, 3:4]]
        if task == "angle":
            position = self._estimate("uvwFI", features) if "uvwFI" in self._fits else features[:, 1:4]
            return [np.asarray(coordinates.direction_to_angles(coordinates.uvw_to_xyz(position)), dtype=np.float64)]
        return [features[:, :1] if task == "energy" else features[:, 4:6]]


class BaselineMetrics:
    """Scores an estimator on the events a network is scored on.

    Args:
        estimator: A fitted estimator.
    """

    def __init__(self, estimator: ConventionalEstimator) -> None:
        self._estimator = estimator
        self._pairs: dict[str, list[tuple[FloatArray, FloatArray]]] = {task: [] for task in estimator.tasks}

    def update(self, batch: EventBatch) -> None:
        """Add the events of a batch whose truth is known."""
        for task, estimate in self._estimator.predict(batch).items():
            if task in batch.targets:
                truth = batch.targets[task].cpu().numpy().astype(np.float64)
                known = _known(truth)
                self._pairs[task].append((estimate[known], truth[known]))

    def compute(self) -> dict[str, float]:
        """Return ``baseline_<task>``: the headline metric of each task that had events with truth."""
        found = {}
        for task, pairs in self._pairs.items():
            if sum(len(truth) for _, truth in pairs):
                estimate, truth = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
                found[f"baseline_{task}"] = headline(task, estimate, truth)
        return found


def _known(truth: FloatArray) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = np.all(np.isfinite(truth) & (np.abs(truth) < constants.UNKNOWN_ABOVE), axis=1)
    return known


def _batch_features(batch: EventBatch) -> FloatArray:
    return light_features(batch.npho.cpu().numpy().astype(np.float64), batch.time.cpu().numpy().astype(np.float64))


def _collect(batches: Iterable[EventBatch]) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return the features of all events, shape (B, 6), and the truth of the tasks that have estimators."""
    features: list[FloatArray] = []
    truth: dict[str, list[FloatArray]] = {}
    for batch in batches:
        features.append(_batch_features(batch))
        for task in ESTIMATED_TASKS:
            if task in batch.targets:
                truth.setdefault(task, []).append(batch.targets[task].cpu().numpy().astype(np.float64))
    joined = np.concatenate(features) if features else np.zeros((0, 6))
    return joined, {task: np.concatenate(parts) for task, parts in truth.items()}
