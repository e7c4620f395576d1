"""One line a rank and a worker: phase, age, pace, share of waiting, last batch, cost of the record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.diagnosis.evidence.files import CONFIG_FILE, setting, tolerant_json, tolerant_yaml, train_files
from xectool.runlog.manifest import MANIFEST_FILE
from xectool.runlog.process import start_ticks
from xectool.runlog.reader import RunReader, RunStatus
from xectool.runlog.status_page import PageView
from xectool.runlog.worker_slots import SlotView

Array = npt.NDArray[Any]

HEARTBEAT_LATE_S: Final = 10.0  # it beats once a second
LONG_PHASES: Final = ("start", "data_open", "build", "compile", "validation", "checkpoint", "outputs")
LAST_STEPS: Final = 50


@dataclass(frozen=True)
class RankLine:
    """What one rank does.

    Attributes:
        state: ``live``, ``slow`` (its phase lasts beyond the limit, the heartbeat goes on), ``stuck`` (neither), or the
            end of the run: ``finished``, ``failed``, ``interrupted``, ``killed``, ``unknown``.
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
        bad: Whether a rank is stuck, slow or dead without having finished.
        ranks: One line a rank.
        workers: One line a reading thread.
    """

    run: str
    verdict: str
    state: str
    bad: bool
    ranks: tuple[RankLine, ...]
    workers: tuple[WorkerLine, ...]


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
    limit_s = float(setting(config, "guards.hang_s", 120.0))
    pace = _pace(reader)
    files = file_names(run_dir)
    if pages:
        ranks = tuple(_rank(page, status, limit_s, pace, files) for page in pages)
    else:
        ranks = (
            RankLine(
                0, status.pid, _live(status.state), "unknown", math.nan, math.nan, status.step, status.epoch,
                *pace, "", -1, -1, math.nan, status.lost,
            ),
        )  # fmt: skip
    bad = any(rank.state in ("stuck", "slow", "killed", "failed") for rank in ranks)
    read = {"training": files, "validation": file_names(run_dir, "val")}
    workers = tuple(_worker(slot, read.get(slot.loader, ())) for slot in reader.workers())
    return StatusReport(str(run_dir), _verdict(ranks, status.state), status.state, bad, ranks, workers)


def _live(state: str) -> str:
    return "live" if state == "running" else state


def _rank(
    page: PageView, status: RunStatus, limit_s: float, pace: tuple[float, float], files: tuple[str, ...]
) -> RankLine:
    own = _moving(page, limit_s) if status.state == "running" else status.state
    first, last = page.entries
    where = files[page.file_index] if 0 <= page.file_index < len(files) else f"file {page.file_index}"
    batch = f"epoch {page.batch[1]} batch {page.batch[2]}: {where} entries {first} to {last}" if first >= 0 else ""
    return RankLine(
        rank=page.rank,
        pid=page.pid,
        state=own,
        phase=page.phase,
        phase_age_s=page.phase_age_s if page.same_boot else math.nan,
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


def _moving(page: PageView, limit_s: float) -> str:
    if not page.same_boot:
        return "unknown"  # the first rank lives here, this one on another machine
    if start_ticks(page.pid) != page.pid_start:
        return "killed"
    limit = limit_s * (10.0 if page.phase in LONG_PHASES else 1.0)
    if page.phase_age_s <= limit:
        return "live"
    # The helper thread beats while the training thread waits outside Python; neither moves where the whole process does
    # not, as when it is stopped or holds the interpreter lock in C.
    return "slow" if page.heartbeat_age_s < HEARTBEAT_LATE_S else "stuck"


def _pace(reader: RunReader) -> tuple[float, float]:
    """Return steps per second and share of waiting over the last steps."""
    waits, seconds = last_steps(reader)
    total = float(np.sum(seconds))
    return (len(seconds) / total, float(np.sum(waits)) / total) if total else (math.nan, math.nan)


def last_steps(reader: RunReader) -> tuple[Array, Array]:
    """Return seconds of waiting for data and of the whole step, each shape (n,), of the last `LAST_STEPS` steps."""
    blocks = reader.last_blocks(LAST_STEPS)
    waits, seconds = (
        np.concatenate([block.column(name) for block in blocks] or [np.empty(0)])[-LAST_STEPS:]
        for name in ("data_wait_s", "step_s")
    )
    return waits, seconds


_GONE = {"idle": "ended"}  # nothing was left undone


def _worker(slot: SlotView, files: tuple[str, ...]) -> WorkerLine:
    alive = start_ticks(slot.pid) == slot.pid_start
    known = 0 <= slot.file_index < len(files)
    reading = slot.state == "read"
    return WorkerLine(
        loader=slot.loader,
        pid=slot.pid,
        state=slot.state if alive or slot.state == "exit" else _GONE.get(slot.state, f"gone while {slot.state}"),
        age_s=slot.age_s,
        file=(files[slot.file_index] if known else f"file {slot.file_index}") if reading else "",
        entries=f"{slot.entry_start}:{slot.entry_stop}" if reading else "",
        reads=slot.reads,
        rss_bytes=slot.rss_bytes,
    )


def file_names(run_dir: Path, role: str = "train") -> tuple[str, ...]:
    """Return the files of a role (``train``, ``val``) by their index, of the last attempt."""
    return train_files(tolerant_json(run_dir / MANIFEST_FILE), role)


def _verdict(ranks: tuple[RankLine, ...], state: str) -> str:
    behind = [rank for rank in ranks if rank.step < max(item.step for item in ranks)]
    odd = [rank for rank in ranks if rank.state in ("stuck", "slow")]
    if odd:
        worst = max(odd, key=lambda rank: rank.phase_age_s)
        return f"rank {worst.rank} is {worst.state}: {worst.phase_age_s:.0f} s in phase {worst.phase}"
    if behind:
        return f"rank {behind[0].rank} behind by {max(item.step for item in ranks) - behind[0].step} steps"
    return f"{_live(state)}: step {ranks[0].step}, epoch {ranks[0].epoch}"
