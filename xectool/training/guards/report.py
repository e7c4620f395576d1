"""What a guard has to say: to the record always, to the user where it matters to them."""

from __future__ import annotations

from typing import Any, Final

from xectool.runlog.writer import RunWriter
from xectool.training.process.progress import Observer

CODES: Final = {
    "copied_light": "XT-DUPLICATE-EVENTS",
    "files_differ": "XT-INPUT-SCALE",
    "repeated_readings": "XT-DUPLICATE-EVENTS",
    "sensor_order": "XT-SENSOR-ORDER",
    "truth_elsewhere": "XT-TRUTH-ELSEWHERE",
}
"""Finding of `diagnose run` on data that a guard names while a run goes on, by the kind of the event."""


class Reporter:
    """Takes what guards find, at the step and epoch the run is in.

    Args:
        writer: The run's record.
        observer: Whoever watches.

    Attributes:
        step: Optimizer step in progress.
        epoch: Epoch in progress.
    """

    def __init__(self, writer: RunWriter, observer: Observer) -> None:
        self.writer = writer
        self.observer = observer
        self.step = 0
        self.epoch = 1

    def event(self, kind: str, message: str = "", /, *, say: bool = True, code: str = "", **data: Any) -> None:
        """Record an event; a message is shown to the user too, behind its code, unless ``say`` is False."""
        self.writer.event(kind, message, step=self.step, epoch=self.epoch, **data)
        if message and say:
            shown = code or CODES.get(kind, "")
            self.observer.message(f"{shown}: {message}" if shown else message)
