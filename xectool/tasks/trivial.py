"""The loss of the best prediction that does not look at the event.

Axes: B events, D components of a target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xectool.tasks.directions import unit_vectors
from xectool.tasks.losses import Loss

_GOLDEN = (5**0.5 - 1) / 2
_ITERATIONS = 80  # shrinks the bracket by 2e-17: to the last bit of float64


def trivial_baseline(loss: Loss, targets: Tensor, beta: float = 1.0) -> float:
    """Return the mean loss of the best constant prediction.

    It is the variance for ``mse``, the mean distance to the median for ``l1``, numerical for the other convex losses,
    ``1 - |mean direction|`` for ``cosine``, and the likelihood of the best Gaussian for ``gaussian_nll``.

    Args:
        loss: A loss of `LOSSES`.
        targets: Known truth in the units of the loss, shape (B, D), at least one event.
        beta: The loss's beta.

    Returns:
        Mean over events and components.
    """
    targets = targets.double()
    if loss.name == "cosine":
        vectors = unit_vectors(targets) if targets.shape[-1] == 2 else torch.nn.functional.normalize(targets, dim=-1)
        return float(1 - vectors.mean(dim=0).norm())
    if loss.head_factor == 2:
        spread = targets.var(dim=0, correction=0).clamp_min(1e-26).log()
        constant = torch.cat([targets.mean(dim=0), spread])
        return float(loss(constant.expand(len(targets), -1), targets, beta).mean())
    return float(_minimise(loss, targets, beta).mean())


def _minimise(loss: Loss, targets: Tensor, beta: float) -> Tensor:
    """Return the least mean loss of each component by golden-section search, shape (D,)."""

    def mean_loss(constant: Tensor) -> Tensor:
        return loss(constant.expand_as(targets), targets, beta).mean(dim=0)

    low, high = targets.amin(dim=0), targets.amax(dim=0)
    for _ in range(_ITERATIONS):
        step = _GOLDEN * (high - low)
        left, right = high - step, low + step
        keep_left = mean_loss(left) <= mean_loss(right)
        low, high = torch.where(keep_left, low, left), torch.where(keep_left, right, high)
    return mean_loss((low + high) / 2)
