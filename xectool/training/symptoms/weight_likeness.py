"""Weights that bear no likeness to those of some steps before: drawn anew, or loaded from elsewhere, in mid-run."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

Array = npt.NDArray[Any]
SAMPLE: Final = 256  # weights of a matrix that are compared
FEWEST: Final = 64  # of which chance leaves no third with another sign than half
LEAST_SAME: Final = 0.65  # of the signs; those drawn anew share half
MOST_TRAVEL: Final = 0.6
"""Sum of the learning rates over the size of the weights, RMS. AdamW moves a weight by about the rate in a step: if all
went towards zero, of evenly drawn ones 0.6 / sqrt(3) = 35 % would change their sign."""

DIGEST_MATRICES: Final = 16
DIGEST_SIGNS: Final = 64  # of each


def sign_digest(model: nn.Module) -> str:
    """Return the signs of the first weights of some matrices, as hexadecimal digits of four signs each.

    Two models share all of them if one is a copy of the other, and half if they are not.
    """
    matrices = [weight for weight in model.parameters() if weight.ndim > 1 and weight.numel() >= DIGEST_SIGNS]
    chosen = matrices[:: -(-len(matrices) // DIGEST_MATRICES) or 1]
    if not chosen:
        return ""
    with torch.no_grad():
        signs = torch.cat([weight.flatten()[:DIGEST_SIGNS] > 0 for weight in chosen])
    return np.packbits(signs.numpy(force=True)).tobytes().hex()


class WeightLikeness:
    """Compares the signs of the first weights of each matrix with those of the look before.

    Args:
        model: What is trained.
    """

    def __init__(self, model: nn.Module) -> None:
        matrices = [(name, weight) for name, weight in model.named_parameters() if weight.ndim > 1]
        self._matrices = [(name, weight) for name, weight in matrices if weight.numel() >= FEWEST]
        self._starts = np.cumsum([0, *(min(weight.numel(), SAMPLE) for _, weight in self._matrices)])
        self._before: Array | None = None
        self._travelled = 0.0
        self.last_step = 0

    def took(self, lr: float) -> None:
        """Count a step at a learning rate."""
        self._travelled += lr

    def look(self, step: int) -> list[str]:
        """Return the names of the matrices that no steps since the last look can have made."""
        if not self._matrices:
            return []
        with torch.no_grad():
            parts = [weight.flatten()[:SAMPLE] for _, weight in self._matrices]
            now, before = torch.cat(parts).float().numpy(force=True), self._before
        lost = [] if before is None else self._unlike(before, now)
        self._before, self._travelled, self.last_step = now, 0.0, step
        return lost

    def _unlike(self, before: Array, now: Array) -> list[str]:
        starts = self._starts[:-1]
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.sqrt(np.add.reduceat(np.square(before), starts) / np.diff(self._starts))
            same = np.add.reduceat((before * now > 0).astype(np.int64), starts)
            known = np.add.reduceat((before != 0).astype(np.int64), starts)
            finite = np.isfinite(np.add.reduceat(np.abs(now), starts)) & np.isfinite(size)
        unlike = finite & (known >= FEWEST) & (same < LEAST_SAME * known) & (self._travelled < MOST_TRAVEL * size)
        return [self._matrices[row][0] for row in np.flatnonzero(unlike)]
