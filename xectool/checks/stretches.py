"""Stretches of one file in which a face is dark or frozen, or in which its light or its time jumps.

Axes: n rows (an event each, means of 2, 4, ... successive events in long files), F faces.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.detector import faces

Array = npt.NDArray[Any]

_MOST_ROWS: Final = 8192
_SHORTEST: Final = 10  # rows on end of one and the same sum; events differ in their light
_RARE: Final = 0.1  # where more rows than this repeat the one before, that is how the file is written
_BLOCKS: Final = 8  # of a short file; of a long one more of the largest size, then fewer and larger ones
_BLOCK_ROWS: Final = (5, 25)  # the smallest that have a median and a spread, and those that see any jump in the bounds
_SURE: Final = 6.0  # standard errors of the difference of two medians, where their spread is well known
_FEW_ROWS: Final = 8.7  # of few rows it is not: 4 times as many errors at blocks of 5, as Student's t, 1.1 at 25
_TREND: Final = 2.0  # a step exceeds what changes beside it: sorted events change everywhere
_MAD_TO_SIGMA, _MEDIAN_ERROR = 1.4826, 1.2533
# What the place of the shower makes of the light of a face or of its time is less, or changes other faces as well.
_LEAST: Final = {"light": float(np.log(1.3)), "time": 5e-9}
_ALONE: Final = 1 / 3
_SHARP: Final = 0.5


@dataclass(frozen=True)
class Stretch:
    """Some entries of a file that differ from the rest.

    Attributes:
        kind: ``dark`` or ``frozen`` light, ``untimed`` or ``frozen time``, or a jump of ``light`` or ``time``.
        faces: Which faces; all of them where it is the whole detector.
        first: First entry.
        last: Last entry.
        size: A jump: of the time, s, or of the share of light, as a factor.
    """

    kind: str
    faces: tuple[str, ...]
    first: int
    last: int
    size: float = 0.0

    def lies_in(self, other: Stretch) -> bool:
        """Say whether its faces are among those of another stretch, and some entries are the same."""
        overlaps = self.first <= other.last and other.first <= self.last
        return overlaps and set(self.faces) <= set(other.faces)


class StretchScan:
    """Keeps the light and the mean time of each face for the events of one file."""

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self._rows, self._pairs = 0, 1

    def add(self, entries: Array, runs: Array, light: Array, time: Array) -> None:
        """Take events: entries and runs, shape (B,), light, photons, and mean time, s, by face, shape (B, F)."""
        part = np.column_stack([entries, entries, runs, light, time]).astype(np.float64)
        for _ in range(self._pairs.bit_length() - 1):
            part = _halved(part)
        self._parts.append(part)
        self._rows += len(part)
        if self._rows > _MOST_ROWS:
            self._parts = [_halved(np.concatenate(self._parts))]
            self._rows, self._pairs = len(self._parts[0]), 2 * self._pairs

    def found(self) -> list[Stretch]:
        """Return what differs from the rest of the file."""
        count = len(faces.FACES)
        rows = np.concatenate(self._parts) if self._parts else np.empty((0, 3 + 2 * count))
        rows = rows[rows[:, 3 : 3 + count].any(axis=1)]  # events without any light are told of as such
        if len(rows) < 2 * _SHORTEST:
            return []
        light, time = rows[:, 3 : 3 + count], rows[:, 3 + count :]
        repeated = [*_repeated(rows, light, ("dark", "frozen")), *_repeated(rows, time, ("untimed", "frozen time"))]
        with np.errstate(invalid="ignore", divide="ignore"):
            known = np.where(light > 0, light, np.nan)
            rest = light.sum(axis=1, keepdims=True) - light
            share = np.log(known / np.where(rest > 0, rest, np.nan))
        jumps = [*_jumps(rows, share, "light", light), *_jumps(rows, np.where(time == 0, np.nan, time), "time", light)]
        told: list[Stretch] = []
        for item in [*repeated, *jumps]:  # what is dark has no time either, and its light jumps
            if not any(item.lies_in(other) for other in told):
                told.append(item)
        return told


def _halved(rows: Array) -> Array:
    """Return the means of successive pairs, from the first entry of one to the last of the other."""
    first, second = rows[0::2], rows[1::2]
    paired = first.copy()
    paired[: len(second)] = (first[: len(second)] + second) / 2
    paired[:, 0], paired[: len(second), 1] = first[:, 0], second[:, 1]
    return paired


@cache
def _face_slices() -> list[tuple[int, slice]]:
    """Return the face and the sensors of each run of sensors of one face."""
    ids = faces.face_ids()
    edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    return [(int(ids[low]), slice(low, high)) for low, high in itertools.pairwise(edges)]


def face_sums(values: Array, dtype: npt.DTypeLike) -> Array:
    """Return the sums over the sensors of each face, shape (B, F), of readings of shape (B, S)."""
    found = np.zeros((len(values), len(faces.FACES)), dtype)
    for face, sensors in _face_slices():
        found[:, face] += np.add.reduce(values[:, sensors], axis=1, dtype=dtype)
    return found


def _repeated(rows: Array, values: Array, kinds: tuple[str, str]) -> Iterator[Stretch]:
    """Yield the faces, those of one stretch together, whose sum stays the same: at zero, or at another number."""
    found: dict[tuple[str, int, int], list[str]] = {}
    for face, name in enumerate(faces.FACES):
        series = values[:, face]
        same = np.diff(series) == 0
        edges = np.flatnonzero(np.diff(same, prepend=False, append=False)).reshape(-1, 2)
        runs = [(int(low), int(high)) for low, high in edges if high - low + 1 >= _SHORTEST]
        outside = int(same.sum()) - sum(high - low for low, high in runs)
        if outside > _RARE * len(rows):
            continue
        for low, high in runs:
            if high - low + 1 < len(rows):  # a whole file is told of as such
                kind = kinds[0] if series[low] == 0 else kinds[1]
                found.setdefault((kind, int(rows[low, 0]), int(rows[high, 1])), []).append(name)
    for (kind, first, last), names in found.items():
        yield Stretch(kind, tuple(names), first, last)


def _jumps(rows: Array, series: Array, kind: str, light: Array) -> Iterator[Stretch]:
    """Yield the faces whose light, or time, jumps, where one jump or two bound the stretch: the shorter side."""
    found: list[tuple[float, int, int, str]] = []
    for face, name in enumerate(faces.FACES):
        values = series[:, face]
        steps = _steps(values, _LEAST[kind])
        if kind == "light":
            steps = [at for at in steps if _alone(light, values, face, *at) and _one_run(rows, *at)]
        if not steps:
            continue
        parts = _parts(values, sorted({_edge(values, *at) for at in steps}))
        usual_low, usual_high = max(parts, key=lambda part: part[1] - part[0])
        usual = np.nanmedian(values[usual_low:usual_high])
        sizes = [float(np.nanmedian(values[low:high]) - usual) for low, high in parts]
        far = max(range(len(parts)), key=lambda part: abs(sizes[part]))
        low, high = parts[far]
        if abs(sizes[far]) >= _LEAST[kind] and high - low >= _block(values):
            found.append((sizes[far], low, high, name))
    if found:
        size, low, high, _ = max(found, key=lambda item: abs(item[0]))
        names = tuple(name for _, begin, end, name in found if min(end, high) > max(begin, low))
        size = float(np.exp(size)) if kind == "light" else size
        yield Stretch(kind, names, int(rows[low, 0]), int(rows[high - 1, 1]), size)


def _parts(values: Array, jumps: list[int]) -> list[tuple[int, int]]:
    """Return the rows between jumps; beside a sure one, a second of half its size is believed."""
    edges = [0, *jumps, len(values)]
    size = max(abs(_difference(values, *part)) for part in zip(edges, edges[1:], edges[2:], strict=False))
    block = _block(values)
    for low, high in itertools.pairwise(list(edges)):
        at = _edge(values, low, high) if high - low > 2 * block else low
        inside = min(at - low, high - at) >= block
        if inside and abs(_difference(values, low, at, high)) > size / 2:
            edges.append(at)
    return list(itertools.pairwise(sorted(edges)))


def _difference(values: Array, low: int, at: int, high: int) -> float:
    """Return by how much the median changes at a row, from those since ``low`` to those before ``high``."""
    return float(np.nanmedian(values[at:high]) - np.nanmedian(values[low:at]))


def _block(values: Array) -> int:
    """Return how many rows are compared with as many others: fewer of a short file, whose jumps have to be larger."""
    least, most = _BLOCK_ROWS
    return min(max(len(values) // _BLOCKS, least), most)


def _steps(values: Array, least: float) -> list[tuple[int, int]]:
    """Return where a series jumps, as the rows of three blocks; the middle one may hold the jump."""
    found: list[tuple[int, int]] = []
    size = _block(values)
    while len(values) // size >= _BLOCKS:
        count = len(values) // size
        blocks = values[: count * size].reshape(count, size)
        enough = np.isfinite(blocks).sum(axis=1) > size / 2
        blocks = np.where(enough[:, None], blocks, 0.0)
        middle = np.nanmedian(blocks, axis=1)
        spread = _MAD_TO_SIGMA * np.nanmedian(np.abs(blocks - middle[:, None]), axis=1)
        if enough.any():
            spread = np.maximum(spread, np.median(spread[enough]))
        step = middle[2:] - middle[:-2]
        error = _MEDIAN_ERROR * np.maximum(spread[2:], spread[:-2]) * np.sqrt(2 / size)
        along = np.pad(step, 2)  # beside a step, what changes in its direction is a trend
        trend = np.maximum.reduce([np.sign(step) * along[:-4], np.sign(step) * along[4:], np.zeros_like(step)])
        error *= 1 + (_FEW_ROWS / size) ** 2
        sure = (np.abs(step) > np.maximum(_SURE * error + _TREND * trend, least)) & enough[2:] & enough[:-2]
        for at in np.flatnonzero(sure):
            low, high = int(at) * size, (int(at) + 3) * size
            told = any(low < end and begin < high for begin, end in found)  # by smaller blocks
            if not told and _sharp(values, low, high, float(step[at])):
                found.append((low, high))
        size *= 4
    return found


def _edge(values: Array, low: int, high: int) -> int:
    """Return the row before which a series jumps: where means on both sides leave the smallest squares."""
    part = values[low:high]
    part = np.where(np.isfinite(part), part, np.nanmedian(part))
    sums, count = np.cumsum(part)[:-1], np.arange(1, len(part))
    gain = sums**2 / count + (part.sum() - sums) ** 2 / (len(part) - count)
    return low + 1 + int(gain.argmax())


def _sharp(values: Array, low: int, high: int, step: float) -> bool:
    """Say whether half of a step is made at one place: where events are sorted it is spread over the three blocks."""
    at, near = _edge(values, low, high), (high - low) // 9
    return _difference(values, max(at - near, 0), at, at + near) * float(np.sign(step)) > _SHARP * abs(step)


def _alone(light: Array, values: Array, face: int, low: int, high: int) -> bool:
    """Say whether the light of the other faces stays as it is among them: a shower elsewhere changes all."""
    others = np.delete(light[low:high], face, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        among = np.log(others / others.sum(axis=1, keepdims=True))
    third = (high - low) // 3

    def step(series: Array) -> Any:
        return np.abs(np.nanmedian(series[2 * third :], axis=0) - np.nanmedian(series[:third], axis=0))

    return bool((step(among) < _ALONE * step(values[low:high])).all())


def _one_run(rows: Array, low: int, high: int) -> bool:
    """Say whether rows are of one run: another run may be of another source."""
    return bool((rows[low:high, 2] == rows[low, 2]).all())
