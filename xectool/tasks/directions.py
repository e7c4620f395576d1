"""Angles between directions given as (theta, phi), without loss of precision at small angles.

Axes: B events, D components.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unit_vectors(angle_deg: Tensor) -> Tensor:
    """Return the emission direction of (theta, phi), MEG convention ``(-sin t cos p, sin t sin p, cos t)``.

    Args:
        angle_deg: theta and phi in degrees, shape (B, 2).

    Returns:
        Unit vectors, shape (B, 3).
    """
    theta, phi = torch.deg2rad(angle_deg).unbind(dim=-1)
    return torch.stack([-theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], dim=-1)


def one_minus_cosine(first_deg: Tensor, second_deg: Tensor) -> Tensor:
    """Return 1 - cos of the opening angle by the haversine formula.

    ``1 - dot`` of two float32 unit vectors is rounding noise below 0.02 degrees; the haversine keeps full relative
    precision and has a finite gradient everywhere, coincident and opposite directions included.

    Args:
        first_deg: theta and phi in degrees, shape (B, 2).
        second_deg: theta and phi in degrees, shape (B, 2).

    Returns:
        Values in [0, 2], shape (B,).
    """
    half = torch.deg2rad(first_deg - second_deg) / 2
    sin_theta = torch.deg2rad(first_deg[..., 0]).sin() * torch.deg2rad(second_deg[..., 0]).sin()
    return 2 * (half[..., 0].sin().square() + sin_theta * half[..., 1].sin().square())


def opening_angle_deg(first_deg: Tensor, second_deg: Tensor) -> Tensor:
    """Return the opening angle between two directions in degrees, shape (B,); arguments as `one_minus_cosine`."""
    half_sine = (one_minus_cosine(first_deg, second_deg) / 2).clamp(0, 1).sqrt()
    return torch.rad2deg(2 * half_sine.asin())


def vector_angle_deg(first: Tensor, second: Tensor) -> Tensor:
    """Return the angle between vectors of any length in degrees.

    Args:
        first: Vectors, shape (B, 3).
        second: Vectors, shape (B, 3).

    Returns:
        Angles in [0, 180], shape (B,); 90 where a vector is zero.
    """
    cross = torch.linalg.cross(first, second).norm(dim=-1)
    return torch.rad2deg(torch.atan2(cross, (first * second).sum(-1))).where(first.ne(0).any(-1), 90.0)


def wrap_deg(angle_deg: Tensor) -> Tensor:
    """Return angles wrapped into [-180, 180) degrees."""
    return torch.remainder(angle_deg + 180.0, 360.0) - 180.0
