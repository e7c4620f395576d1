"""How the losses of several tasks add up to the one number that is minimised.

Axes: N loss terms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from xectool.tasks.losses import clamp_straight_through

LOG_VAR_LIMIT = 40.0  # exp(-40) is the mean loss of a target left in seconds squared


class LossBalance(nn.Module, ABC):
    """Combines mean losses of tasks into the objective."""

    @abstractmethod
    def combine(self, means: Tensor, shares: Tensor) -> Tensor:
        """Return the part of the objective one batch contributes.

        Args:
            means: Sum of the batch's per-event losses over the *window's* counts, shape (N,).
            shares: Batch counts over window counts, shape (N,); parts that are added once a window are scaled by it,
                so that the batches of an accumulation window sum to what one big batch gives.

        Returns:
            A scalar with graph.
        """

    @abstractmethod
    def effective_weights(self) -> Tensor:
        """Return the factor on each mean loss, detached, shape (N,)."""

    def scalars(self, terms: Sequence[str]) -> dict[str, float]:
        """Return values worth logging, by metric name."""
        return {}


class ManualBalance(LossBalance):
    """Adds ``weight * loss`` with the weights of the configuration."""

    weights: Tensor

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float64), persistent=False)

    def combine(self, means: Tensor, shares: Tensor) -> Tensor:
        """Return ``sum(weight * mean)``."""
        return (self.weights * means).sum()

    def effective_weights(self) -> Tensor:
        """Return the configured weights."""
        return self.weights


class UncertaintyBalance(LossBalance):
    """Learns a log variance for each task: ``sum(0.5 e^-s L + 0.5 s)`` (Kendall et al., arXiv:1705.07115).

    The older system adds ``s`` instead of ``s / 2``, which halves every learned variance, and decays ``s`` like a
    weight, which pulls all variances to one. Here the optimum is ``e^s = L``, and ``log_vars`` must not be decayed.
    """

    def __init__(self, num_terms: int) -> None:
        super().__init__()
        self.log_vars = nn.Parameter(torch.zeros(num_terms))

    def combine(self, means: Tensor, shares: Tensor) -> Tensor:
        """Return ``sum(0.5 e^-s mean + 0.5 s share)``."""
        log_vars = clamp_straight_through(self.log_vars.double(), LOG_VAR_LIMIT)
        return 0.5 * (torch.exp(-log_vars) * means + log_vars * shares).sum()

    def effective_weights(self) -> Tensor:
        """Return ``0.5 e^-s``."""
        return 0.5 * torch.exp(-self.log_vars.detach().double().clamp(-LOG_VAR_LIMIT, LOG_VAR_LIMIT))

    def scalars(self, terms: Sequence[str]) -> dict[str, float]:
        """Return ``task/<term>_log_var`` and ``task/<term>_weight``."""
        weights = self.effective_weights().tolist()
        found = {f"task/{term}_log_var": value for term, value in zip(terms, self.log_vars.tolist(), strict=True)}
        return found | {f"task/{term}_weight": value for term, value in zip(terms, weights, strict=True)}
