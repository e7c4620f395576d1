"""Sensors that an inpainter fills with negative light: they read 0, which says more of the inpainter than of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import Tensor

from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.findings import Finding, Severity
from xectool.tasks.event_variants import Fill
from xectool.training.predicting.repair import DEEP_NPHO

_MANY_DEEP: Final = 0.01  # of what was filled


class CountedFill:
    """What an inpainter says about hidden sensors, counted.

    Attributes:
        filled: Sensors that it had an answer for.
        negative: Those with less than nothing.
        deep: Those with so little that it is no fluctuation about nothing.
    """

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self.filled = self.negative = self.deep = 0

    def __call__(self, npho: Tensor, time: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return what it says, each of shape (B, S)."""
        answer = self._fill(npho, time, mask)
        photons = answer["npho"][mask]
        self.filled += int((photons.abs() <= UNKNOWN_ABOVE).sum())
        self.negative += int((photons < 0).sum())
        self.deep += int((photons < DEEP_NPHO).sum())
        return answer


def negative_fills(filled: int, negative: int, deep: int, where: str, again: str) -> Iterator[Finding]:
    """Yield a warning where much that was filled is far below nothing.

    Args:
        filled: Sensors that were filled.
        negative: Those with less than nothing.
        deep: Those far below.
        where: What the warning is of.
        again: Inpainter and data as arguments of a command.
    """
    if deep > _MANY_DEEP * filled:
        yield Finding(
            "XT-REPAIR-NEGATIVE",
            Severity.WARNING,
            f"{negative} of {filled} filled readings were negative, {deep} of them below {DEEP_NPHO:g} photons: they "
            "read 0, for no light is less than none",
            where=where,
            fix=f"xectool predict {again}   # scores the inpainter on sensors with a reading; train it longer",
        )
