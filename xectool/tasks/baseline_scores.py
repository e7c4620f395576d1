"""Errors of the conventional estimators on exactly the sensors a network is scored on.

Axes: B events, S sensors (4760), F faces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch

from xectool.detector import faces
from xectool.models.normalize import Normalizer
from xectool.tasks.masked_batch import MaskedBatch
from xectool.tasks.neighbour_baselines import (
    DEFAULT_HOPS,
    NeighbourAverage,
    NeighbourEstimator,
    SolidAngleWeighted,
    default_tables,
)

FloatArray = npt.NDArray[np.float64]

MAX_REMEMBERED = 4096
"""Batches whose scores are kept: a validation pass repeats the same events and masks every epoch."""
STATISTICS = ("abs", "square", "abs_photons", "square_photons", "bias_photons", "count")


def error_sums(normalized: FloatArray, photons: FloatArray, face: npt.NDArray[np.int64]) -> FloatArray:
    """Return sums over faces of errors, shape (F, 6), in the order of :data:`STATISTICS`.

    Args:
        normalized: Prediction minus truth in network units, one entry a sensor.
        photons: The same in photons.
        face: Face number of each.
    """
    columns = (abs(normalized), normalized**2, abs(photons), photons**2, photons, np.ones_like(photons))
    return np.stack([np.bincount(face, weights=column, minlength=len(faces.FACES)) for column in columns], axis=1)


def error_metrics(prefix: str, sums: FloatArray) -> dict[str, float]:
    """Return errors of all faces and of each, from sums (F, 6); a face without a hidden sensor has none.

    ``mae_npho`` and ``rmse_npho`` are in network units, ``mae_photons``, ``rmse_photons`` and ``bias_photons`` in
    photons.
    """
    found: dict[str, float] = {}
    for name, row in (
        ("", sums.sum(axis=0)),
        *((f"{face}_", row) for face, row in zip(faces.FACES, sums, strict=True)),
    ):
        if row[-1] > 0:
            absolute, square, absolute_photons, square_photons, bias, _ = row / row[-1]
            found |= {
                f"{prefix}mae_{name}npho": float(absolute),
                f"{prefix}rmse_{name}npho": float(np.sqrt(square)),
                f"{prefix}mae_{name}photons": float(absolute_photons),
                f"{prefix}rmse_{name}photons": float(np.sqrt(square_photons)),
                f"{prefix}bias_{name}photons": float(bias),
            }
    return found


class BaselineScores:
    """Scores estimators batch by batch, each different batch once.

    Args:
        normalizer: The model's own; errors are taken in its units.
        hops: How far the neighbours are that an estimate is made from.
    """

    def __init__(self, normalizer: Normalizer, hops: int = DEFAULT_HOPS) -> None:
        self._normalizer = normalizer
        self._hops = hops
        self._estimators: Mapping[str, NeighbourEstimator] | None = None
        self._remembered: dict[bytes, FloatArray] = {}

    @property
    def estimators(self) -> Mapping[str, NeighbourEstimator]:
        """The estimators by name, made when first needed."""
        if self._estimators is None:
            tables = default_tables(self._hops)
            self._estimators = {"neighbour": NeighbourAverage(tables), "solid_angle": SolidAngleWeighted(tables)}
        return self._estimators

    def score(self, batch: MaskedBatch) -> FloatArray:
        """Return the error sums of every estimator, shape (estimators, F, 6)."""
        npho, valid, mask = (t.cpu().numpy() for t in (batch.npho, batch.valid[..., 0], batch.mask))
        key = hashlib.blake2b(npho.tobytes() + mask.tobytes(), digest_size=16).digest()
        if key not in self._remembered:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = self._score(npho.astype(np.float64), valid, mask & valid)
        return self._remembered[key]

    def _score(self, npho: FloatArray, valid: npt.NDArray[np.bool_], wanted: npt.NDArray[np.bool_]) -> FloatArray:
        face = faces.face_ids()[np.nonzero(wanted)[1]]
        truth = npho[wanted]
        sums = []
        for estimator in self.estimators.values():
            # A light yield cannot be negative; the older system clips too.
            estimate = estimator.fill(np.where(valid, npho, 0.0), valid & ~wanted, wanted)[wanted].clip(min=0.0)
            sums.append(error_sums(self._in_network_units(estimate, truth), estimate - truth, face))
        return np.stack(sums)

    def _in_network_units(self, estimate: FloatArray, truth: FloatArray) -> FloatArray:
        scheme: Callable[[torch.Tensor], torch.Tensor] = self._normalizer.scheme
        difference = scheme(torch.from_numpy(estimate)) - scheme(torch.from_numpy(truth))
        return difference.numpy()
