"""What makes a loss jump and is no fault: another objective, or sensors that are hard to foretell."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from xectool.diagnosis.evidence.evidence import Evidence

AFTER_RESUME: Final = 20  # steps of another objective that are told as such


def of_another_objective(evidence: Evidence, row: int) -> bool:
    """Return whether the attempt of a row had just gone on with another objective: its losses do not compare."""
    step = int(evidence.steps["step"][row])
    return any(event.data.get("objective") and 0 < step - event.step <= AFTER_RESUME for event in evidence.of("resume"))


def by_mask(evidence: Evidence, rows: NDArray[np.intp]) -> bool:
    """Return whether all that is high is so by the sensors that were hidden, as the look at the events found."""
    numbers = set(evidence.steps["step"][rows].astype(int).tolist())
    said = [event for event in evidence.of("spike") if event.step in numbers]
    return bool(said) and all(event.data.get("by_mask") for event in said)
