"""Compares what an exported file gives with the network: in units of the resolution, on ordinary and on edge events.

Axes: B events, K numbers of an output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xectool.errors import OutputsDiffer
from xectool.export.ports import Port
from xectool.export.reference import Arrays
from xectool.export.yardstick import FloatArray, Yardstick

FLOAT32_STEP = float(np.finfo(np.float32).eps)
ROUNDING_STEPS = 4
"""Steps of float32 by which two correct results may differ."""
EDGE_RELATIVE = 1e-3
"""Numbers far outside what the network was trained on amplify rounding; there a relative difference is judged too."""

NOISE_FACTOR = 4.0
"""Multiple of the network's own rounding by which a file may differ where an event is ill-conditioned."""

Metric = Callable[[npt.NDArray[np.generic]], FloatArray]
Noise = Callable[[npt.NDArray[np.bool_]], Mapping[str, FloatArray]]


@dataclass(frozen=True)
class Agreement:
    """How well one output agrees.

    Attributes:
        output: Its name.
        max_abs: Largest difference, in its unit.
        max_rel: Largest difference over the value.
        in_resolution: Largest difference over the yardstick.
        limit: Largest ``in_resolution`` that is accepted.
        yardstick: What the yardstick is, and where it is known from.
        unit: Of the difference.
        values: Numbers compared.
        edge_max_abs: Largest difference on edge events.
    """

    output: str
    max_abs: float
    max_rel: float
    in_resolution: float
    limit: float
    yardstick: str
    unit: str
    values: int
    edge_max_abs: float


@dataclass
class _Seen:
    max_abs: float = 0.0
    max_rel: float = 0.0
    in_resolution: float = 0.0
    values: int = 0
    edge_max_abs: float = 0.0


