"""Weights that moved farther in one step than an optimizer step can move them: put there by something else."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from xectool.config.adam import ADAM_REACH

Array = npt.NDArray[Any]
MATRICES: Final = 8  # spread over the network; what loads or sets back weights hardly ever touches one alone
SAMPLE: Final = 32  # weights of each
ROUNDING: Final = 1e-6  # of a weight
FEWEST: Final = 0.1  # of the weights of a matrix; a single one may be a flipped bit
SAME_SIZE: Final = 2.0  # times the size, RMS, within which weights are others; beyond it they are damaged


class WeightReach:
    """Compares some weights with those one step before; costs one gathering of 256 numbers a step.

    Args:
        model: What is trained.
        weight_decay: Of the optimizer; decay moves a weight beside the gradient.
    """

    def __init__(self, model: nn.Module, weight_decay: float) -> None:
        matrices = [(name, w) for name, w in model.named_parameters() if w.ndim > 1 and w.requires_grad]
        matrices = [(name, weight) for name, weight in matrices if weight.numel() >= SAMPLE]
        chosen = matrices[:: -(-len(matrices) // MATRICES) or 1]
        self._names = [name for name, _ in chosen]
        # Views: an update is seen in them. Weights that are replaced by other tensors are not, and stay silent.
        self._views = [weight.detach().flatten()[:SAMPLE] for _, weight in chosen]
        plain = all(view.device.type == "cpu" and view.dtype == torch.float32 for view in self._views)
        # Of the same memory where that can be: 45 us a step, not 70.
        self._arrays = [view.numpy() for view in self._views] if plain else []
        self._decay = weight_decay
        self._before: Array | None = None
        self._step = 0

    def took(self, step: int, lr: float) -> list[str]:
        """Return the matrices that moved farther in a step at a learning rate than it can move them.

        The first look, and the first one after a return to an earlier step, has nothing to compare with.
        """
        if not self._views:
            return []
        now, before = self._sample(), self._before
        follows = step == self._step + 1
        self._before, self._step = now, step
        return self._beyond(before, now, lr) if follows and before is not None else []

    def _sample(self) -> Array:
        if self._arrays:
            return np.concatenate(self._arrays).reshape(-1, SAMPLE)
        return torch.stack(self._views).float().numpy(force=True)

    def _beyond(self, before: Array, now: Array, lr: float) -> list[str]:
        with np.errstate(over="ignore", invalid="ignore"):
            moved = np.abs(now - before)
            if not moved.max() > ADAM_REACH * lr:  # nearly always; NaN compares false
                return []
            far = moved > ADAM_REACH * lr + (lr * self._decay + ROUNDING) * np.abs(before)
            grown = np.sqrt(np.square(now).mean(axis=1) / np.square(before).mean(axis=1))
        others = (far.mean(axis=1) >= FEWEST) & (grown < SAME_SIZE) & (grown > 1 / SAME_SIZE)
        return [self._names[row] for row in np.flatnonzero(others)]
