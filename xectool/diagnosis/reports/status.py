"""One line a rank and a worker: phase, age, pace, share of waiting, last batch, cost of the record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.config.document import CONFIG_FILE
from xectool.diagnosis.evidence.files import (
    TRACKER_STATE,
    setting,
    tolerant_json,
    tolerant_manifest,
    tolerant_yaml,
    train_files,
)
from xectool.diagnosis.evidence.kernel import HELD, held_launcher, process_state
from xectool.errors import in_shell
from xectool.runlog.damage import record_damage
from xectool.runlog.file_locks import command_of
from xectool.runlog.process import start_ticks
from xectool.runlog.reader import RunReader, RunStatus
from xectool.runlog.status_page import PageView
from xectool.runlog.worker_slots import SlotView

Array = npt.NDArray[Any]

HEARTBEAT_LATE_S: Final = 10.0  # it beats once a second
LONG_PHASES: Final = ("start", "data_open", "build", "compile", "validation", "checkpoint", "outputs")
SAVE_LATE_S: Final = 10.0  # the longest of the phases outside the loop that ends in seconds on a sound file system
LAST_STEPS: Final = 50
PATIENCE: Final = 4.0  # times the median step: then a phase lasts suspiciously long
LEAST_S: Final = 5.0  # a busy machine stretches any phase of a short step
TRACKER: Final = "xectool.training.tracking"  # in the command line of the process that mirrors a run


@dataclass(frozen=True)
class RankLine:
    """What one rank does.

    Attributes:
        state: ``live``; ``stopped`` or ``traced``, by a signal or a debugger; ``late`` (longer in its phase than usual,
            or no heartbeat); beyond ``guards.hang_s`` ``slow`` (the heartbeat goes on) or ``stuck`` (it does not); or
            the end of the run: ``finished``, ``failed``, ``interrupted``, ``killed``, ``ended``, ``unknown``.
        phase_age_s: Seconds the phase has lasted; of a rank that is gone, until it was last heard of.
    """

    rank: int
    pid: int
    state: str
    phase: str
    phase_age_s: float
    heartbeat_age_s: float
    step: int
    epoch: int
    steps_per_s: float
    data_wait_share: float
    batch: str
    rss_bytes: int
    device_bytes: int
    recorder_share: float
    dropped: int


@dataclass(frozen=True)
class WorkerLine:
    """What one reading thread does."""

    loader: str
    pid: int
    state: str
    age_s: float
    file: str
    entries: str
    reads: int
    rss_bytes: int


@dataclass(frozen=True)
class StatusReport:
    """A run at this moment.

    Attributes:
        run: Directory of the run.
        verdict: One line.
        state: State of the run.
        bad: Whether a rank is stuck, slow or dead without having finished, or a process of the run is held or lost.
        next: What to do, as a line to paste; empty where nothing is to be done.
        ranks: One line a rank.
        workers: One line a reading thread.
        damage: Of a run whose last word is missing, what of its record cannot be read: a line a file.
    """

    run: str
    verdict: str
    state: str
    bad: bool
    next: str
    ranks: tuple[RankLine, ...]
    workers: tuple[WorkerLine, ...]
    damage: tuple[str, ...] = ()


def status_report(run_dir: Path, reader: RunReader | None = None) -> StatusReport:
    """Return what the ranks and reading threads of a run do now, or did last.

    Args:
        run_dir: The run.
        reader: Its reader, where one has looked at it before.

    Raises:
        UsageError: The directory holds no run record.
    """
    reader = reader or RunReader(run_dir)
    status, pages = reader.status(), reader.live()
    config = tolerant_yaml(run_dir / CONFIG_FILE)
    limits_s = (usual_s(reader), float(setting(config, "guards.hang_s", 120.0)))
    pace = _pace(reader)
    files = file_names(run_dir)
    if pages:
        ranks = tuple(_rank(page, status, limits_s, pace, files["training"]) for page in pages)
    else:
        ranks = (
            RankLine(
                0, status.pid, _live(status.state), "unknown", math.nan, math.nan, status.step, status.epoch,
                *pace, "", -1, -1, math.nan, status.lost,
            ),
        )  # fmt: skip
    workers = tuple(_worker(slot, files, status.state == "running") for slot in reader.workers())
    verdict, bad, line = _verdict(ranks, status.state, _held(run_dir, ranks, workers), limits_s[0])
    if (lost := _lost(workers)) and status.state == "running" and not bad:
        verdict, bad, line = f"process {lost.pid} ({lost.loader} reader) is {lost.state}", True, _HANG
    if status.original:
        verdict, line = f"a copy, {verdict}; the run goes on in {status.original}", "xectool diagnose status {run}"
    run = in_shell(status.original or run_dir)
    damage = record_damage(run_dir) if status.state in ("killed", "ended") else ()
    return StatusReport(str(run_dir), verdict, status.state, bad, line.format(run=run), ranks, workers, damage)


def _live(state: str) -> str:
    return "live" if state == "running" else state


def _rank(
    page: PageView, status: RunStatus, limits_s: tuple[float, float], pace: tuple[float, float], files: tuple[str, ...]
) -> RankLine:
    own = _moving(page, *limits_s) if status.state == "running" else status.state
    is_over = own == "killed" or status.state != "running"
    lasted_s = max(0.0, page.phase_age_s - page.heartbeat_age_s) if is_over else page.phase_age_s
    first, last = page.entries
    where = files[page.file_index] if 0 <= page.file_index < len(files) else f"file {page.file_index}"
    batch = f"epoch {page.batch[1]} batch {page.batch[2]}: {where} entries {first} to {last}" if first >= 0 else ""
    return RankLine(
        rank=page.rank,
        pid=page.pid,
        state=own,
        phase=page.phase,
        phase_age_s=lasted_s if page.same_boot else math.nan,
        heartbeat_age_s=page.heartbeat_age_s if page.same_boot else math.nan,
        step=max(page.step, status.step) if page.rank == 0 else page.step,
        epoch=max(page.epoch, status.epoch) if page.rank == 0 else page.epoch,
        steps_per_s=pace[0],
        data_wait_share=pace[1],
        batch=batch,
        rss_bytes=page.rss_bytes,
        device_bytes=page.device_bytes,
        recorder_share=page.own_share,
        dropped=page.dropped,
    )


def _moving(page: PageView, usual_s: float, limit_s: float) -> str:
    if not page.same_boot:
        return "unknown"  # the first rank lives here, this one on another machine
    if start_ticks(page.pid) != page.pid_start:
        return "killed"
    if (state := process_state(page.pid)) in HELD:
        return state
    is_long = page.phase in LONG_PHASES
    is_silent = page.heartbeat_age_s >= HEARTBEAT_LATE_S
    if page.phase_age_s > limit_s * (10.0 if is_long else 1.0):
        # The helper thread beats while the training thread waits outside Python; neither moves where the whole process
        # does not, as when it holds the interpreter lock in C.
        return "stuck" if is_silent else "slow"
    if page.phase == "checkpoint":
        usual_s = max(usual_s, SAVE_LATE_S)
    elif is_long:
        usual_s = math.inf
    return "late" if page.phase != "done" and (is_silent or page.phase_age_s > usual_s) else "live"


def _pace(reader: RunReader) -> tuple[float, float]:
    """Return steps per second and share of waiting over the last steps."""
    waits, seconds = last_steps(reader)
    total = float(np.sum(seconds))
    return (len(seconds) / total, float(np.sum(waits)) / total) if total else (math.nan, math.nan)


def usual_s(reader: RunReader) -> float:
    """Return the longest time a phase of the loop usually lasts."""
    seconds = last_steps(reader)[1]
    return max(LEAST_S, PATIENCE * float(np.median(seconds))) if len(seconds) else LEAST_S


def last_steps(reader: RunReader) -> tuple[Array, Array]:
    """Return seconds of waiting for data and of the whole step, each shape (n,), of the last `LAST_STEPS` steps."""
    blocks = reader.last_blocks(LAST_STEPS)
    waits, seconds = (
        np.concatenate([block.column(name) for block in blocks] or [np.empty(0)])[-LAST_STEPS:]
        for name in ("data_wait_s", "step_s")
    )
    return waits, seconds


_GONE: Final = "gone while "
_HANG: Final = "xectool diagnose hang {run}"


def _worker(slot: SlotView, files: Mapping[str, tuple[str, ...]], is_wanted: bool) -> WorkerLine:
    alive, reading = start_ticks(slot.pid) == slot.pid_start, slot.state == "read"
    held = _held_state(slot.pid) if alive and slot.state != "exit" else ""
    return WorkerLine(
        loader=slot.loader,
        pid=slot.pid,
        state=f"{held} while {slot.state}" if held else _state(slot, alive, is_wanted),
        age_s=slot.age_s,
        file=file_name(slot, files) if reading else "",
        entries=f"{slot.entry_start}:{slot.entry_stop}" if reading else "",
        reads=slot.reads,
        rss_bytes=slot.rss_bytes,
    )


def _state(slot: SlotView, alive: bool, is_wanted: bool) -> str:
    # An idle one leaves nothing undone where the run is over, or another validation may start others.
    is_over = slot.state == "idle" and not (is_wanted and slot.loader == "training")
    return slot.state if alive or slot.state == "exit" else "ended" if is_over else f"{_GONE}{slot.state}"


def _lost(workers: tuple[WorkerLine, ...]) -> WorkerLine | None:
    return next((worker for worker in workers if worker.state.startswith(_GONE)), None)


def _held_state(pid: int) -> str:
    return state if (state := process_state(pid)) in HELD else ""


def _held(run_dir: Path, ranks: tuple[RankLine, ...], workers: tuple[WorkerLine, ...]) -> dict[int, str]:
    """Return what holds back which process of a run, by its number: a signal or a debugger."""
    found = {rank.pid: f"rank {rank.rank}) is {rank.state}" for rank in ranks if rank.state in HELD}
    for worker in workers:
        state = worker.state.partition(" ")[0]
        if state in HELD:
            found.setdefault(worker.pid, f"{worker.loader} reader) is {state}")
    tracker = int(tolerant_json(run_dir / TRACKER_STATE).get("pid", 0))
    if (state := _held_state(tracker)) and TRACKER in command_of(tracker):
        found[tracker] = f"tracker) is {state}"
    if (launcher := held_launcher([rank.pid for rank in ranks])) is not None:
        found[launcher.pid] = f"launcher of the ranks) is {launcher.state}"
    return {pid: f"process {pid} ({who}: a signal or a debugger holds it" for pid, who in found.items()}


def file_names(run_dir: Path) -> dict[str, tuple[str, ...]]:
    """Return the files of each loader by their index, of the last attempt."""
    manifest = tolerant_manifest(run_dir)
    return {"training": train_files(manifest), "validation": train_files(manifest, "val")}


def file_name(slot: SlotView, files: Mapping[str, tuple[str, ...]]) -> str:
    """Return the file a slot names; ``files`` are those of each loader."""
    known = files.get(slot.loader, ())
    return known[slot.file_index] if 0 <= slot.file_index < len(known) else f"{slot.loader} file {slot.file_index}"


def _verdict(ranks: tuple[RankLine, ...], state: str, held: dict[int, str], usual_s: float) -> tuple[str, bool, str]:
    """Return the verdict, whether it is bad, and the line to paste, with ``{run}`` in place of the run."""
    if held:
        return "; ".join(held.values()), True, "kill -CONT " + " ".join(map(str, held))
    bad = any(rank.state in ("stuck", "slow", "killed", "failed", "ended") for rank in ranks)
    behind = [rank for rank in ranks if rank.step < max(item.step for item in ranks)]
    odd = [rank for rank in ranks if rank.state in ("stuck", "slow", "late")]
    if odd:
        worst = max(odd, key=lambda rank: rank.phase_age_s)
        usually = f", usually up to {usual_s:.0f} s" if worst.phase not in LONG_PHASES else ""
        beat = f"; its last heartbeat is {worst.heartbeat_age_s:.0f} s old" * (worst.heartbeat_age_s > HEARTBEAT_LATE_S)
        verdict = f"rank {worst.rank} is {worst.state}: {worst.phase_age_s:.0f} s in phase {worst.phase}{usually}{beat}"
        return verdict, bad, _HANG
    line = "xectool diagnose run {run}" if bad or state == "interrupted" else ""
    if behind:
        verdict = f"rank {behind[0].rank} behind by {max(item.step for item in ranks) - behind[0].step} steps"
        return verdict, bad, line
    said = "ended, how is not on record" if state == "ended" else _live(state)
    return f"{said}: step {ranks[0].step}, epoch {ranks[0].epoch}", bad, line