class Parity:
    """Collects comparisons and refuses the first that fails.

    Args:
        outputs: What is compared.
        yardsticks: One for each output.
        metrics: How an output is compared where not as it is, such as photons in network units.
        where: The file, for messages.
    """

    def __init__(
        self,
        outputs: Sequence[Port],
        yardsticks: Mapping[str, Yardstick],
        metrics: Mapping[str, Metric] | None = None,
        where: str = "",
    ) -> None:
        self.outputs = tuple(outputs)
        self.yardsticks = yardsticks
        self.metrics = metrics or {}
        self.where = where
        self._seen = {port.name: _Seen() for port in outputs}

    def add(self, case: str, expected: Arrays, found: Arrays, edge: bool = False, noise: Noise | None = None) -> None:
        """Compare one batch.

        Args:
            case: What the batch is, for messages.
            expected: What the network gives, by output.
            found: What the file gives, by output.
            edge: Whether these are edge events.
            noise: Gives the rounding of the network itself in some events, bool (B,): (n, 1, ...) by output; asked of
                those that differ by more than is accepted, which then count as edge events.

        Raises:
            OutputsDiffer: Names, order, shapes, types or numbers differ.
        """
        if list(found) != [port.name for port in self.outputs]:
            names = [port.name for port in self.outputs]
            raise self._differ("X-11", f"{case}: the outputs are {list(found)} instead of {names}")
        for port in self.outputs:
            self._same_form(port, case, expected[port.name], found[port.name])
            self._add(port, case, (expected[port.name], found[port.name]), edge, noise)

    def agreements(self) -> tuple[Agreement, ...]:
        """Return how well each output agrees."""
        return tuple(self._agreement(port, self._seen[port.name]) for port in self.outputs)

    def _agreement(self, port: Port, seen: _Seen) -> Agreement:
        yardstick = self.yardsticks[port.name]
        unit = "network units" if port.name in self.metrics else port.unit
        return Agreement(
            output=port.name,
            max_abs=seen.max_abs,
            max_rel=seen.max_rel,
            in_resolution=seen.in_resolution,
            limit=yardstick.share,
            yardstick=f"{_numbers(yardstick.value)} {unit}: {yardstick.source}",
            unit=unit,
            values=seen.values,
            edge_max_abs=seen.edge_max_abs,
        )

    def _same_form(self, port: Port, case: str, wanted: npt.NDArray[np.generic], got: npt.NDArray[np.generic]) -> None:
        if got.shape != wanted.shape or str(got.dtype) != port.dtype:
            problem = f"{case}: {port.name} is {got.dtype}{list(got.shape)} instead of {port.dtype}{list(wanted.shape)}"
            raise self._differ("X-05" if got.shape[1:] == wanted.shape[1:] else "X-11", problem)

    def _add(
        self,
        port: Port,
        case: str,
        numbers: tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]],
        edge: bool,
        noise: Noise | None,
    ) -> None:
        metric = self.metrics.get(port.name, _as_it_is)
        reference, value = metric(numbers[0]), metric(numbers[1])
        unlike = (np.isfinite(reference) != np.isfinite(value)) | (
            ~np.isfinite(reference) & ~((reference == value) | (np.isnan(reference) & np.isnan(value)))
        )
        if unlike.any():
            place = tuple(int(index) for index in np.argwhere(unlike)[0])
            problem = f"{case}: {port.name}{list(place)} is {value[place]} where the network gives {reference[place]}"
            raise self._differ("X-13" if edge else "X-08", problem)
        yardstick = self.yardsticks[port.name]
        finite = np.isfinite(reference)
        difference = np.where(finite, np.abs(np.where(finite, value, 0.0) - np.where(finite, reference, 0.0)), 0.0)
        size = np.where(finite, np.abs(np.where(finite, reference, 0.0)), 0.0)
        allowed = np.maximum(yardstick.limit, (EDGE_RELATIVE if edge else ROUNDING_STEPS * FLOAT32_STEP) * size)
        odd = np.asarray((difference > allowed).reshape(len(difference), -1).any(axis=1))
        if odd.any() and noise is not None:
            allowed[odd] = np.maximum(allowed[odd], NOISE_FACTOR * noise(odd)[port.name])
        if (difference > allowed).any():
            self._note(port.name, difference, size, yardstick, edge)
            raise self._too_far(port, case, (reference, value, difference / allowed), edge)
        self._note(port.name, difference[~odd], size[~odd], yardstick, edge)
        self._note(port.name, difference[odd], size[odd], yardstick, edge=True)

    def _note(self, name: str, difference: FloatArray, size: FloatArray, yardstick: Yardstick, edge: bool) -> None:
        seen, largest = self._seen[name], float(difference.max(initial=0.0))
        if edge:
            seen.edge_max_abs = max(seen.edge_max_abs, largest)
            return
        seen.values += difference.size
        seen.max_abs = max(seen.max_abs, largest)
        nonzero = size > 0
        seen.max_rel = max(seen.max_rel, float((difference[nonzero] / size[nonzero]).max(initial=0.0)))
        scaled = np.divide(difference, yardstick.value, out=np.zeros_like(difference), where=yardstick.value > 0)
        seen.in_resolution = max(seen.in_resolution, float(scaled.max(initial=0.0)))

    def _too_far(
        self, port: Port, case: str, numbers: tuple[FloatArray, FloatArray, FloatArray], edge: bool
    ) -> OutputsDiffer:
        reference, value, excess = numbers
        place = tuple(int(index) for index in np.unravel_index(int(excess.argmax()), excess.shape))
        yardstick = self.yardsticks[port.name]
        problem = (
            f"{case}: {port.name}{list(place)} is {value[place]:.9g} where the network gives {reference[place]:.9g}, "
            f"{excess[place]:.3g} times what is accepted ({yardstick.share:g} of the {yardstick.source})"
        )
        return self._differ("X-09" if edge else "X-08", problem)

    def _differ(self, code: str, problem: str) -> OutputsDiffer:
        fix = f"do not use this export; nothing was written. xectool explain {code}"
        return OutputsDiffer(problem, where=self.where, fix=fix, code=code)


def measured(outputs: Arrays, metrics: Mapping[str, Metric]) -> Arrays:
    """Return outputs as they are compared."""
    return {name: metrics[name](value) if name in metrics else value for name, value in outputs.items()}


def require_same(
    first: Arrays,
    second: Arrays,
    what: str,
    where: str,
    limits: Mapping[str, Yardstick],
    noise: Noise | None = None,
) -> None:
    """Refuse outputs of the same events that depend on what else is in the batch, or on the run.

    ``noise`` is as in :meth:`Parity.add`.

    Raises:
        OutputsDiffer: They differ by more than is accepted.
    """
    for name, value in first.items():
        a, b = np.asarray(value, np.float64), np.asarray(second[name], np.float64)
        allowed = np.maximum(limits[name].limit, ROUNDING_STEPS * FLOAT32_STEP * np.abs(np.nan_to_num(a)))
        same = (np.abs(a - b) <= allowed) | (a == b) | (np.isnan(a) & np.isnan(b))
        if noise is not None and not same.all():
            odd = np.asarray(~same.reshape(len(same), -1).all(axis=1))
            same[odd] |= np.abs(a - b)[odd] <= NOISE_FACTOR * noise(odd)[name]
        if not same.all():
            place = tuple(int(index) for index in np.argwhere(~same)[0])
            raise OutputsDiffer(
                f"{what}: {name}{list(place)} is {b[place]:.9g}, and {a[place]:.9g} before",
                where=where,
                fix="do not use this export; nothing was written. xectool explain X-19",
                code="X-19",
            )


def _as_it_is(values: npt.NDArray[np.generic]) -> FloatArray:
    return np.asarray(values, np.float64)


def _numbers(values: FloatArray) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
