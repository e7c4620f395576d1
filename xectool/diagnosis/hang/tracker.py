"""The process that mirrors a run into the tracking database: alive, stopped, or kept waiting by whom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from xectool.diagnosis.evidence.files import TRACKER_SETTINGS, TRACKER_STATE, tolerant_json
from xectool.diagnosis.evidence.kernel import HELD, ProcessView
from xectool.diagnosis.hang.hang import Hang
from xectool.diagnosis.reports.status import TRACKER
from xectool.errors import in_shell
from xectool.runlog.file_locks import command_of, lock_holders


@dataclass(frozen=True)
class TrackerFacts:
    """The tracker of an attempt.

    Attributes:
        pid: Its process.
        view: What the kernel says about it; one that has got its number since counts as gone.
        status: ``starting``, ``mirroring``, ``paused``, ``late``, ``behind`` or ``done``, as it says itself.
        error: What it waits for, in its own words.
        uri: The database, without password.
        holder: Process that holds the lock of its sqlite file, 0 for none.
        holder_command: Command line of it.
    """

    pid: int
    view: ProcessView
    status: str
    error: str = ""
    uri: str = ""
    holder: int = 0
    holder_command: str = ""


class TrackerLook:
    """A look at a tracker from two moments; a lock that is held at both is no passing one.

    Args:
        run_dir: The run.
        attempt: Its last attempt; what an earlier one has left says nothing.
    """

    def __init__(self, run_dir: Path, attempt: int) -> None:
        state = tolerant_json(run_dir / TRACKER_STATE)
        self._state = state if state.get("attempt") == attempt else {}
        uri = str(tolerant_json(run_dir / TRACKER_SETTINGS).get("uri", ""))
        found = re.fullmatch(r"sqlite:///(/[^?]+)(\?.*)?", uri)
        self._database = Path(found[1]) if found else None
        self._first = self._holders()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process to look at, if there is one."""
        pid = self._state.get("pid")
        return (pid,) if type(pid) is int and pid > 0 else ()

    def facts(self, views: Mapping[int, ProcessView]) -> TrackerFacts | None:
        """Return what is known after the second look, None where nothing is mirrored."""
        if not self.pids:
            return None
        pid, state = self.pids[0], self._state
        view = views[pid] if TRACKER in views[pid].command else ProcessView(pid, "gone")
        holders = [holder for holder in self._holders() if holder in self._first]
        holder = holders[0] if holders else 0
        said = {name: str(state.get(name, "")) for name in ("status", "error", "uri")}
        return TrackerFacts(pid, view, **said, holder=holder, holder_command=command_of(holder) if holder else "")

    def _holders(self) -> list[int]:
        if self._database is None or not self._database.is_file():
            return []
        return [pid for pid, kind in lock_holders(self._database).items() if kind == "write" and pid not in self.pids]


def tracker_trouble(tracker: TrackerFacts | None, run: str, going: str) -> Hang | None:
    """Return the verdict on a tracker that does not get on; the training never waits for it.

    Args:
        tracker: What is known of it.
        run: The run directory, as a shell takes it.
        going: What the run does.
    """
    if tracker is None or tracker.status == "done":
        return None
    pid, replay, look = tracker.pid, f"xectool runs sync {run}", f"xectool diagnose mlflow {in_shell(tracker.uri)}"
    aside = "the training does not wait for it, and its own record is whole"
    if tracker.status == "late":
        verdict = f"{going}; its tracker is late: {tracker.error}"
        return Hang("XT-HANG-TRACKER", verdict, (aside,), replay, bad=False, pid=pid)
    if tracker.status == "behind":
        verdict = f"{going}; its tracker has given up with records left: {tracker.error}"
        return Hang("XT-HANG-TRACKER", verdict, (aside,), replay, pid=pid)
    if not tracker.view.is_alive:
        verdict = f"{going}; its tracker, process {pid}, is gone, and what it missed is mirrored at the end"
        return Hang("XT-HANG-TRACKER", verdict, (aside,), replay, bad=False, pid=pid)
    if tracker.view.state in HELD:
        verdict = f"{going}; its tracker, process {pid}, is {tracker.view.state}: a signal or a debugger holds it"
        return Hang("XT-HANG-TRACKER", verdict, (aside,), f"kill -CONT {pid}", pid=pid)
    if tracker.holder:
        who = f"process {tracker.holder} ({tracker.holder_command})"
        verdict = f"{going}; its tracker waits for the lock of {tracker.uri}, held by {who}"
        return Hang("XT-HANG-TRACKER", verdict, (aside, tracker.error), look, bad=False, pid=tracker.holder)
    if tracker.status == "paused":
        verdict = f"{going}; its tracker, process {pid}, is paused: {tracker.error}"
        return Hang("XT-HANG-TRACKER", verdict, (aside,), look, bad=False, pid=pid)
    return None
