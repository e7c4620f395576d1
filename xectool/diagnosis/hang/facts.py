"""Everything the verdict on a run rests on: its pages, its readers, the kernel's views, and the stacks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xectool.config.document import CONFIG_FILE
from xectool.diagnosis.evidence import kernel
from xectool.diagnosis.evidence.files import setting, tolerant_yaml
from xectool.diagnosis.evidence.kernel import HELD, ProcessView
from xectool.diagnosis.evidence.other_ranks import failed_first
from xectool.diagnosis.hang.stacks import ProcessStacks, Target, stacks_of
from xectool.diagnosis.hang.tracker import TrackerFacts, TrackerLook
from xectool.diagnosis.reports.status import file_name, file_names, usual_s
from xectool.runlog.process import boot_id, oom_kills
from xectool.runlog.reader import RunReader, RunStatus
from xectool.runlog.run_dirs import runs_in_memory
from xectool.runlog.status_page import PageView, read_page
from xectool.runlog.storage import attempt_dir, attempts, slots_path, status_path
from xectool.runlog.worker_slots import SlotView, read_slots, stacks_path

HEARTBEAT_LATE_S: Final = 5.0  # it beats once a second
BEAT_WAIT_S: Final = 3.0  # for a heartbeat that is late, from a machine that may just have been woken
_BEAT_EVERY_S: Final = 0.2


@dataclass(frozen=True)
class Reader:
    """A reading thread of a rank.

    Attributes:
        slot: Its slot.
        view: What the kernel says about its process.
        file: File of its slot.
        thread: What the kernel says about the thread itself, while it reads.
    """

    slot: SlotView
    view: ProcessView
    file: str
    thread: ProcessView

    @property
    def reading(self) -> str:
        """Return what it reads, as it is shown."""
        return f"{self.file} entries {self.slot.entry_start}:{self.slot.entry_stop}"

    @property
    def now(self) -> ProcessView:
        """Return what shows where it stands: the thread while it reads; else the process, whose threads wait idly."""
        return self.thread if self.slot.state == "read" else self.view


@dataclass(frozen=True)
class RankFacts:
    """One rank.

    Attributes:
        page: What it says about itself.
        view: What the kernel says about it.
        readers: Its reading threads.
        stacks: Its stacks.
        usual_s: Longest time a phase of the loop usually lasts.
        limit_s: Time after which a phase counts as hung, ``guards.hang_s``.
    """

    page: PageView
    view: ProcessView
    readers: tuple[Reader, ...]
    stacks: ProcessStacks
    usual_s: float
    limit_s: float


@dataclass(frozen=True)
class RunFacts:
    """One run.

    Attributes:
        state: State of the run, see `xectool.runlog.reader.RunStatus`.
        message: How it ended, or empty.
        ranks: Its ranks in order.
        workers: Stacks of the loader processes.
        oom_kills: Processes the kernel has killed for lack of memory so far, -1 where unknown.
        elsewhere: Ranks on other machines, of which nothing but their pages can be seen from here.
        tracker: The process that mirrors it; None where there is none.
        files: Its training files.
        launcher: Who started its ranks, where a signal or a debugger holds it.
    """

    run_dir: Path
    state: str
    message: str
    ranks: tuple[RankFacts, ...]
    workers: tuple[ProcessStacks, ...]
    oom_kills: int
    elsewhere: tuple[int, ...] = ()
    tracker: TrackerFacts | None = None
    files: tuple[str, ...] = ()
    launcher: ProcessView | None = None


def is_late(rank: RankFacts) -> bool:
    """Return whether a rank is longer in its phase than usual, or has not been heard of."""
    page = rank.page
    return page.phase != "done" and (page.phase_age_s > rank.usual_s or page.heartbeat_age_s > HEARTBEAT_LATE_S)


def run_of(pid: int) -> Path | None:
    """Return the run directory of a rank, of a loader process, or of the launcher of ranks; None for any other."""
    own = runs_in_memory(pid)[:1]
    below = own or {run for child in kernel.descendants(pid) for run in runs_in_memory(child)[:1]}
    return next(iter(below)) if len(below) == 1 else None


def gather(run_dir: Path, native: bool = False) -> RunFacts:
    """Look at a run and its processes; takes half a second and the time of the stacks.

    Raises:
        UsageError: The directory holds no run record.
    """
    reader = RunReader(run_dir)
    status, everywhere = reader.status(), reader.live()
    # A machine that has booted since knows none of the pages; one that knows some shares the run with another.
    pages = [page for page in everywhere if page.same_boot] or everywhere
    directory = attempt_dir(run_dir, attempts(run_dir)[-1])
    tracker = TrackerLook(run_dir, attempts(run_dir)[-1])
    slots = {page.rank: read_slots(slots_path(directory, page.rank)) for page in pages}
    starts = {page.pid: page.pid_start for page in pages if page.same_boot}
    starts |= {slot.pid: slot.pid_start for rank in slots.values() for slot in rank if slot.state != "exit"}
    threads = {slot.tid: slot.pid for rank in slots.values() for slot in rank if slot.pid in starts and slot.tid}
    views = kernel.look(starts | dict.fromkeys(tracker.pids, 0), threads=threads)
    until = time.monotonic() + BEAT_WAIT_S
    pages = [_heard_of(page, directory, views.get(page.pid), until) for page in pages]
    files, usually_s = file_names(run_dir), usual_s(reader)
    limit_s = float(setting(tolerant_yaml(run_dir / CONFIG_FILE), "guards.hang_s", 120.0))
    ranks, targets = [], []
    for page in pages:
        view = views.get(page.pid, ProcessView(page.pid, "gone"))
        dump = stacks_path(slots_path(directory, page.rank))
        readers = tuple(
            Reader(slot, views[slot.pid], file_name(slot, files), _thread(slot, views))
            for slot in slots[page.rank]
            if slot.pid in views
        )
        loaders = sorted({item.slot.pid for item in readers} - {page.pid})
        targets += [Target(page.pid, view.state, dump), *(Target(pid, views[pid].state, dump) for pid in loaders)]
        ranks.append((page, view, readers))
    stacks = {found.pid: found for found in stacks_of(targets, native)}
    known = tuple(RankFacts(page, view, readers, stacks[page.pid], usually_s, limit_s) for page, view, readers in ranks)
    workers = tuple(found for pid, found in stacks.items() if all(page.pid != pid for page in pages))
    here, kills = {page.rank for page in pages}, oom_kills() if all(page.same_boot for page in pages) else -1
    elsewhere = tuple(page.rank for page in everywhere if page.rank not in here)
    return RunFacts(
        run_dir, status.state, _ending(reader, status), known, workers, kills, elsewhere,
        tracker.facts(views), files["training"], kernel.held_launcher([page.pid for page in pages if page.same_boot]),
    )  # fmt: skip


def _ending(reader: RunReader, status: RunStatus) -> str:
    """Return how a run ended: in the words of the rank that failed first, where the first one only lost it."""
    if status.state != "failed":
        return status.message
    own = next((event for event in reversed(reader.last_events()) if event.kind == "failed"), None)
    first = failed_first(reader.run_dir, status, own)
    return status.message if first is own or first is None else first.message


def _heard_of(page: PageView, directory: Path, view: ProcessView | None, until: float) -> PageView:
    """Return a page as it is now; for one whose heartbeat is late another beat is waited for.

    Where the whole machine stood still, so did heartbeats: what this process saw before it was woken says nothing.
    """
    found = page
    while view is not None and view.is_alive:
        now = read_page(status_path(directory, page.rank), boot_id())
        found = now if now is not None and now.pid == page.pid else found
        late = found.heartbeat_age_s > HEARTBEAT_LATE_S and found.phase != "done"
        if not late or view.state in HELD or time.monotonic() > until:
            break
        time.sleep(_BEAT_EVERY_S)
    return found


def _thread(slot: SlotView, views: dict[int, ProcessView]) -> ProcessView:
    """Return the view of a thread, or of its process where the thread is gone or not known."""
    own = views.get(slot.tid)
    return own if own is not None and own.is_alive else views[slot.pid]
