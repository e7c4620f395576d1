"""What the child process is asked for; loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

VALID_NPHO: Final = 0.99
"""Share of the sensors whose photons are valid, where no events are at hand: 1 % dead channels."""
VALID_TIME: Final = 1.0
"""Share of the sensors whose time is valid, where no events are at hand: the most that can be."""


@dataclass(frozen=True)
class StepRequest:
    """One step to tape.

    Attributes:
        config: The configuration as plain values.
        batch_size: Events of one batch.
        accum: Batches of one optimizer step.
        amp: ``off``, ``bf16`` or ``fp16``, resolved for the device.
        validation_batch: Events of one batch of validation; 0 leaves validation out.
        valid_npho: Share of the sensors whose photons are valid.
        valid_time: Share of the sensors whose time is valid.
        on_gpu: Whether the step is one of a GPU, which takes all events of a batch at once.
    """

    config: Mapping[str, Any]
    batch_size: int
    accum: int = 1
    amp: str = "off"
    validation_batch: int = 0
    valid_npho: float = VALID_NPHO
    valid_time: float = VALID_TIME
    on_gpu: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)
