"""Pointwise losses of the regressor, by name.

Axes: B events, D components of a target, C values a loss returns for an event (D, or 1 for directions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from xectool.errors import ConfigError
from xectool.registry import Registry
from xectool.tasks.directions import one_minus_cosine

RELATIVE_FLOOR = 1e-3  # smallest |target| a relative loss divides by, in units of the target's scale
LOG_VAR_LIMIT = 60.0  # exp(60) * (1e4)^2 still fits float32

Pointwise = Callable[[Tensor, Tensor, float], Tensor]
Units = Literal["network", "unshifted", "physical"]


@dataclass(frozen=True)
class Loss:
    """A pointwise loss and what it has to be given.

    Attributes:
        name: Name in ``tasks.<task>.loss_fn``.
        pointwise: ``(prediction (B, D or 2D), target (B, D), beta) -> values (B, C)``.
        units: Units both arguments come in. ``network``: as the head gives them. ``unshifted``: divided by the target's
            scale only, so that a ratio to the target keeps its meaning. ``physical``: degrees, GeV, s, cm.
        head_factor: Head outputs for each target component.
    """

    name: str
    pointwise: Pointwise
    units: Units = "network"
    head_factor: int = 1

    def __call__(self, prediction: Tensor, target: Tensor, beta: float) -> Tensor:
        """Return pointwise values, shape (B, C), in float32 or better.

        Raises:
            ConfigError: The shapes do not belong together, or ``beta`` is negative.
        """
        _require_shapes(prediction, target, self.head_factor)
        if beta < 0:
            raise ConfigError(f"loss_beta {beta} is negative", fix="loss_beta: 1.0")
        wide = torch.promote_types(prediction.dtype, torch.float32)
        return self.pointwise(prediction.to(wide), target.to(wide), beta)


LOSSES: Registry[Loss] = Registry("loss", "xectool.tasks.losses")


def _add(name: str, pointwise: Pointwise, units: Units = "network", head_factor: int = 1) -> None:
    LOSSES.register(name)(Loss(name, pointwise, units, head_factor))


def _require_shapes(prediction: Tensor, target: Tensor, head_factor: int) -> None:
    expected = (*target.shape[:-1], target.shape[-1] * head_factor) if target.ndim else ()
    if target.ndim != 2 or tuple(prediction.shape) != expected:
        raise ConfigError(
            f"prediction {_shape(prediction)} vs target {_shape(target)}",
            where=f"the loss takes prediction (B, {'D' if head_factor == 1 else f'{head_factor}D'}) and target (B, D)",
            fix="give the truth branch and the head the same width",
        )


def _shape(tensor: Tensor) -> str:
    return f"({','.join(map(str, tensor.shape))}{',' if tensor.ndim == 1 else ''})"


def smooth_l1(prediction: Tensor, target: Tensor, beta: float) -> Tensor:
    """Return ``d^2 / 2b`` where ``|d| < b``, else ``|d| - b/2``; ``b = 0`` is the absolute error."""
    return F.smooth_l1_loss(prediction, target, reduction="none", beta=beta)


def absolute(prediction: Tensor, target: Tensor, beta: float) -> Tensor:
    """Return ``|d|``."""
    return (prediction - target).abs()


def squared(prediction: Tensor, target: Tensor, beta: float) -> Tensor:
    """Return ``d^2``."""
    return (prediction - target).square()


def relative_absolute(prediction: Tensor, target: Tensor, beta: float) -> Tensor:
    """Return ``|d| / max(|y|, floor)``."""
    return absolute(prediction, target, beta) / target.abs().clamp_min(RELATIVE_FLOOR)


def relative_smooth_l1(prediction: Tensor, target: Tensor, beta: float) -> Tensor:
    """Return smooth L1 divided by ``max(|y|, floor)``."""
    return smooth_l1(prediction, target, beta) / target.abs().clamp_min(RELATIVE_FLOOR)


def relative_squared(prediction: Tensor, target: Tensor, beta: float) -> Tensor:
    """Return ``d^2 / max(y^2, floor^2)``."""
    return squared(prediction, target, beta) / target.square().clamp_min(RELATIVE_FLOOR**2)


def clamp_straight_through(values: Tensor, limit: float) -> Tensor:
    """Return values clamped to ``[-limit, limit]`` whose gradient is taken at the clamped value.

    An ordinary clamp has no gradient outside its range, so a value that strays there could never return.
    """
    return values + (values.clamp(-limit, limit) - values).detach()


def gaussian_nll(prediction: Tensor, target: Tensor, beta: float) -> Tensor:
    """Return the beta-NLL ``(e^s)^b 0.5 (s + d^2 e^-s)`` with the factor detached (Seitzer et al., arXiv:2203.09168).

    Args:
        prediction: Means then log variances ``s``, shape (B, 2D).
        target: Shape (B, D).
        beta: 0 is the plain likelihood, 1 gives every event the weight of a squared error.

    Returns:
        Values, shape (B, D).
    """
    mean, log_var = prediction.chunk(2, dim=-1)
    log_var = clamp_straight_through(log_var, LOG_VAR_LIMIT)
    nll = 0.5 * (log_var + (target - mean).square() * torch.exp(-log_var))
    return torch.exp(beta * log_var.detach()) * nll


def cosine(prediction: Tensor, target: Tensor, beta: float) -> Tensor:
    """Return 1 - cos of the opening angle, of (theta, phi) in degrees or of 3-vectors.

    Args:
        prediction: Shape (B, 2) or (B, 3).
        target: The same shape.
        beta: Not used.

    Returns:
        Values, shape (B, 1).

    Raises:
        ConfigError: The target is neither two angles nor a 3-vector.
    """
    if target.shape[-1] == 2:
        return one_minus_cosine(prediction, target).unsqueeze(-1)
    if target.shape[-1] == 3:
        return (1 - F.cosine_similarity(prediction, target, dim=-1, eps=1e-6)).unsqueeze(-1)
    raise ConfigError(
        f"loss 'cosine' takes 2 angles or a 3-vector, not {target.shape[-1]} components",
        where="tasks.<task>.loss_fn",
        fix="loss_fn: smooth_l1",
    )


_add("smooth_l1", smooth_l1)
# The older system's huber is its smooth_l1 (a true Huber loss differs by the factor beta): same name, same values.
_add("huber", smooth_l1)
_add("l1", absolute)
_add("mse", squared)
_add("l2", squared)
_add("relative_l1", relative_absolute, units="unshifted")
_add("relative_smooth_l1", relative_smooth_l1, units="unshifted")
_add("relative_mse", relative_squared, units="unshifted")
_add("relative_l2", relative_squared, units="unshifted")
_add("gaussian_nll", gaussian_nll, head_factor=2)
_add("cosine", cosine, units="physical")
