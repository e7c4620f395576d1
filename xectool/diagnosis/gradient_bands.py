"""What a gradient norm says: bands without gaps over the norm before clipping, and the clip that would fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from xectool.diagnosis.evidence.statistics import Series, finite, median, quantile

CLIP_OVER_P95: Final = 3.0  # F041: three times the 95 % quantile, the middle of the 2-5 x rule
OCCASIONAL: Final = 0.05  # E.7, shares of clipped steps
FREQUENT: Final = 0.5
SPIKE: Final = 10.0  # E.7: norm over its median

# E.7: upper edges of the bands for grad_clip 1; they scale with the clip.
BANDS: Final[Sequence[tuple[float, str]]] = (
    (1e-3, "very small (vanishing?): check training.lr and the loss scale"),
    (0.01, "stable: no action needed"),
    (0.1, "healthy: clipping never acts"),
    (0.5, "normal"),
    (0.8, "moderate: some headroom"),
    (1.0, "near the ceiling"),
)


@dataclass(frozen=True)
class GradientSummary:
    """Gradient norms of some steps, before clipping.

    Attributes:
        steps: Steps counted.
        median: Median norm.
        p95: 95 % quantile.
        maximum: Largest.
        clipped: Share of clipped steps.
        band: What the 95 % quantile says.
    """

    steps: int
    median: float
    p95: float
    maximum: float
    clipped: float
    band: str


def summarise(norms: Series, clip_coefficients: Series, clip: float, *, may_be_raised: bool = True) -> GradientSummary:
    """Return the summary of some steps.

    Args:
        norms: Norms before clipping, shape (N,).
        clip_coefficients: Factors applied, shape (N,).
        clip: The configured limit; 0 for none.
        may_be_raised: Whether nothing says that the limit is too high.
    """
    kept = finite(norms)
    clipped = float(np.mean(clip_coefficients < 1)) if clip_coefficients.size else 0.0
    largest = float(kept.max()) if kept.size else math.nan
    return GradientSummary(
        steps=int(norms.size),
        median=median(norms),
        p95=quantile(norms, 0.95),
        maximum=largest,
        clipped=clipped,
        band=band(
            quantile(norms, 0.95) if kept.size == norms.size else math.nan, clipped, clip, may_be_raised=may_be_raised
        ),
    )


def band(norm: float, clipped: float, clip: float, *, may_be_raised: bool = True) -> str:
    """Return what a norm says, given the share of clipped steps; every norm lies in exactly one band.

    >>> band(0.005, 0.0, 1.0)
    'stable: no action needed'
    """
    if not math.isfinite(norm):
        return "not finite"
    if clip > 0 and clipped > FREQUENT:
        advice = "; if the loss stands still, raise training.grad_clip or lower lr" if may_be_raised else ""
        return f"clipping most steps, no harm to AdamW{advice}"
    scale = clip or 1.0
    for edge, text in BANDS:
        if norm < edge * scale:
            return text
    if not clip:
        return "above 1, and nothing is clipped"
    if clipped > OCCASIONAL:
        return "above the clip: frequent clipping"
    return "above the clip: occasional clipping"


def suggested_clip(norms: Series) -> float:
    """Return the clip that catches outliers: 3 x p95, but no spike of ten medians; 1 without any norm.

    In a short run a few bad events are the p95.
    """
    value, spike = CLIP_OVER_P95 * quantile(norms, 0.95), SPIKE * median(norms)
    value = min(value, spike) if spike > 0 else value
    if not math.isfinite(value) or value <= 0:
        return 1.0
    return float(f"{value:.2g}")
