"""One attempt at a run, on one rank: record, tracking, training, what is written at the end."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.diagnosis.evidence.files import TRANSFER_FILE
from xectool.engine.training_run.artifacts import RunOutputs, calibrate_conventional, write_outputs
from xectool.engine.training_run.result import TrainResult
from xectool.errors import counted, in_shell
from xectool.findings import Finding, Severity
from xectool.runlog.atomic import write_json
from xectool.runlog.writer import RunWriter
from xectool.training.guards.session import GuardSession
from xectool.training.process.device import compile_faults
from xectool.training.process.memory_faults import memory_faults
from xectool.training.process.progress import Observer
from xectool.training.ranks.faults import known_fault
from xectool.training.record.description import describe_run, tracker_settings
from xectool.training.record.heartbeat import Heartbeat
from xectool.training.record.recorder import watch_readers
from xectool.training.record.run_dir import RunPlace
from xectool.training.record.run_facts import require_sound_resume, resume_facts, run_start_facts
from xectool.training.saving.resume import data_facts, objective_changes
from xectool.training.saving.saver import Saver
from xectool.training.stepping.build import RunData
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.symptoms.torch_signs import determinism_faults
from xectool.training.tracking import NullTracker, TrackerHandle, start_tracker
from xectool.training.trainer import FitResult, Trainer


@dataclass(frozen=True)
class RunAttempt:
    """One attempt at a run, from its first step to its last file.

    Attributes:
        parts: What is trained.
        data: Its events.
        place: Run directory and checkpoint.
        observer: Whoever watches.
        started: What became of each weight of another model the run starts from.
    """

    parts: RunParts
    data: RunData
    place: RunPlace
    observer: Observer
    started: dict[str, Any]

    def run(self, progress: Progress, max_steps: int | None, findings: tuple[Finding, ...]) -> TrainResult:
        """Train from ``progress`` on.

        Raises:
            XecError: As `xectool.engine.train`.
        """
        ranks, writer = self.parts.ranks, self._writer()
        with ExitStack() as stack:
            stack.callback(writer.close)
            ranks.note_into(writer.status)
            heartbeat = stack.enter_context(Heartbeat(writer.status, self.parts.execution.device))
            tracker = ranks.on_first(lambda: self._start_tracking(writer.attempt)) or NullTracker()
            heartbeat.aside.add(tracker.pid)
            stack.callback(self._finish_tracking, tracker)
            # entered last and so left first: the record has its last word before the tracker reads it to the end
            stack.enter_context(writer)
            stack.enter_context(GuardSession(self.parts, writer, self.observer))
            if ranks.world_size > 1:  # said in the record, too, as what it is
                stack.enter_context(known_fault(f"rank {ranks.rank}"))
            return self._result(*self._train(progress, tracker, max_steps, writer), findings)

    def _writer(self) -> RunWriter:
        """Return the record of this rank; the first one begins the attempt."""
        ranks, directory = self.parts.ranks, self.place.directory
        first = ranks.on_first(lambda: RunWriter(directory))
        attempt = ranks.share(first.attempt if first else 0)
        return first or RunWriter(directory, attempt=attempt, rank=ranks.rank)

    def _start_tracking(self, attempt: int) -> TrackerHandle:
        directory = self.place.directory
        describe_run(self.parts, self.data, directory, attempt)
        if self.started:
            write_json(directory / TRANSFER_FILE, self.started)
        settings = tracker_settings(self.parts, directory, attempt)
        return start_tracker(directory, settings, new_run=self.parts.config.checkpoint.new_mlflow_run)

    def _finish_tracking(self, tracker: TrackerHandle) -> None:
        state = tracker.finish(told=self.observer.message)
        if state.status != "done":
            self.observer.message(
                f"tracking is behind: {state.error}; xectool runs sync {in_shell(self.place.directory)}"
            )

    def _train(
        self, progress: Progress, tracker: TrackerHandle, max_steps: int | None, writer: RunWriter
    ) -> tuple[FitResult, RunOutputs]:
        parts, directory = self.parts, self.place.directory
        with memory_faults(parts.config, "training"), compile_faults(parts.execution), determinism_faults(writer.event):
            writer.status.phase("data_open")
            watch_readers(parts, writer)
            conventional = parts.ranks.on_first(lambda: calibrate_conventional(parts)) or {}
            writer.status.phase("build")
            facts = {**data_facts(self.data.train), "conventional": conventional}
            saver = Saver(parts, directory, writer, facts)
            note = saver.adopt(progress, self.place.checkpoint_path)
            if note:
                self.observer.message(note)
            self._record_start(saver, progress)
            fit = Trainer(parts, saver, self.observer, tracker, max_steps).fit(progress)
            outputs = None
            if fit.status != "interrupted":
                outputs = parts.ranks.on_first(
                    lambda: write_outputs(parts, self.data, fit, directory, conventional, self.observer)
                )
        kind = "interrupted" if fit.status == "interrupted" else "finished"
        reached = {"metrics": outputs.metrics} if outputs and outputs.metrics else {}
        writer.event(kind, fit.status, step=progress.step, epoch=progress.epoch, status=fit.status, **reached)
        return fit, outputs or RunOutputs()

    def _record_start(self, saver: Saver, progress: Progress) -> None:
        """Record what starts or goes on here; a run that goes on knows its good states and the events it leaves out."""
        checkpoint, path, writer = self.place.checkpoint, self.place.checkpoint_path, saver.writer
        if checkpoint is not None and path is not None:
            saver.recall(checkpoint, path.parent)
            facts = resume_facts(self.parts, self.place, progress, len(saver.states))
            facts["objective"] = objective_changes(self.parts.config, checkpoint)
            writer.resume(progress.step, progress.epoch, **facts)
            require_sound_resume(facts)
            self._leave_out_what_is_listed(progress, checkpoint)
        writer.event("run_start", step=progress.step, epoch=progress.epoch, **run_start_facts(self.parts, self.data))

    def _leave_out_what_is_listed(self, progress: Progress, checkpoint: Checkpoint) -> None:
        """Leave out what the run has found since the checkpoint, and write the list with files as they are called."""
        quarantine, place = self.parts.quarantine, self.place.directory
        added, unread = quarantine.read(place, progress.step, checkpoint.meta.get("train_files", ()))
        if added:
            self.observer.message(f"left out from here on, found bad later in this run: {counted(added, 'event')}")
        for (name, new), entries in quarantine.followed.items():
            left_out = counted(len(entries), "event")
            self.observer.message(f"left out of {new}, to which {name} was moved or copied: {left_out}")
        if unread:
            self.observer.message(f"{unread}; it stays as it is, and what it alone knows is left in until found again")
        elif quarantine.events:  # a look back at a step needs the list
            self.parts.ranks.on_first(lambda: quarantine.try_write(place))

    def _result(self, fit: FitResult, outputs: RunOutputs, findings: tuple[Finding, ...]) -> TrainResult:
        best, last = self.place.directory / store.BEST_NAME, self.place.directory / store.LAST_NAME
        history = fit.progress.history
        notes = tuple(Finding("XT-PLOT-SKIPPED", Severity.INFO, note) for note in outputs.notes)
        return TrainResult(
            run_dir=str(self.place.directory),
            status=fit.status,
            epochs=len(history),
            steps=fit.progress.step,
            best_epoch=fit.progress.best_epoch,
            metrics={**fit.metrics, **outputs.metrics},
            checkpoint_best=str(best) if fit.progress.best_epoch else None,
            checkpoint_last=str(last) if last.exists() else None,
            nonfinite_batches=self.parts.guard.total_bad,
            events_per_s=history[-1].get("perf/events_per_s") if history else fit.progress.stats.events_per_s,
            artifacts=tuple(str(path) for path in outputs.files),
            findings=(*findings, *notes),
        )
