"""Gradient norms by parameter block: which are dead, which explode, and what clip would fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from xectool.diagnosis.evidence.statistics import Series, finite, median, quantile
from xectool.diagnosis.gradient_bands import GradientSummary, suggested_clip, summarise
from xectool.errors import counted

EXPLODED: Final = 10.0  # F033: growth of the 95 % quantile
VANISHED: Final = 1e-3  # of the block's share of the total norm in the first steps; sound runs keep a tenth
_FEWEST: Final = 20
_LASTING: Final = 3  # steps at the end that are all far above the first ones; a single one is an event, no explosion
_TENTH: Final = 10


@dataclass(frozen=True)
class BlockGradients:
    """Gradient norms of one parameter block before clipping.

    Attributes:
        block: Its name.
        median: Median norm.
        p95: 95 % quantile.
        maximum: Largest.
        growth: 95 % quantile of the last tenth of the steps over that of the first tenth.
        state: ``ok``, ``dead`` (exactly zero in every step), ``vanished`` (next to nothing beside the others, as a
            rate that is too high leaves a block), ``exploding`` or ``nonfinite``.
    """

    block: str
    median: float
    p95: float
    maximum: float
    growth: float
    state: str


@dataclass(frozen=True)
class GradientReport:
    """Gradient norms of a run or of some steps.

    Attributes:
        blocks: By block, largest first.
        total: Of all parameters together.
        grad_norm_max: Largest total norm.
        suggested_grad_clip: Three times the 95 % quantile.
        grad_clip: The configured limit.
        nonfinite: Steps whose norm is not finite.
        verdict: One line.
    """

    blocks: tuple[BlockGradients, ...]
    total: GradientSummary
    grad_norm_max: float
    suggested_grad_clip: float
    grad_clip: float
    nonfinite: int
    verdict: str

    @property
    def bad(self) -> bool:
        """Whether a block is dead, has vanished, explodes or is not finite, a step is not, or none was taken."""
        return any(block.state != "ok" for block in self.blocks) or self.nonfinite > 0 or not self.total.steps


def gradient_report(
    norms: Series, clip_coefficients: Series, blocks: Mapping[str, Series], expected: tuple[str, ...], clip: float
) -> GradientReport:
    """Return the gradient norms of some steps in numbers.

    Args:
        norms: Total norms before clipping, shape (N,).
        clip_coefficients: Factors applied, shape (N,).
        blocks: Norms by block, shape (N,) each; NaN where a block had no gradient at all.
        expected: Names of all trained blocks; one without any norm is dead.
        clip: The configured limit; 0 for none.
    """
    names = [*blocks, *(name for name in expected if name not in blocks)]
    rows = [_block(name, blocks.get(name, np.full(norms.size, np.nan)), norms) for name in names]
    total = summarise(norms, clip_coefficients, clip)
    rows.sort(key=lambda row: (row.state == "ok", -row.p95 if math.isfinite(row.p95) else 0.0))
    return GradientReport(
        blocks=tuple(rows),
        total=total,
        grad_norm_max=total.maximum,
        suggested_grad_clip=suggested_clip(norms),
        grad_clip=clip,
        nonfinite=int(np.sum(~np.isfinite(norms))),
        verdict=_verdict(rows, total, norms),
    )


def _block(name: str, values: Series, norms: Series) -> BlockGradients:
    known, total = values[np.isfinite(norms)], finite(norms)
    size = max(3, known.size // _TENTH)
    early, late = quantile(known[:size], 0.95), quantile(known[-size:], 0.95)
    growth = late / early if early > 0 else math.nan
    sound = finite(known)
    state = _state(known, sound, growth, median(known[:size]))
    if state == "exploding" and median(known[-size:]) < median(total[:size]):
        state = "ok"  # it grew out of next to nothing and is still less than all together were
    return BlockGradients(
        block=name,
        median=median(known),
        p95=quantile(known, 0.95),
        maximum=float(sound.max()) if sound.size else math.nan,
        growth=growth,
        state="vanished" if state == "ok" and _vanished(known, total, size) else state,
    )


def _vanished(norms: Series, total: Series, size: int) -> bool:
    """Return whether a block lost its share of the total norm, and not because another one exploded.

    A fit that goes well lowers all norms by as much as a rate that kills blocks; the shares tell them apart.
    """
    if norms.size < _FEWEST:
        return False
    share = np.divide(norms, total, out=np.full(norms.size, np.nan), where=total > 0)
    early, late = median(norms[:size]), median(norms[-size:])
    return 0 < early >= EXPLODED * late and median(share[-size:]) <= VANISHED * median(share[:size])


def _state(known: Series, sound: Series, growth: float, usual: float) -> str:
    if np.isinf(known).any():
        return "nonfinite"
    if known.size >= 1 and not sound.any():
        return "dead"
    if known.size >= _FEWEST and growth >= EXPLODED and sound[-_LASTING:].min() >= EXPLODED * usual:
        return "exploding"
    return "ok"


def _verdict(rows: list[BlockGradients], total: GradientSummary, norms: Series) -> str:
    if not total.steps:
        return "no step was recorded"
    bad = [f"{row.block} is {row.state}" for row in rows if row.state != "ok"]
    lost = int(np.sum(~np.isfinite(norms)))
    if lost:
        bad.append(f"the gradient of {lost} of {counted(total.steps, 'step')} is not finite")
    if bad:
        return "; ".join(bad[:5])
    return f"{total.band} (p95 {total.p95:.3g}, {total.clipped:.0%} of the steps clipped)"
