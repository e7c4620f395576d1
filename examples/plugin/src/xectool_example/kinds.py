"""A kind of training: the configuration of one of xectool's three with a kind of its own. No torch here."""

from __future__ import annotations

from typing import Literal

from xectool.config.root import RegressorConfig
from xectool.config.section import knob


class PhotonsOnlyConfig(RegressorConfig):
    """A regressor that never sees a time: what are the times worth?"""

    kind: Literal["photons_only"] = knob("photons_only", "What is trained")  # type: ignore[assignment]
