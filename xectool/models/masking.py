"""Which sensors are hidden: pure functions of an event's readings and of random numbers.

Axes: B events, S sensors (4760), N sensors of one group (a face, or all), K most sensors hidden in one event.

Every event hides a fixed share of those of its sensors that may be hidden, so the loss of every event stands on the
same share of its readings. Random numbers are drawn in the older system's order: its seeds give its masks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from xectool.detector import faces

FLAT_FLOOR = 0.01
"""Smallest npho, in network units, that the bins of a flat mask tell apart."""
FLAT_MARGIN = 0.001
"""What the last bin of a flat mask reaches beyond the event's largest ln(npho)."""
FACE_ORDER = ("inner", "outer", "us", "ds", "top", "bot")
"""Order in which faces with ratios of their own draw their random numbers."""


@dataclass(frozen=True)
class MaskPolicy:
    """How a mask is drawn.

    Attributes:
        ratio: Share of the maskable sensors that is hidden; one number, or one a face (faces left out hide nothing).
        npho_flat: Choose evenly in ln(npho) instead of evenly among sensors.
        bright_scale: How much likelier sensors above ``bright_threshold`` are chosen; no effect with ``npho_flat``.
        bright_threshold: npho in network units above which a sensor counts as bright.
        older: Repeat the older system's flat masks, faults included.
    """

    ratio: float | Mapping[str, float]
    npho_flat: bool = False
    bright_scale: float = 1.0
    bright_threshold: float = math.inf
    older: bool = False


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


def draw_mask(npho: Tensor, maskable: Tensor, policy: MaskPolicy, generator: torch.Generator | None = None) -> Tensor:
    """Return which sensors are hidden, bool (B, S).

    Args:
        npho: Network units, shape (B, S).
        maskable: Which sensors may be hidden, bool (B, S).
        policy: How to choose.
        generator: Source of the random numbers, on the device of ``npho``; None for torch's global one.
    """
    if not isinstance(policy.ratio, Mapping):
        return _draw(npho, maskable, policy, policy.ratio, generator)
    mask = torch.zeros_like(maskable)
    for face, share in _shares(policy.ratio):
        ids = _ids(face, npho.device)
        mask[:, ids] = _draw(npho[:, ids], maskable[:, ids], policy, share, generator)
    return mask


def draw_pattern(patterns: Tensor, maskable: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return masks, bool (B, S), that each repeat one of several recorded patterns of dead channels.

    Args:
        patterns: Dead channels of each recorded run, bool (P, S).
        maskable: Which sensors may be hidden, bool (B, S).
        generator: Source of the random numbers, on the device of the tensors; None for torch's global one.
    """
    chosen = torch.randint(len(patterns), (len(maskable),), generator=generator, device=patterns.device)
    return patterns[chosen] & maskable


def hide(x: Tensor, mask: Tensor, sentinels: tuple[float, float]) -> Tensor:
    """Return x (B, S, 2) with the sentinels of npho and time in place of hidden sensors; ``mask`` is bool (B, S)."""
    return torch.stack([x[..., c].masked_fill(mask, sentinel) for c, sentinel in enumerate(sentinels)], dim=-1)


def _draw(
    npho: Tensor, maskable: Tensor, policy: MaskPolicy, ratio: float, generator: torch.Generator | None
) -> Tensor:
    count = _count(maskable, ratio)
    order = _uniform(maskable.shape, npho.device, generator)
    if policy.npho_flat:
        order = _flat_order(npho, maskable, count, policy.older, generator)
    elif policy.bright_scale != 1.0:
        order = torch.where(npho > policy.bright_threshold, order / policy.bright_scale, order)
    chosen = order.masked_fill(~maskable, math.inf).argsort(dim=1)
    first = torch.arange(maskable.shape[1], device=npho.device) < count.unsqueeze(1)
    return torch.zeros_like(maskable).scatter(1, chosen, first)


def _flat_order(
    npho: Tensor, maskable: Tensor, count: Tensor, older: bool, generator: torch.Generator | None
) -> Tensor:
    """Return keys (B, N) whose smallest are one sensor of every filled bin in ln(npho), then sensors at random.

    The bins, as many as sensors are to be hidden, are of equal width from :data:`FLAT_FLOOR` to the brightest sensor.

    The older system lets an empty bin take a sensor out of the lottery: the first one of the next filled bin, and the
    brightest one of an event that hides fewer sensors than another of its batch. ``older`` repeats that.
    """
    num_bins = int(count.max()) if count.numel() else 0
    if num_bins == 0:
        return torch.zeros(maskable.shape, device=npho.device)
    start, size, order = _bins(npho, maskable, count, num_bins)
    offset = (_uniform(start.shape, npho.device, generator) * size).long()
    # The appended column takes what an empty bin would write.
    picked = order.gather(1, (start + offset).clamp_max(maskable.shape[1] - 1))
    fill = _uniform(maskable.shape, npho.device, generator) + num_bins
    pick_keys = _uniform(start.shape, npho.device, generator) + torch.arange(num_bins, device=npho.device)
    keys = torch.cat((fill, fill.new_zeros(fill.shape[0], 1)), dim=1)
    empty, nowhere = size == 0, maskable.shape[1]
    if older:
        keys.scatter_(1, picked.masked_fill(~empty, nowhere), num_bins + 2.0)
    keys.scatter_(1, picked.masked_fill(empty, nowhere), pick_keys)
    if older:
        missing = (count < num_bins).unsqueeze(1)
        keys.scatter_(1, order[:, -1:].masked_fill(~missing, nowhere), num_bins + 2.0)
    return keys[:, :-1]


def _bins(npho: Tensor, maskable: Tensor, count: Tensor, num_bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return start and size of every bin (B, K) in the order (B, N) of sensors by npho, hidden ones first."""
    low = math.log(FLAT_FLOOR)
    height = npho.float().clamp_min(FLAT_FLOOR).log()
    ranked = height.masked_fill(~maskable, -math.inf)
    order = ranked.argsort(dim=1)
    high = ranked.amax(dim=1, keepdim=True) + FLAT_MARGIN
    bins = ((height - low) / (high - low) * count.unsqueeze(1)).floor().long()
    bins = torch.minimum(bins.clamp_min(0), (count - 1).unsqueeze(1))
    bins = bins.masked_fill(~maskable, -1).gather(1, order)
    wanted = torch.arange(num_bins, device=npho.device).expand(npho.shape[0], -1).contiguous()
    start = torch.searchsorted(bins, wanted)
    return start, torch.searchsorted(bins, wanted, right=True) - start, order


def _count(maskable: Tensor, ratio: float) -> Tensor:
    return (maskable.sum(dim=1).float() * ratio).floor().long()


def _uniform(shape: torch.Size, device: torch.device, generator: torch.Generator | None) -> Tensor:
    return torch.rand(shape, generator=generator, device=device, dtype=torch.float32)


def _shares(ratio: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(face, ratio[face]) for face in FACE_ORDER if ratio.get(face, 0.0) > 0]


def _ids(face: str, device: torch.device) -> Tensor:
    return torch.from_numpy(faces.sensors(face).copy()).to(device)
