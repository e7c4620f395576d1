"""What gives events their weights in the loss.

Axes: B events, S sensors (4760), D numbers of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt


class EventWeigher(Protocol):
    """Abstract source of loss weights."""

    def weights(
        self, targets: Mapping[str, npt.NDArray[np.float32]], npho: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Return the weight of each event, shape (B,), from its truth, each (B, D), and its photons, (B, S)."""
        ...
