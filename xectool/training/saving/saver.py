"""When and under which names a run saves itself."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.config.rates import gentler_options
from xectool.errors import CheckpointError, DiskError, RunDiverged, in_shell
from xectool.models.fingerprint import RECORDS, outputs_of
from xectool.runlog.writer import RunWriter
from xectool.training.events import quarantine
from xectool.training.record import incidents
from xectool.training.record.state_marks import state_marks
from xectool.training.saving import ring
from xectool.training.saving.core_wait import core_wait_s
from xectool.training.saving.record_place import RecordPlace
from xectool.training.saving.ring import GoodStates
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress, capture
from xectool.training.symptoms.nonfinite import nonfinite_weights
from xectool.training.symptoms.weight_likeness import sign_digest


class Saver:
    """Saves a run between steps.

    ``checkpoint_last.pt`` is written whole; ``checkpoint_best.pt`` and the numbered checkpoints are further names of
    one that was last when its epoch ended.

    Args:
        parts: What is trained.
        run_dir: Where checkpoints go.
        writer: The run's own record.
        facts: Lineage and data identity, saved in every checkpoint.

    Attributes:
        states: Good states to go back to, saved with each checkpoint; empty unless ``guards.on_spike`` is ``rewind``.
        saved_step: Last step that is in a checkpoint of this process, -1 before the first.
        place: Tells whether the run directory is still there.
    """

    def __init__(self, parts: RunParts, run_dir: Path, writer: RunWriter, facts: dict[str, Any]) -> None:
        self.parts = parts
        self.run_dir = run_dir
        self.writer = writer
        self.facts = facts
        self.states = GoodStates(parts.config.guards.ring_states, parts.config.guards.ring_steps)
        self.saved_step = -1
        self.place = RecordPlace(run_dir, writer.attempt)
        self._saved_at = time.monotonic()

    @property
    def last(self) -> Path:
        """The checkpoint a resume continues from."""
        return self.run_dir / store.LAST_NAME

    def save(self, progress: Progress) -> None:
        """Write ``checkpoint_last.pt`` on the first rank, for all of them.

        Raises:
            RunDiverged: The weights are not finite; nothing is written.
            DiskError: The disk refuses; the previous checkpoint is intact.
        """
        bad = nonfinite_weights(self.parts.model)
        if bad:
            raise self.refuse_weights(bad, progress.step)
        self.parts.ranks.on_first(lambda: self.write(progress))
        self._saved_at, self.saved_step = time.monotonic(), progress.step

    def refuse_weights(self, bad: Sequence[str], step: int) -> RunDiverged:
        """Return the error that says which weights are not finite; they are never saved."""
        resumed = f"--resume {in_shell(self.last)} " if self.last.exists() else ""
        return RunDiverged(
            f"{len(bad)} tensors of the model are not finite ({', '.join(bad[:3])}); they are not saved",
            where=f"step {step}",
            fix=f"{resumed}{gentler_options(self.parts.config)}",
            code="XT-NAN-WEIGHTS",
        )

    def write(self, progress: Progress) -> None:
        """Write ``checkpoint_last.pt`` whatever other ranks do; the weights are finite.

        Raises:
            DiskError: The disk refuses; the previous checkpoint is intact.
            WorldError: The run directory is gone; the checkpoint is in one made anew, if no other run is there.
        """
        is_gone = self.place.is_gone()
        if is_gone and self.place.is_taken():
            raise self.place.loss(progress.step, None)
        self._look_at_disk(progress)
        began, waited_s = time.perf_counter(), core_wait_s()
        facts = self._facts()
        try:
            store.save(self.last, capture(self.parts, progress, facts))
        except DiskError as error:
            place = {"step": progress.step, "epoch": progress.epoch}
            self.writer.event("checkpoint_failed", error.problem, **place, reason=error.problem, path=error.where)
            raise
        if is_gone:
            raise self.place.loss(progress.step, self.last)
        self.writer.event(
            "checkpoint",
            step=progress.step,
            epoch=progress.epoch,
            path=self.last.name,
            size_bytes=self.last.stat().st_size,
            bytes=self.last.stat().st_size,
            seconds=time.perf_counter() - began,
            core_wait_s=core_wait_s() - waited_s,
            signs=sign_digest(self.parts.model),
            marks=state_marks(self.parts, progress),
        )

    def is_due(self, progress: Progress) -> bool:
        """Return whether another save is wanted: so many steps or minutes have passed, or the run directory is gone."""
        config = self.parts.config.checkpoint
        by_step = config.save_steps is not None and progress.step % config.save_steps == 0
        waited_s = time.monotonic() - self._saved_at
        by_time = config.save_minutes is not None and waited_s >= 60.0 * config.save_minutes
        return by_step or by_time or self.place.is_found_gone()

    def try_save(self, progress: Progress) -> str:
        """Write ``checkpoint_last.pt`` inside an epoch.

        A disk that refuses here costs no training: it is tried again when the next save is due, and the end of the
        epoch insists.

        Returns:
            Why nothing could be written, or an empty string.

        Raises:
            RunDiverged: The weights are not finite; nothing is written.
        """
        try:
            self.save(progress)
        except DiskError as error:
            self._saved_at = time.monotonic()
            kept = "the previous checkpoint is intact" if self.last.exists() else "there is no checkpoint yet"
            return f"{error.problem}; training goes on from memory, {kept}"
        return ""

    def recall(self, checkpoint: Checkpoint, run_dir: Path) -> None:
        """Take over the good states that a checkpoint names, from the directory of its run."""
        if self.parts.config.guards.on_spike == "rewind":
            self.states.read(run_dir, list(checkpoint.meta.get("ring", [])))

    def _facts(self) -> dict[str, Any]:
        """Return what goes into a checkpoint beside the state; the good states it names are on the disk before it."""
        states = {"ring": self.states.write(self.run_dir)} if len(self.states) else {}
        networks: dict[str, nn.Module] = {"model": self.parts.model}
        if self.parts.average.best_model is not self.parts.model:  # predictions are made with the average
            networks["ema"] = self.parts.average.best_model
        try:
            outputs = {RECORDS[role]: outputs_of(network) for role, network in networks.items()}
        except torch.OutOfMemoryError:  # a checkpoint without them is better than none
            outputs = {RECORDS["model"]: {}}
        return self.facts | states | outputs

    def _look_at_disk(self, progress: Progress) -> None:
        """Record a disk that has no room for three more checkpoints, as many as a save and its names may need."""
        if not self.parts.config.guards.active("G24") or not self.last.exists():
            return
        needed, free = 3 * self.last.stat().st_size, shutil.disk_usage(self.run_dir).free
        if free < needed:
            message = f"{free / 1e9:.2f} GB are free on the disk of the run, less than three checkpoints"
            self.writer.event(
                "disk_low", message, step=progress.step, epoch=progress.epoch, free_bytes=free, needed_bytes=needed
            )

    def adopt(self, progress: Progress, source: Path | None) -> str:
        """Make the names in the run directory those of the run that starts here or goes on from ``source``.

        A run may go on in another directory, or from an earlier checkpoint than its last; its best checkpoint is then
        fetched, and one of an abandoned continuation is never taken for it.

        Returns:
            What the user should know, or an empty string.

        Raises:
            DiskError: The best checkpoint could not be copied.
        """
        note = self.parts.ranks.on_first(lambda: self._adopt(progress, source))
        best = self.parts.ranks.share((progress.best_loss, progress.best_epoch, progress.epochs_since_best))
        progress.best_loss, progress.best_epoch, progress.epochs_since_best = best
        return note or ""

    def _adopt(self, progress: Progress, source: Path | None) -> str:
        if source == self.last:
            self._publish(progress)
        if source is None or source.parent.resolve() != self.run_dir.resolve():
            self._give_up()
        if source is None or not progress.best_epoch:
            return ""
        best = self.run_dir / store.BEST_NAME
        for candidate in (best, source.parent / store.BEST_NAME, source):
            if _is_best(candidate, progress):
                if candidate != best:
                    store.publish(candidate, best)
                return ""
        lost = progress.best_epoch
        progress.forget_best()
        return f"the checkpoint of the best epoch, {lost}, is not beside {source}; the next validation sets a new best"

    def _give_up(self) -> None:
        """Take away what a run that is given up here would hand on to the one that takes its place.

        Its incidents are evidence: they go to ``incidents_given_up``, in the place of older ones.
        """
        for left in (*self.run_dir.glob("checkpoint_*.pt"), self.run_dir / quarantine.FILE_NAME):
            left.unlink(missing_ok=True)
        found = self.run_dir / incidents.DIRECTORY
        aside = found.with_name(f"{found.name}_given_up")
        for folder in (self.run_dir / ring.DIRECTORY, *([aside] if found.is_dir() else [])):
            if folder.is_dir():
                shutil.rmtree(folder)
        if found.is_dir():
            found.rename(aside)

    def publish(self, progress: Progress) -> None:
        """Give the checkpoint of a finished epoch its further names.

        Follows from ``progress`` alone, so a run killed between saving and naming makes up for it when it resumes.
        """
        self.parts.ranks.on_first(lambda: self._publish(progress))

    def _publish(self, progress: Progress) -> None:
        finished = progress.epoch - 1
        if progress.batch or not finished:
            return
        if progress.best_epoch == finished:
            store.publish(self.last, self.run_dir / store.BEST_NAME)
        if finished % self.parts.config.checkpoint.save_interval == 0:
            store.publish(self.last, self.run_dir / store.epoch_name(finished))


def _is_best(path: Path, progress: Progress) -> bool:
    """Return whether a file is the checkpoint of the best epoch of a run."""
    try:
        saved = store.load(path).meta.get("progress", {})
    except CheckpointError:
        return False
    found = (saved.get("best_epoch"), saved.get("best_loss"), saved.get("epoch"), saved.get("batch"))
    return found == (progress.best_epoch, progress.best_loss, progress.best_epoch + 1, 0)
