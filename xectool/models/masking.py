"""Which sensors are hidden: pure functions of an event's readings and of random numbers.

Axes: B events, S sensors (4760), N sensors of one group (a face, or all), K most sensors hidden in one event.

Every event hides a fixed share of those of its sensors that may be hidden, so the loss of every event stands on the
same share of its readings; or it repeats a recorded pattern of dead channels. A torch generator is used in the older
system's order: its seeds give its masks. With :class:`~xectool.models.event_random.EventRandom` every event has numbers
of its own, and its mask does not depend on the batch it comes in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor

from xectool.detector import faces
from xectool.errors import ConfigError
from xectool.models.event_random import EventRandom

Random: TypeAlias = torch.Generator | EventRandom | None
"""Source of random numbers; None is torch's global generator."""
Patterns: TypeAlias = tuple[tuple[int, ...], ...]

FLAT_FLOOR = 0.01
"""Smallest npho, in network units, that the bins of a flat mask tell apart."""
FLAT_MARGIN = 0.001
"""What the last bin of a flat mask reaches beyond the event's largest ln(npho)."""
FACE_ORDER = ("inner", "outer", "us", "ds", "top", "bot")
"""Order in which faces with ratios of their own draw their random numbers."""
_FIRST, _LAST = -1.0, 2.0
"""Keys before and after those of the lottery, which lie in [0, 1)."""


class Stream(IntEnum):
    """What random numbers are for; an event's numbers for one purpose do not depend on those for another."""

    ORDER = 0
    OFFSET = 1
    FILL = 2
    PATTERN = 3

    def of_group(self, group: int) -> int:
        """Return the number of the stream for one group: 0 for all sensors, then the faces."""
        return len(Stream) * group + self


@dataclass(frozen=True)
class MaskPolicy:
    """How a mask is drawn.

    Attributes:
        ratio: Share of the maskable sensors that is hidden; one number, or one a face (faces left out hide nothing).
        npho_flat: Choose evenly in ln(npho) instead of evenly among sensors.
        bright_scale: How much likelier sensors above ``bright_threshold`` are chosen; no effect with ``npho_flat``.
        bright_threshold: npho in network units above which a sensor counts as bright.
        older: Repeat the older system's flat masks, faults included.
        patterns: Sensors of each recorded pattern of dead channels; None chooses by ``ratio``, an empty tuple stands
            for patterns that have not been looked up yet.
    """

    ratio: float | Mapping[str, float]
    npho_flat: bool = False
    bright_scale: float = 1.0
    bright_threshold: float = math.inf
    older: bool = False
    patterns: Patterns | None = None


def maskable_sensors(valid: Tensor, channels: tuple[str, ...]) -> Tensor:
    """Return which sensors may be hidden, bool (B, S): those with a reading to compare a prediction with.

    A valid npho suffices where npho is predicted: dim sensors, whose time is never valid, are hidden and learnt too.

    Args:
        valid: Whether a reading is valid, bool (B, S, 2).
        channels: Predicted channels, of ``npho`` and ``time``.
    """
    return valid[..., 0] if "npho" in channels else valid[..., 1]


def maskable_like_older(x: Tensor, channels: tuple[str, ...], sentinels: tuple[float, float]) -> Tensor:
    """Return which sensors the older system hides: with time predicted, only those whose time is no sentinel.

    Args:
        x: Network units, shape (B, S, 2).
        channels: Predicted channels, of ``npho`` and ``time``.
        sentinels: Fill values of npho and time.
    """
    return x[..., 1] != sentinels[1] if "time" in channels else x[..., 0] != sentinels[0]


def count_masked(maskable: Tensor, ratio: float | Mapping[str, float]) -> Tensor:
    """Return how many sensors each event hides, int64 (B,), without drawing any.

    Args:
        maskable: Which sensors may be hidden, bool (B, S).
        ratio: As in :class:`MaskPolicy`.
    """
    if not isinstance(ratio, Mapping):
        return _count(maskable, ratio)
    total = torch.zeros(maskable.shape[0], dtype=torch.int64, device=maskable.device)
    for face, share in _shares(ratio):
        total = total + _count(maskable[:, _ids(face, maskable.device)], share)
    return total


