"""Runs that ended because one of their ranks did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.other_ranks import RANK_LOST
from xectool.diagnosis.hang.fatal import MISMATCH, OTHERWISE, aborted_inside
from xectool.diagnosis.rules.crash import first_line
from xectool.runlog.process import start_ticks
from xectool.runlog.reader import RunReader
from xectool.runlog.records import EventRecord
from xectool.runlog.status_page import PageView

TIMEOUT: Final = "XT-RANK-TIMEOUT"


class RankDied(DiagnosisRule):
    """A rank ended without a word, and the others say only that they lost one."""

    code = "XT-RANK-DIED"
    title = "a rank was killed"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Look for the rank that has left its page in the middle of a phase."""
        reader = RunReader(evidence.run_dir)
        end = _end(evidence, reader)
        if end is not None and end.kind == "failed" and end.data.get("code") != RANK_LOST:
            return
        pages = reader.live()
        silent = [page for page in pages if page.phase != "done" and not _lives(page)]
        if not silent or len(pages) < 2:  # a single process that says it ended has said so
            return
        # others may have been ended for it afterwards
        first = min(silent, key=lambda page: (page.step, page.heartbeat_time))
        inside, where = aborted_inside(evidence.run_dir, first)
        if end is None and not (inside and evidence.status.state == "killed"):
            return
        who, aborted = f"rank {first.rank} (process {first.pid}) was", f"aborted inside {inside}: {MISMATCH}"
        yield Cause(
            code=self.code,
            confidence=0.92 if inside else 0.9,
            problem=f"{who} {aborted}" if inside else f"{who} killed in {first.phase} after step {first.step}",
            evidence=(
                f"it has left no word, and held {max(first.rss_bytes, 0) / 1e9:.1f} GB",
                *([f"it stood in {where}"] if where else []),
                *([OTHERWISE] if inside else []),
                *([f"of another rank: {first_line(end)}"] if end is not None else []),
            ),
            fix=fixes.resume(evidence),
            step=first.step,
            symptom="end",
        )


class RankRanOut(DiagnosisRule):
    """A rank had its last batch while others were in the step of one more: each waits in another collective."""

    code = "XT-UNEVEN-RANKS"
    title = "a rank ran out of batches before the others"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the batches of ranks that all waited for each other until that took too long."""
        reader = RunReader(evidence.run_dir)
        pages = {page.rank: page for page in reader.live()}
        ends = [evidence.failure, *(event for event in reader.of_other_ranks() if event.kind == "failed")]
        waited = [event for event in ends if event is not None and event.data.get("phase") == "collective"]
        codes = [event.data.get("code") for event in waited]
        # A rank that was held up goes on to the collective the others wait in, with the same batch as they.
        if len(pages) < 2 or len(waited) < len(pages) or set(codes) - {TIMEOUT, RANK_LOST} or TIMEOUT not in codes:
            return
        _, epochs, _, stops = zip(*(page.batch for page in pages.values()), strict=True)
        if len(set(epochs)) > 1 or len(set(stops)) < 2:
            return
        least = min(pages, key=lambda rank: pages[rank].batch[3])
        yield Cause(
            code=self.code,
            confidence=0.96,
            problem=f"rank {least} took {min(stops)} batches of epoch {epochs[0]} while another was at batch "
            f"{max(stops)}: each waited in a collective of its own until that took too long",
            evidence=tuple(f"rank {rank}: batch {page.batch[3]}" for rank, page in sorted(pages.items())[:16]),
            fix=fixes.check_named_files(evidence, "train"),
            step=pages[least].step,
            symptom="end",
        )


def _end(evidence: Evidence, reader: RunReader) -> EventRecord | None:
    """Return the last word of the first rank; that of another where the first is the one that was killed."""
    if evidence.status.state == "killed":
        return next((event for event in reader.of_other_ranks() if event.kind in ("failed", "interrupted")), None)
    # the launcher interrupts the others: that may come before they notice
    return evidence.last("interrupted") if evidence.status.state == "interrupted" else evidence.failure


def _lives(page: PageView) -> bool:
    return page.same_boot and start_ticks(page.pid) == page.pid_start
