"""Verdicts on runs and ranks that are there no more: how they ended, and whom the end of others is owed to."""

from __future__ import annotations

import re
from typing import Final

from xectool.diagnosis.hang.collectives import batches
from xectool.diagnosis.hang.facts import RunFacts, is_late
from xectool.diagnosis.hang.fatal import MISMATCH, OTHERWISE, aborted_inside
from xectool.diagnosis.hang.hang import Hang
from xectool.diagnosis.hang.wording import kernel_line, quoted, stack_line
from xectool.errors import counted

RECENT_S: Final = 600.0  # what the kernel kills later may be something else
_LOST: Final = re.compile(r"another rank is gone|by peer")


def ended(facts: RunFacts) -> Hang | None:
    """Return the verdict on a run that has had its last word; None where it goes on, or has had none."""
    run = f"xectool diagnose run {quoted(facts)}"
    if facts.state == "interrupted" and len(facts.ranks) > 1 and (culprit := gone(facts)) is not None:
        return culprit  # its launcher then interrupts the others, which say so
    if facts.state in ("finished", "interrupted"):
        return _after_its_end(facts, run)
    lost = facts.state == "failed" and _LOST.search(facts.message)
    if lost and (culprit := gone(facts)) is not None:
        return culprit
    if facts.state in ("failed", "ended") or not facts.ranks:
        how = "its last word is missing" if facts.state == "ended" else facts.state
        return Hang("XT-HANG-DEAD", f"the run has ended: {how}", (facts.message,), run)
    return None


def _after_its_end(facts: RunFacts, run: str) -> Hang | None:
    """Return the verdict on a run that has had its last word; a process may still write, or belong to a script."""
    living = [rank for rank in facts.ranks if rank.view.is_alive]
    if any(is_late(rank) for rank in living):
        return None
    verdict, why = f"the run has ended: {facts.state}", [facts.message]
    for rank in [rank for rank in living if rank.page.phase_age_s > rank.usual_s][:1]:
        verdict += f"; process {rank.page.pid} of rank {rank.page.rank} lives on for {rank.page.phase_age_s:.0f} s"
        why += [kernel_line(rank.view), *stack_line(rank)]
    return Hang("XT-HANG-NONE", verdict, tuple(why), run, bad=False)


def gone(facts: RunFacts) -> Hang | None:
    """Return the verdict on a rank that has ended without a word; None where there is none."""
    dead = [rank for rank in facts.ranks if not rank.view.is_alive and rank.page.phase != "done"]
    if not dead:
        return None
    first = min(dead, key=lambda rank: (rank.page.step, rank.page.heartbeat_time))
    page = first.page
    words = f"its last words: phase {page.phase}, step {page.step}, {max(page.rss_bytes, 0) / 1e9:.1f} GB resident"
    living = sum(rank.view.is_alive for rank in facts.ranks)
    left = f"{living} of {counted(len(facts.ranks), 'rank')} still live and wait"
    why = (words, *([left] if living else []), *([facts.message] if facts.message else []))
    kills = oom_kills_since(facts, page.oom_kills_seen)
    if kills:
        why = (f"processes of this machine killed for lack of memory since its last heartbeat: {kills}", *why)
    inside, where = aborted_inside(facts.run_dir, page) if len(facts.ranks) > 1 else ("", "")
    if inside:
        verdict = f"rank {page.rank}, process {page.pid}, was aborted inside {inside}: {MISMATCH}"
        stood = [f"rank {page.rank} stood in {where}"] if where else []
        why = (*why, *stood, *batches(facts.ranks), OTHERWISE)
        return Hang("XT-HANG-RANK", verdict, why, f"xectool diagnose run {quoted(facts)}", pid=page.pid)
    if kills:
        if page.heartbeat_age_s < RECENT_S:
            return out_of_memory(facts, f"rank {page.rank}, process {page.pid},", why, (page.rank, page.pid))
        why = (*why, f"that was {page.heartbeat_age_s / 60:.0f} minutes ago: they may have been killed after its end")
    if len(dead) == len(facts.ranks) > 1:  # whoever loses a rank lives long enough to say so
        verdict = f"all {len(dead)} ranks are gone at once and have not said why: their launcher or job was killed"
        return Hang("XT-HANG-DEAD", verdict, why, f"xectool diagnose run {quoted(facts)}")
    verdict = f"rank {page.rank}, process {page.pid}, is gone and has not said why"
    return Hang("XT-HANG-DEAD", verdict, why, f"xectool diagnose run {quoted(facts)}", rank=page.rank, pid=page.pid)


def out_of_memory(facts: RunFacts, who: str, why: tuple[str, ...], of: tuple[int, int]) -> Hang:
    """Return the verdict on a process that the kernel has most likely killed for its memory; ``of`` is rank and pid."""
    verdict = f"{who} is gone, most likely killed for lack of memory"
    memory = f"xectool diagnose memory {quoted(facts)}"
    return Hang("XT-HANG-OOM", verdict, why, memory, rank=of[0], pid=of[1])


def oom_kills_since(facts: RunFacts, before: int) -> int:
    """Return how many processes the kernel has killed for lack of memory since it had killed so many; 0: not known."""
    return max(0, facts.oom_kills - before) if before >= 0 else 0
