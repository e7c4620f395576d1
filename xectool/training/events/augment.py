"""Augmentation of raw sensor values; runs on the training device with the step's own random stream."""

from __future__ import annotations

import torch
from torch import Tensor

INVALID_READING = 1e10  # what a dead channel holds in the input files


def drop_channels(npho: Tensor, time: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Make a random share of the sensors look exactly like dead channels.

    A dropped sensor gets the reading of a dead channel before normalisation, so the network sees the sentinel it
    will see in data; writing 0 into normalised values would teach it something that never occurs.

    Args:
        npho: raw photon counts, shape (B, S).
        time: raw sensor times in seconds, shape (B, S).
        rate: Probability of dropping a sensor of an event, in [0, 1).

    Returns:
        New tensors of the same shapes; the inputs are untouched.
    """
    if rate <= 0.0:
        return npho, time
    dropped = torch.rand_like(npho) < rate
    return npho.masked_fill(dropped, INVALID_READING), time.masked_fill(dropped, INVALID_READING)
