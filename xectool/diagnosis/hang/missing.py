"""The rank that others waited for when a run hung, by the pages that all of them leave."""

from __future__ import annotations

from typing import Final

from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.hang.collectives import WAITING
from xectool.runlog.reader import RunReader
from xectool.runlog.records import EventRecord

_PART: Final = 0.5  # of the time for which the first rank had waited
_BEATS_S: Final = 5.0  # a heartbeat comes once a second


def missing_rank(evidence: Evidence, hang: EventRecord) -> str:
    """Return which rank was not where another one waited for it, empty where none is known.

    Args:
        evidence: The run.
        hang: What the watchdog of the first rank wrote.
    """
    pages, start = RunReader(evidence.run_dir).live(), evidence.last("run_start")
    if len(pages) < 2 or hang.data.get("phase") not in WAITING or (start is not None and start.time > hang.time):
        return ""
    least = max(_BEATS_S, _PART * number(hang.data.get("age_s")))
    # Clocks of other machines may differ by more than this.
    beside = [page for page in pages if page.same_boot == pages[0].same_boot]
    there = [page for page in beside if page.phase != "done" and page.heartbeat_time]
    for page in sorted(there, key=lambda page: page.heartbeat_time):  # the longest silent first
        who, silent_s = f"rank {page.rank} (process {page.pid})", hang.time - page.heartbeat_time
        if silent_s > least:
            return (
                f"{who}, last heard of in {page.phase}, had given no sign of life for {silent_s:.0f} s: killed, or "
                "held by a signal, a debugger or machine code that keeps the interpreter"
            )
        stood_s = silent_s + page.phase_age_s - page.heartbeat_age_s
        if page.phase not in WAITING and stood_s > least:
            return f"{who} stood in {page.phase} for {stood_s:.0f} s"
    return ""
