"""What the ranks of a launched job say on their status pages, read by the launcher: one that stands still is named."""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path
from typing import Final

from xectool.diagnosis.evidence.kernel import HELD, process_state
from xectool.diagnosis.hang.facts import run_of
from xectool.engine.diagnose.hanging import hang
from xectool.engine.ranks.processes import rank_processes
from xectool.engine.ranks.said import RankWarnings
from xectool.errors import XecError
from xectool.runlog.reader import RunReader
from xectool.runlog.status_page import PageView

_LOG = logging.getLogger(__name__)
_LOOK_EVERY_S: Final = 2.0
_SILENT_S: Final = 10.0  # a heartbeat comes once a second


class RankWatch:
    """While entered, a thread looks at the pages of the ranks, and says once which of them does not get on, and why.

    A rank that is stopped or holds its interpreter cannot say so itself, and the others wait for it until the time
    limit of their collective.

    What the ranks themselves warn of it says as well.

    Args:
        hang_s: Time in a phase after which a rank is judged, ``guards.hang_s``; one whose heartbeat has ended, before.
        warnings: What the ranks warn of.

    Attributes:
        verdict: The last one on a rank that did not get on, or empty.
        run: Directory of the run, None until a rank has begun it.
    """

    def __init__(self, hang_s: float, warnings: RankWarnings) -> None:
        self.verdict = ""
        self._hang_s, self._warnings = hang_s, warnings
        self.run: Path | None = None
        self._said: set[tuple[str, str]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="xectool-rank-watch", daemon=True)

    def __enter__(self) -> RankWatch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._warnings.say()

    def place(self, rank: int) -> str:
        """Return host, phase and last step of a rank, as it left them; empty where it has not got that far."""
        page = next((page for page in self._pages() if page.rank == rank), None)
        return f" on {socket.gethostname()}, in {page.phase} after step {page.step}" if page is not None else ""

    def _watch(self) -> None:
        before: set[int] = set()
        while not self._stop.wait(_LOOK_EVERY_S):
            self._warnings.say()
            late = self._late()
            if late & before:  # a job that was suspended as a whole has only to wake up
                self._judge(min(late & before))
            before = late

    def _late(self) -> set[int]:
        """Return the processes that do not get on: by their pages, and those that are stopped.

        A rank may be stopped before it has a page; that a reader is, its rank sees only once what was read is used up.
        """
        processes = {process.pid for process in rank_processes()}
        self.run = self.run or next((run for pid in processes if (run := run_of(pid))), None)
        late = {page.pid for page in self._pages() if self._is_late(page)}
        return late | {pid for pid in processes | self._readers() if process_state(pid) in HELD}

    def _readers(self) -> set[int]:
        try:
            slots = RunReader(self.run).workers() if self.run is not None else []
        except XecError:  # its directory is gone
            return set()
        return {slot.pid for slot in slots if slot.state != "exit"}

    def _pages(self) -> list[PageView]:
        try:
            return RunReader(self.run).live() if self.run is not None else []
        except XecError:  # its directory is gone
            return []

    def _is_late(self, page: PageView) -> bool:
        return page.phase != "done" and (page.heartbeat_age_s > _SILENT_S or page.phase_age_s > self._hang_s)

    def _judge(self, pid: int) -> None:
        try:
            known = self._readers() | {page.pid for page in self._pages()}
            found = hang(self.run) if pid in known else hang(pid=pid)
        except XecError:  # the run has just ended
            return
        (finding,) = found.findings
        key = (finding.code, finding.where)
        if found.bad and key not in self._said:
            self._said.add(key)
            self.verdict = found.verdict
            _LOG.warning("%s; %s", found.verdict, found.next)
