"""One event seen in several ways: with its dead sensors dead, filled from neighbours, or filled by a network.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from xectool.detector.constants import DEAD_VALUE, UNKNOWN_ABOVE
from xectool.tasks.neighbour_baselines import SolidAngleWeighted, default_tables

if TYPE_CHECKING:
    from xectool.data.batch import EventBatch

Variant = Callable[["EventBatch", Tensor], "EventBatch"]
"""Returns a batch in which the sensors of a mask, bool (B, S), read something else."""
Fill = Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]
"""Returns ``npho`` and ``time``, raw (B, S), with the sensors of a mask replaced; 1e10 where it has no answer."""


def with_dead(batch: EventBatch, mask: Tensor) -> EventBatch:
    """Return the batch as a detector with these dead sensors gives it: 1e10 in place of their readings."""
    return replace(batch, npho=batch.npho.masked_fill(mask, DEAD_VALUE), time=batch.time.masked_fill(mask, DEAD_VALUE))


def with_neighbours(hops: int) -> Variant:
    """Return the variant with dead sensors at the light of neighbours within ``hops``, without a time.

    In proportion to solid angles. An event without one reading stays as it is.
    """
    estimator = SolidAngleWeighted(default_tables(hops))

    def variant(batch: EventBatch, mask: Tensor) -> EventBatch:
        dead = with_dead(batch, mask)
        wanted = mask.cpu().numpy()
        photons = dead.npho.cpu().numpy().astype(np.float64)
        visible = (np.abs(photons) <= UNKNOWN_ABOVE) & ~wanted
        filled = estimator.fill(np.where(visible, photons, 0.0), visible, wanted)
        # A light yield cannot be negative; the older system clips too.
        estimates = torch.from_numpy(filled.clip(min=0.0)).to(dead.npho)
        seen = torch.from_numpy(visible.any(axis=1, keepdims=True)).to(mask.device)
        return replace(dead, npho=torch.where(mask & seen, estimates, dead.npho))

    return variant


def with_network(fill: Fill) -> Variant:
    """Return the variant whose dead sensors read what a network says; less light than none is none."""

    def variant(batch: EventBatch, mask: Tensor) -> EventBatch:
        dead = with_dead(batch, mask)
        repaired = fill(dead.npho, dead.time, mask)
        photons = repaired["npho"].to(dead.npho)
        return replace(
            dead, npho=torch.where(mask, photons.clamp_min(0.0), photons), time=repaired["time"].to(dead.time)
        )

    return variant
