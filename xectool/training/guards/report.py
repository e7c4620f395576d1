"""What a guard has to say: to the record always, to the user where it matters to them."""

from __future__ import annotations

from typing import Any, Final

from xectool.errors import in_shell
from xectool.runlog.writer import RunWriter
from xectool.training.process.progress import Observer

CODES: Final = {
    "copied_light": "XT-DUPLICATE-EVENTS",
    "files_differ": "XT-INPUT-SCALE",
    "input_scale": "XT-INPUT-SCALE",
    "invalid_npho": "XT-NAN-DATA",
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
        self._told = set[str]()

    def event(
        self, kind: str, message: str = "", /, *, say: bool = True, code: str | None = None, of: str = "", **data: Any
    ) -> None:
        """Record an event; its message is shown to the user too, of a finding with the line that tells more, once.

        Args:
            kind: Kind of the event.
            message: One sentence.
            say: Whether it is shown.
            code: Finding before what is shown, empty for none; that of the kind without.
            of: What the message is of, such as ``validation``: stands before it where it is shown, not in the record.
            data: Fields of the event.
        """
        self.writer.event(kind, message, step=self.step, epoch=self.epoch, **data)
        if message and say:
            found = CODES.get(kind, "") if code is None else code
            self.observer.message(": ".join(part for part in (found and f"warning {found}", of, message) if part))
            if found and found not in self._told:
                self._told.add(found)
                self.observer.message(f"  fix: xectool diagnose run {in_shell(self.writer.run_dir)}")