def draw_mask(npho: Tensor, maskable: Tensor, policy: MaskPolicy, random: Random = None) -> Tensor:
    """Return which sensors are hidden, bool (B, S).

    Args:
        npho: Network units, shape (B, S).
        maskable: Which sensors may be hidden, bool (B, S).
        policy: How to choose.
        random: Source of the random numbers, on the device of ``npho``.

    Raises:
        ConfigError: The policy repeats patterns that nobody has looked up.
    """
    if policy.patterns is not None:
        return draw_pattern(pattern_table(policy.patterns).to(maskable.device), maskable, random)
    if not isinstance(policy.ratio, Mapping):
        return _Draw(policy, policy.ratio, random, group=0).mask(npho, maskable)
    mask = torch.zeros_like(maskable)
    for face, share in _shares(policy.ratio):
        ids = _ids(face, npho.device)
        draw = _Draw(policy, share, random, group=1 + FACE_ORDER.index(face))
        mask[:, ids] = draw.mask(npho[:, ids], maskable[:, ids])
    return mask


def draw_pattern(patterns: Tensor, maskable: Tensor, random: Random = None) -> Tensor:
    """Return masks, bool (B, S), that each repeat one of several recorded patterns of dead channels.

    Args:
        patterns: Dead channels of each recorded run, bool (P, S), P patterns.
        maskable: Which sensors may be hidden, bool (B, S).
        random: Source of the random numbers, on the device of the tensors.
    """
    if isinstance(random, EventRandom):
        chosen = (random.uniform(1, Stream.PATTERN)[:, 0] * len(patterns)).long()
    else:
        chosen = torch.randint(len(patterns), (len(maskable),), generator=random, device=patterns.device)
    return patterns[chosen] & maskable


@lru_cache(maxsize=8)
def pattern_table(patterns: Patterns) -> Tensor:
    """Return patterns, given as sensor ids, as bool (P, S).

    Raises:
        ConfigError: There are none: their origins have not been looked up.
    """
    if not patterns:
        raise ConfigError(
            "the patterns of dead channels are known by origin only; their sensors have not been looked up",
            where="model.mask_patterns",
            fix="give a checkpoint or the config.yaml of a run: training writes the sensors into both",
            code="CFG-62",
        )
    table = torch.zeros(len(patterns), faces.NUM_SENSORS, dtype=torch.bool)
    for row, sensors in enumerate(patterns):
        table[row, list(sensors)] = True
    return table


def hide(x: Tensor, mask: Tensor, sentinels: tuple[float, float]) -> Tensor:
    """Return x (B, S, 2) with the sentinels of npho and time in place of hidden sensors; ``mask`` is bool (B, S)."""
    return torch.stack([x[..., c].masked_fill(mask, sentinel) for c, sentinel in enumerate(sentinels)], dim=-1)


