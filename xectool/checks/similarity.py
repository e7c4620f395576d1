"""Whether two samples are alike: the two-sample test of Kolmogorov and Smirnov per channel, face and target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import stats

from xectool.checks.sample import Sample
from xectool.checks.spread import valid_readings
from xectool.config.normalization import NormalizationConfig
from xectool.detector import faces

Array = npt.NDArray[Any]

LARGE_KS: Final = 0.1
# Some thirty comparisons are made at once.
SURE_P: Final = 1e-4
_MAX_VALUES: Final = 500_000


@dataclass(frozen=True)
class Likeness:
    """One quantity of two samples.

    Attributes:
        quantity: Such as ``npho inner`` or ``energy``.
        ks: Largest distance of the cumulative distributions.
        p_value: Probability of such a distance by chance, of as many events as there are: readings of one event go
            together and are no independent numbers.
        effect: Difference of the means in units of the common spread.
        first: Events of the first sample.
        second: Events of the second sample.
    """

    quantity: str
    ks: float
    p_value: float
    effect: float
    first: int
    second: int

    @property
    def differs(self) -> bool:
        """Whether the distance is large, and not by chance."""
        return self.ks > LARGE_KS and self.p_value < SURE_P


def compare_samples(first: Sample, second: Sample, normalization: NormalizationConfig) -> list[Likeness]:
    """Return the comparison of every channel on every face, and of every component of every target both know."""
    found = []
    ours = valid_readings(first.events, normalization)
    theirs = valid_readings(second.events, normalization)
    for channel, (a, b) in zip(("npho", "time"), zip(ours, theirs, strict=True), strict=True):
        for face in faces.FACES:
            ids = faces.sensors(face)
            found.append(_compare(f"{channel} {face}", a[:, ids], b[:, ids]))
    for task in first.targets:
        if task in second.targets:
            a, b = first.targets[task].kept.rows, second.targets[task].kept.rows
            for part in range(a.shape[1]):
                name = task if a.shape[1] == 1 else f"{task}[{part}]"
                found.append(_compare(name, a[:, part : part + 1], b[:, part : part + 1]))
    return [item for item in found if item is not None]


def _compare(quantity: str, a: Array, b: Array) -> Likeness | None:
    first = int(np.isfinite(a).any(axis=1).sum())
    second = int(np.isfinite(b).any(axis=1).sum())
    if not first or not second:
        return None
    a, b = _chosen(a), _chosen(b)
    ks = _distance(a, b)
    spread = float(np.sqrt((a.var() + b.var()) / 2))
    gap = float(b.mean() - a.mean())
    effect = gap / spread if spread > 0 else float(np.sign(gap))
    return Likeness(quantity, ks, _p_value(ks, first, second), effect, first, second)


def _chosen(values: Array) -> Array:
    flat = values[np.isfinite(values)].astype(np.float64)
    return np.sort(flat[:: max(1, len(flat) // _MAX_VALUES)])


def _distance(a: Array, b: Array) -> float:
    places = np.concatenate([a, b])
    below_a = np.searchsorted(a, places, side="right") / len(a)
    below_b = np.searchsorted(b, places, side="right") / len(b)
    return float(np.abs(below_a - below_b).max())


def _p_value(ks: float, first: int, second: int) -> float:
    return float(stats.kstwobign.sf(np.sqrt(first * second / (first + second)) * ks))
