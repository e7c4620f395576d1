"""What guards the whole process of a run, and what its failure tells the user to do next."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from xectool.config.document import CONFIG_FILE
from xectool.errors import OutOfMemory, XecError, in_shell
from xectool.runlog.status_page import PHASES, Word
from xectool.runlog.storage import attempt_dir, slots_path
from xectool.runlog.worker_slots import stacks_path
from xectool.runlog.writer import RunWriter
from xectool.training.guards.failure_folders import FailureFolders
from xectool.training.guards.phase_limits import Deadlines
from xectool.training.guards.process import CrashStacks
from xectool.training.guards.watchdog import Watchdog, Witness
from xectool.training.process.memory_faults import oom_event
from xectool.training.process.progress import Observer
from xectool.training.stepping.parts import RunParts
from xectool.training.symptoms.torch_signs import CompilerLog, TorchWarnings, compile_is_suppressed


class GuardSession:
    """Entered around a training; an error that leaves it is on record with the command that explains it.

    Args:
        parts: What is trained.
        writer: The run's record.
        observer: Whoever watches.
    """

    def __init__(self, parts: RunParts, writer: RunWriter, observer: Observer) -> None:
        self.parts = parts
        self.writer = writer
        self.observer = observer
        self._folders = FailureFolders(parts, writer)
        self._stack = ExitStack()

    def __enter__(self) -> GuardSession:
        guards, page = self.parts.config.guards, self.writer.status
        attempt = attempt_dir(self.writer.run_dir, self.writer.attempt)
        stacks = stacks_path(slots_path(attempt, self.parts.ranks.rank))
        self._stack.enter_context(CrashStacks(stacks, guards))
        if guards.active("G18") or guards.active("G19"):
            deadlines = Deadlines.of(self.parts.config, self.parts.ranks.world_size)
            self._stack.enter_context(Watchdog(page, guards, self._witness(stacks), deadlines=deadlines))
        if guards.active("G29"):
            self._stack.enter_context(TorchWarnings(self.say))
        if guards.active("G17") and self.parts.execution.compile_mode is not None:
            self._stack.enter_context(CompilerLog(self.say))
            if compile_is_suppressed():
                self.say("compile_suppressed", "failures of the compiler are hidden: parts of the model run eagerly")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        for loader in (self.parts.train_loader, self.parts.val_loader):
            loader.close()  # a caller that goes on after a failure keeps no reading threads
        if isinstance(error, XecError):
            self._fail(error)

    def say(self, kind: str, message: str = "", /, **data: Any) -> None:
        """Record an event at the step the run is in; may be called from any thread."""
        page = self.writer.status
        self.writer.event(kind, message, step=page[Word.STEP], epoch=page[Word.EPOCH], **data)
        if message:
            self.observer.message(message)

    def _witness(self, stacks: Path) -> Witness:
        keep = partial(self._folders.write, "hang")
        return Witness(stacks, self.say, keep, f"xectool diagnose run {in_shell(self.writer.run_dir)}")

    def _fail(self, error: XecError) -> None:
        page, step = self.writer.status, next_step(error, self.writer.run_dir)
        if isinstance(error, OutOfMemory):
            facts = oom_event(error, self.parts.model, PHASES[page[Word.PHASE]])
            self.say("oom", **facts, incident=self._folders.write("oom", facts))
        error.fix = f"{error.fix}\n# next: {step}" if error.fix else step
        self.writer.event(
            "failed",
            f"{type(error).__name__}: {error.problem}",
            step=page[Word.STEP],
            epoch=page[Word.EPOCH],
            code=error.code,
            error=type(error).__name__,
            phase=PHASES[page[Word.PHASE]],
            next=step,
        )


def next_step(error: XecError, run_dir: Path) -> str:
    """Return the command that looks into a failure."""
    run = in_shell(run_dir)
    if error.code == "XT-RUN-GONE":  # with its record
        return "xectool explain XT-RUN-GONE"
    if error.code.startswith(("XT-NAN", "XT-QUARANTINE")):
        return f"xectool diagnose nan-batch {in_shell(run_dir / CONFIG_FILE)} --run {run}"
    return f"xectool diagnose run {run}"