@dataclass(frozen=True)
class _Draw:
    """One choice among the sensors of a group."""

    policy: MaskPolicy
    ratio: float
    random: Random
    group: int

    def mask(self, npho: Tensor, maskable: Tensor) -> Tensor:
        """Return the chosen sensors, bool (B, N), of npho and maskable, both (B, N)."""
        count = _count(maskable, self.ratio)
        if self.policy.npho_flat:
            self._pass_over(maskable.shape, npho.device)
            order = self._flat_order(npho, maskable, count)
        else:
            order = self._uniform(maskable.shape, npho.device, Stream.ORDER)
            if self.policy.bright_scale != 1.0:
                order = torch.where(npho > self.policy.bright_threshold, order / self.policy.bright_scale, order)
        # Stable, so that ties do not make an event's mask depend on its batch.
        chosen = order.masked_fill(~maskable, math.inf).argsort(dim=1, stable=self._by_event)
        first = torch.arange(maskable.shape[1], device=npho.device) < count.unsqueeze(1)
        return torch.zeros_like(maskable).scatter(1, chosen, first)

    def _flat_order(self, npho: Tensor, maskable: Tensor, count: Tensor) -> Tensor:
        """Return keys (B, N) whose smallest are one sensor of every filled bin in ln(npho), then sensors at random.

        The bins, as many as sensors are to be hidden, are of equal width from :data:`FLAT_FLOOR` to the brightest
        sensor, so there are never more picks than sensors to hide.

        The older system lets an empty bin take a sensor out of the lottery: the first one of the next filled bin, and,
        where a batch shares a generator, the brightest one of an event that hides fewer sensors than another.
        """
        num_bins = int(count.max()) if count.numel() else 0
        if num_bins == 0:
            return torch.zeros(maskable.shape, device=npho.device)
        start, size, order = _bins(npho, maskable, count, num_bins, stable=self._by_event)
        offset = (self._uniform(start.shape, npho.device, Stream.OFFSET) * size).long()
        nowhere = maskable.shape[1]
        picked = order.gather(1, (start + offset).clamp_max(nowhere - 1))
        fill = self._uniform(maskable.shape, npho.device, Stream.FILL)
        if not self._by_event:
            fill = (fill + num_bins) - num_bins  # the older system's rounding decides ties
        self._pass_over(start.shape, npho.device)
        # The appended column takes what an empty bin would write.
        keys = torch.cat((fill, fill.new_zeros(fill.shape[0], 1)), dim=1)
        empty = size == 0
        if self.policy.older:
            past_last = torch.arange(num_bins, device=npho.device) >= count.unsqueeze(1)
            keys.scatter_(1, picked.masked_fill(~empty | (past_last & self._by_event), nowhere), _LAST)
        keys.scatter_(1, picked.masked_fill(empty, nowhere), _FIRST)
        if self.policy.older and not self._by_event:
            keys.scatter_(1, order[:, -1:].masked_fill((count == num_bins).unsqueeze(1), nowhere), _LAST)
        return keys[:, :-1]

    @property
    def _by_event(self) -> bool:
        return isinstance(self.random, EventRandom)

    def _uniform(self, shape: torch.Size, device: torch.device, stream: Stream) -> Tensor:
        if isinstance(self.random, EventRandom):
            return self.random.uniform(shape[1], stream.of_group(self.group))
        return torch.rand(shape, generator=self.random, device=device, dtype=torch.float32)

    def _pass_over(self, shape: torch.Size, device: torch.device) -> None:
        """Draw what the older system draws here without using it: the numbers that follow are then its own."""
        if not isinstance(self.random, EventRandom):
            torch.rand(shape, generator=self.random, device=device, dtype=torch.float32)


def _bins(npho: Tensor, maskable: Tensor, count: Tensor, num_bins: int, stable: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return start and size of every bin (B, K) in the order (B, N) of sensors by npho, hidden ones first.

    ``stable`` orders equal sensors by id, whatever the batch; the older system does not.
    """
    low = math.log(FLAT_FLOOR)
    height = npho.float().clamp_min(FLAT_FLOOR).log()
    ranked = height.masked_fill(~maskable, -math.inf)
    order = ranked.argsort(dim=1, stable=stable)
    high = ranked.amax(dim=1, keepdim=True) + FLAT_MARGIN
    bins = ((height - low) / (high - low) * count.unsqueeze(1)).floor().long()
    bins = torch.minimum(bins.clamp_min(0), (count - 1).unsqueeze(1))
    bins = bins.masked_fill(~maskable, -1).gather(1, order)
    wanted = torch.arange(num_bins, device=npho.device).expand(npho.shape[0], -1).contiguous()
    start = torch.searchsorted(bins, wanted)
    return start, torch.searchsorted(bins, wanted, right=True) - start, order


def _count(maskable: Tensor, ratio: float) -> Tensor:
    return (maskable.sum(dim=1).float() * ratio).floor().long()


def _shares(ratio: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(face, ratio[face]) for face in FACE_ORDER if ratio.get(face, 0.0) > 0]


def _ids(face: str, device: torch.device) -> Tensor:
    return torch.from_numpy(faces.sensors(face).copy()).to(device)
