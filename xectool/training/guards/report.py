"""What a guard has to say: to the record always, to the user where it matters to them."""

from __future__ import annotations

from typing import Any

from xectool.runlog.writer import RunWriter
from xectool.training.process.progress import Observer


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

    def event(self, kind: str, message: str = "", /, *, say: bool = True, **data: Any) -> None:
        """Record an event; a message is shown to the user too unless ``say`` is False."""
        self.writer.event(kind, message, step=self.step, epoch=self.epoch, **data)
        if message and say:
            self.observer.message(message)
