"""Weights that moved farther in one step than an optimizer step can move them: put there by something else."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from xectool.config.adam import ADAM_REACH

Array = npt.NDArray[Any]
MATRICES: Final = 8  # spread over the network; what loads or sets back weights hardly ever touches one alone
SAMPLE: Final = 32  # weights of each
LOOK_EVERY: Final = 16  # steps that are compared together
ROUNDING: Final = 1e-6  # of a weight
FEWEST: Final = 0.1  # of the weights of a matrix; a single one may be a flipped bit
SAME_SIZE: Final = 2.0  # times the size, RMS, within which weights are others; beyond it they are damaged


class Move(NamedTuple):
    """Matrices that something else than the optimizer moved.

    Attributes:
        step: Step after which they were elsewhere.
        matrices: Their names.
    """

    step: int
    matrices: list[str]


class WeightReach:
    """Compares some weights with those one step before.

    Each step costs one gathering of 256 numbers. The comparison, which costs three times as much, waits for several.

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
        self._samples: list[Any] = []  # arrays of the host or tensors of the device; the first was compared already
        self._steps: list[int] = []
        self._rates: list[float] = []

    def took(self, step: int, lr: float) -> list[Move]:
        """Note a step at a learning rate; return what moved farther in one of the last steps than such a step can.

        The first step, and the first one after a return to an earlier step, has nothing to be compared with.
        """
        if not self._views:
            return []
        found = []
        if self._steps and step != self._steps[-1] + 1:
            found = self.look()
            self._forget(len(self._steps))
        self._samples.append(np.concatenate(self._arrays) if self._arrays else torch.cat(self._views))
        self._steps.append(step)
        self._rates.append(lr)
        return found + (self.look() if len(self._steps) > LOOK_EVERY else [])

    def look(self) -> list[Move]:
        """Return what moved too far in the steps that were not looked at yet."""
        if len(self._steps) < 2:
            return []
        rows = self._gathered()
        with np.errstate(over="ignore", invalid="ignore"):
            moved = np.abs(rows[1:] - rows[:-1]).max(axis=(1, 2))
            suspicious = np.flatnonzero(moved > ADAM_REACH * np.array(self._rates[1:]))  # nearly always none, as of NaN
            named = [(row, self._beyond(rows[row], rows[row + 1], self._rates[row + 1])) for row in suspicious]
        found = [Move(self._steps[row + 1], names) for row, names in named if names]
        self._forget(len(self._steps) - 1)
        return found

    def _gathered(self) -> Array:
        """Return the samples, shape (steps, matrices, `SAMPLE`)."""
        stacked = np.stack if self._arrays else _on_the_host
        rows: Array = stacked(self._samples)
        return rows.reshape(len(self._steps), -1, SAMPLE)

    def _forget(self, count: int) -> None:
        for kept in (self._samples, self._steps, self._rates):
            del kept[:count]

    def _beyond(self, before: Array, now: Array, lr: float) -> list[str]:
        far = np.abs(now - before) > ADAM_REACH * lr + (lr * self._decay + ROUNDING) * np.abs(before)
        grown = np.sqrt(np.square(now).mean(axis=1) / np.square(before).mean(axis=1))
        others = (far.mean(axis=1) >= FEWEST) & (grown < SAME_SIZE) & (grown > 1 / SAME_SIZE)
        return [self._names[row] for row in np.flatnonzero(others)]


def _on_the_host(samples: list[torch.Tensor]) -> Array:
    rows: Array = torch.stack(samples).float().numpy(force=True)
    return rows
