"""What a run directory says about how its weights came to be: states on disk, steps, rewinds, events left out."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.config.data import DataConfig
from xectool.config.document import CONFIG_FILE
from xectool.config.load import config_from_dict, load_config
from xectool.config.root import RunConfig
from xectool.diagnosis.evidence.files import train_files
from xectool.errors import CheckpointError, UsageError
from xectool.probes.repetition.own_files import ROLES, OwnFiles
from xectool.runlog.manifest import config_digest, read_manifest
from xectool.runlog.reader import Lineage, RunReader
from xectool.runlog.records import EventRecord, StepRecord
from xectool.training.events.quarantine import FILE_NAME as QUARANTINE_FILE
from xectool.training.events.quarantine import PoisonedEvent, listed
from xectool.training.saving.ring import DIRECTORY as RING


@dataclass(frozen=True)
class Rewind:
    """After step ``from_step`` the weights became those of ``to_step``; the steps counted on."""

    from_step: int
    to_step: int
    time: float


@dataclass(frozen=True)
class SavedState:
    """A state a replay can start from.

    Attributes:
        step: Last optimizer step that is in it; 0 for the weights of the seed.
        path: The checkpoint; None for the weights of the seed.
        checkpoint: Its content.
    """

    step: int
    path: Path | None = None
    checkpoint: Checkpoint | None = field(default=None, repr=False)


class RunHistory:
    """The recorded past of a run.

    Args:
        run_dir: The run directory.
        given: The data section whose files are read where those of the run are not there.

    Attributes:
        files: What became of its files.

    Raises:
        UsageError: The directory holds no run record.
    """

    def __init__(self, run_dir: Path | str, given: DataConfig | None = None) -> None:
        self.run_dir = Path(run_dir).expanduser()
        self.reader = RunReader(self.run_dir)
        self.files = OwnFiles(given)

    @cached_property
    def config(self) -> RunConfig:
        """The resolved configuration, with the batch of all ranks: a single process repeats what they did together.

        Raises:
            UsageError: The run directory has none.
        """
        path = self.run_dir / CONFIG_FILE
        if not path.is_file():
            raise UsageError(
                "this run directory holds no resolved configuration",
                where=str(path),
                fix="give the configuration it was trained with",
            )
        config = self._with_files_at_hand(load_config(path).config, max(self.lineage.limits, default=0))
        return self._of_all_ranks(config, max(self._ranks, default=0))

    def config_at(self, step: int) -> RunConfig:
        """Return the configuration a step was taken with; the newest where no checkpoint of its attempt is left.

        The number of ranks is that of the attempt in any case.
        """
        attempt = self.attempt_of(step)
        if attempt == max(self.lineage.limits):
            return self.config
        digest = self.entry_of(step).get("config_sha256")
        for _, checkpoint in self._checkpoints():
            if config_digest(checkpoint.meta["config"]) == digest:
                taken = config_from_dict(checkpoint.config, str(self.run_dir), package=checkpoint.kind_package)
                break
        else:
            taken = load_config(self.run_dir / CONFIG_FILE).config
        return self._of_all_ranks(self._with_files_at_hand(taken, attempt), attempt)

    def ranks_at(self, step: int) -> int:
        """Return how many ranks took a step."""
        return self._ranks.get(self.attempt_of(step), 1)

    def attempt_of(self, step: int) -> int:
        """Return the attempt that took a step."""
        return min(number for number, limit in self.lineage.limits.items() if step <= limit)

    def entry_of(self, step: int) -> dict[str, Any]:
        """Return what the manifest says of the attempt that took a step; empty where it says nothing."""
        entries, attempt = read_manifest(self.run_dir).get("attempts", []), self.attempt_of(step)
        return next((dict(entry) for entry in entries if entry["attempt"] == attempt), {})

    @cached_property
    def events(self) -> list[EventRecord]:
        """The events of all attempts but for what was given up."""
        return [event for attempt, event in self.reader.tagged_events() if self.lineage.counts(attempt, event.step)]

    @cached_property
    def lineage(self) -> Lineage:
        """Which part of each attempt counts."""
        return self.reader.lineage()

    def steps(self, first: int, last: int) -> dict[int, StepRecord]:
        """Return the recorded steps from ``first`` to ``last``, by number."""
        return {record.step: record for record in self.reader.steps() if first <= record.step <= last}

    def require_step(self, step: int) -> StepRecord:
        """Return the record of a step.

        Raises:
            UsageError: It is not recorded.
        """
        found = self.steps(step, step)
        if not found:
            last = self.reader.status().step
            raise UsageError(
                f"the run has no record of step {step}; it recorded steps up to {last}",
                where=str(self.run_dir),
                fix=f"--step {min(max(step, 1), last)}" if last else "choose a run with at least one step",
            )
        return found[step]

    def first_nonfinite(self) -> StepRecord | None:
        """Return the first step that was not finite."""
        return next((record for record in self.reader.steps() if record.nonfinite), None)

    @cached_property
    def rewinds(self) -> list[Rewind]:
        """Rewinds in the order they happened."""
        return [
            Rewind(int(event.data["from_step"]), int(event.data["to_step"]), event.time)
            for event in self.events
            if event.kind == "rewind"
        ]

    @cached_property
    def clips(self) -> list[EventRecord]:
        """Limits of the gradient norm that were asked for live and that every later start took over, in order."""
        asked = [
            number
            for number, event in enumerate(self.events)
            if event.kind == "control" and event.data.get("action") == "clip" and event.data.get("done")
        ]
        return [self.events[number] for number in asked if self._taken_over(number)]

    def clip_after(self, step: int, otherwise: float) -> float:
        """Return the limit of the gradient norm that held after a step; ``otherwise`` where none was asked for yet."""
        return next((float(clip.data["value"]) for clip in reversed(self.clips) if clip.step <= step), otherwise)

    @property
    def not_listed(self) -> str:
        """Why it is not known which events were left out; empty where it is."""
        return self._listed[1]

    @cached_property
    def _listed(self) -> tuple[list[PoisonedEvent], str]:
        return listed(self.run_dir / QUARANTINE_FILE)

    def left_out(self) -> list[dict[str, Any]]:
        """Return the quarantined events; ``step`` says from which step on.

        What an attempt that was given up had left out, the next one leaves out from its first step on.
        """
        found, _ = self._listed
        handed_on = {
            (event.step, *identity[1:]): int(self.lineage.limits[attempt]) + 1
            for attempt, event in self.reader.tagged_events()
            if event.kind == "quarantine" and not self.lineage.counts(attempt, event.step)
            for identity in event.data["events"]
        }
        moved = self.files.moved
        return [
            {**one, "file": moved.get(one["file"], one["file"]), "step": handed_on.get(_place(one), one["step"])}
            for one in map(asdict, found)
        ]

    def incidents(self) -> list[tuple[Path, dict[str, Any]]]:
        """Return the incident folders with their facts, in order; unreadable ones are passed over."""
        found = []
        for path in sorted(self.run_dir.glob("incidents/[0-9]*/incident.json")):
            try:
                found.append((path.parent, json.loads(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError, RecursionError):
                continue
        return found

    def incident_counts(self, facts: dict[str, Any]) -> bool:
        """Return whether an incident is of what the run stands on, and not of what it gave up."""
        return self.lineage.counts(int(facts.get("attempt", 0)), int(facts["step"]))

    def state_before(self, step: int) -> SavedState:
        """Return the latest state on disk from which the steps up to ``step`` can be run again.

        That is a full checkpoint of an earlier step that the run did not abandon; the weights of the seed without one.
        """
        best = SavedState(0)
        for path, checkpoint in self._checkpoints():
            if best.step < checkpoint.step < step and checkpoint.training and not self._abandoned(checkpoint):
                best = SavedState(checkpoint.step, path, checkpoint)
        return best

    def ring_state(self, step: int) -> Checkpoint | None:
        """Return the state after a step that was kept for going back, or None where it is gone."""
        path = self.run_dir / RING / f"state_{step}.pt"
        try:
            return store.load(path) if path.is_file() else None
        except CheckpointError:
            return None

    def _checkpoints(self) -> Iterator[tuple[Path, Checkpoint]]:
        """Yield the checkpoints of the run that can be read."""
        for path in sorted(self.run_dir.glob("*.pt")):
            with contextlib.suppress(CheckpointError):
                yield path, store.load(path)

    @cached_property
    def _ranks(self) -> dict[int, int]:
        """Number of ranks of each attempt that got as far as to say it."""
        tagged = self.reader.tagged_events()
        return {number: int(event.data.get("world_size", 1)) for number, event in tagged if event.kind == "run_start"}

    def _with_files_at_hand(self, config: RunConfig, attempt: int) -> RunConfig:
        """Return the configuration of an attempt with files that are there, as far as any are known."""
        manifest, is_last = read_manifest(self.run_dir), attempt == max(self.lineage.limits, default=0)
        names = {role: train_files(manifest, role, attempt) for role in ROLES}
        later = None if is_last or not (self.run_dir / CONFIG_FILE).is_file() else self.config.data
        return config.model_copy(update={"data": self.files.of(config.data, names, later)})

    def _of_all_ranks(self, config: RunConfig, attempt: int) -> RunConfig:
        """Return a configuration with the batch of all ranks of an attempt."""
        ranks = self._ranks.get(attempt, 1)
        data = config.data.model_copy(update={"batch_size": ranks * config.data.batch_size})
        return config if ranks == 1 else config.model_copy(update={"data": data})

    def _taken_over(self, number: int) -> bool:
        """Return whether every later start of the run began with what this event had changed."""
        event, saved = self.events[number], False
        for later in self.events[number + 1 :]:
            saved = saved or (later.kind == "checkpoint" and later.step == event.step)
            if later.kind == "run_start" and (later.step < event.step or (later.step == event.step and not saved)):
                return False
        return True

    def _abandoned(self, checkpoint: Checkpoint) -> bool:
        """Return whether the run later resumed from before a checkpoint: its steps are then others."""
        created = float(checkpoint.meta.get("created", 0.0))
        return any(e.kind == "resume" and e.step < checkpoint.step and e.time > created for e in self.events)


def _place(left_out: dict[str, Any]) -> tuple[int, ...]:
    """Return step, entry, run and event number; the index of a file may be another in each attempt."""
    return tuple(int(left_out[name]) for name in ("step", "entry", "run", "event"))


def loss_median(records: Iterator[StepRecord]) -> float:
    """Return the median of the finite losses of some steps; NaN where there are none."""
    losses = sorted(record.loss for record in records if math.isfinite(record.loss))
    return losses[len(losses) // 2] if losses else math.nan
