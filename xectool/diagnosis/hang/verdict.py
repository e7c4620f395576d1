"""The verdict on a run that may hang: who is waited for, and why.

Ends and stopped processes come first, then whoever the other ranks wait for, then what that rank is doing. A phase that
lasts no longer than usual is no hang, whatever it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final

from xectool.diagnosis.hang.facts import RankFacts, Reader, RunFacts
from xectool.diagnosis.hang.wording import in_file_system, kernel_line, place, quoted, stack_line

HEARTBEAT_LATE_S: Final = 5.0  # it beats once a second
READS_BYTES_PER_S: Final = 1e5  # the heartbeat's look at /proc is far below
STARTING: Final = ("start", "data_open", "build")
WAITING: Final = ("collective", "backward")
_LOCK: Final = re.compile(r"futex|sem_|mutex")


@dataclass(frozen=True)
class Hang:
    """A verdict.

    Attributes:
        code: Its code, as `explain` knows it.
        verdict: One line.
        why: What it rests on.
        next: What to do, as a line to paste.
        bad: Whether the run does not go on by itself.
        rank: Rank at fault, -1 for none.
        pid: Process at fault, 0 for none.
    """

    code: str
    verdict: str
    why: tuple[str, ...]
    next: str
    bad: bool = True
    rank: int = -1
    pid: int = 0


def judge(facts: RunFacts) -> Hang:
    """Return the verdict on a run."""
    for rule in (_ended, _gone, _stopped, _advancing):
        found = rule(facts)
        if found is not None:
            return found
    culprit, waiting = _waited_for(facts.ranks)
    if culprit is None:
        return _transport(facts)
    found = _why_it_stands(facts, culprit)
    if not waiting:
        return found
    others = ", ".join(f"rank {item.page.rank}: {place(item)}" for item in waiting)
    outside = f"rank {culprit.page.rank} is outside the collective the others are in: {place(culprit)}"
    if found.code in ("XT-HANG-STUCK", "XT-HANG-SLOW"):
        code, verdict = "XT-HANG-RANK", outside
    else:
        code, verdict = found.code, f"all wait for rank {culprit.page.rank}: {found.verdict}"
    return Hang(
        code, verdict, (outside, f"waiting: {others}", *found.why), found.next, found.bad, culprit.page.rank, found.pid
    )


def _ended(facts: RunFacts) -> Hang | None:
    if facts.state in ("finished", "interrupted"):
        return Hang("XT-HANG-NONE", f"the run has ended: {facts.state}", (facts.message,), "", bad=False)
    if facts.state == "failed" or not facts.ranks:
        run = f"xectool diagnose run {quoted(facts)}"
        return Hang("XT-HANG-DEAD", f"the run has ended: {facts.state}", (facts.message,), run)
    return None


def _gone(facts: RunFacts) -> Hang | None:
    dead = [rank for rank in facts.ranks if not rank.view.is_alive and rank.page.phase != "done"]
    if not dead:
        return None
    first = min(dead, key=lambda rank: (rank.page.step, rank.page.heartbeat_time))
    page = first.page
    kills = f"; the kernel has killed {facts.oom_kills} processes for lack of memory since it started"
    why = (
        f"its last words: phase {page.phase}, step {page.step}, {max(page.rss_bytes, 0) / 1e9:.1f} GB resident"
        + (kills if facts.oom_kills > 0 else ""),
        *(
            [f"{len(facts.ranks) - len(dead)} of {len(facts.ranks)} ranks still live and wait"]
            if len(facts.ranks) > 1
            else []
        ),
    )
    verdict = f"rank {page.rank}, process {page.pid}, is gone and has not said why"
    return Hang("XT-HANG-DEAD", verdict, why, f"xectool diagnose run {quoted(facts)}", rank=page.rank, pid=page.pid)


def _stopped(facts: RunFacts) -> Hang | None:
    views = [(rank.page.rank, "rank", rank.view) for rank in facts.ranks]
    views += [(r.page.rank, "loader process of rank", item.view) for r in facts.ranks for item in r.readers]
    for rank, role, view in views:
        if view.state in ("stopped", "traced"):
            verdict = f"process {view.pid} ({role} {rank}) is {view.state}: a signal or a debugger holds it"
            why = ("everything else waits for it",)
            return Hang("XT-HANG-STOPPED", verdict, why, f"kill -CONT {view.pid}", rank=rank, pid=view.pid)
    return None


def _advancing(facts: RunFacts) -> Hang | None:
    if any(is_late(rank) for rank in facts.ranks):
        return None
    slowest = max(facts.ranks, key=lambda rank: rank.page.phase_age_s)
    page = slowest.page
    why = (f"rank {page.rank}: {page.phase} for {page.phase_age_s:.1f} s, usually up to {slowest.usual_s:.1f} s",)
    return Hang("XT-HANG-NONE", f"the run goes on: step {page.step}, epoch {page.epoch}", why, "", bad=False)


def is_late(rank: RankFacts) -> bool:
    """Return whether a rank is longer in its phase than usual, or has not been heard of."""
    page = rank.page
    return page.phase != "done" and (page.phase_age_s > rank.usual_s or page.heartbeat_age_s > HEARTBEAT_LATE_S)


def _waited_for(ranks: Sequence[RankFacts]) -> tuple[RankFacts | None, list[RankFacts]]:
    """Return the rank that stands where the others do not wait, and those that wait; None where all wait."""
    if len(ranks) == 1:
        return ranks[0], []
    newest = max(rank.page.collective_seq for rank in ranks)
    waiting = [
        rank for rank in ranks
        if rank.page.phase in WAITING and rank.page.collective_seq == newest
        and (rank.page.phase == "collective" or rank.view.cpu_share < 1.0)  # NCCL spins while it waits
    ]  # fmt: skip
    outside = [rank for rank in ranks if rank not in waiting and rank.page.phase != "done"]
    if not outside:
        return None, waiting
    return max(outside, key=lambda rank: rank.page.phase_age_s), waiting


def _transport(facts: RunFacts) -> Hang:
    why = tuple(f"rank {rank.page.rank}: {place(rank)}" for rank in facts.ranks)
    left = [rank.page for rank in facts.ranks if rank.page.phase == "done"]
    if left:
        verdict = f"rank {left[0].rank} has ended its part, and the others wait for it: it had less to do than they"
        fix = f"xectool diagnose run {quoted(facts)}"
        return Hang("XT-HANG-RANK", verdict, why, fix, rank=left[0].rank, pid=left[0].pid)
    verdict = "every rank is inside the same collective, and none comes out: the connection between them"
    return Hang("XT-HANG-TRANSPORT", verdict, why, "xectool diagnose distributed")


def _why_it_stands(facts: RunFacts, rank: RankFacts) -> Hang:
    page = rank.page
    if page.heartbeat_age_s > HEARTBEAT_LATE_S and rank.view.state != "uninterruptible":
        return _holds_interpreter(facts, rank)
    by_phase: dict[str, Callable[[RunFacts, RankFacts], Hang | None]] = {
        "data_wait": _waits_for_data, "checkpoint": _saves, "compile": _compiles, **dict.fromkeys(STARTING, _starts),
    }  # fmt: skip
    rule = by_phase.get(page.phase, _works)
    found = rule(facts, rank)
    return found if found is not None else _stuck(facts, rank)


def _waits_for_data(facts: RunFacts, rank: RankFacts) -> Hang | None:
    readers = [item for item in rank.readers if item.slot.state == "read"]
    gone = [item for item in rank.readers if not item.view.is_alive]
    if gone:
        return _reader_gone(facts, rank, gone[0])
    if not readers:
        return _works(facts, rank)
    worst = max(readers, key=lambda item: item.slot.age_s)
    where = f"{worst.reading} for {worst.slot.age_s:.1f} s"
    kernel = kernel_line(worst.view)
    why = (f"rank {rank.page.rank} waits for events, process {worst.slot.pid} reads {where}", kernel)
    number, pid = rank.page.rank, worst.slot.pid
    if worst.view.is_busy:
        verdict = f"process {worst.slot.pid} works on {worst.reading}: slow, not stuck"
        return Hang(
            "XT-HANG-SLOW", verdict, why, f"xectool diagnose loader {quoted(facts, 'config.yaml')}", False, number, pid
        )
    if _LOCK.search(worst.view.waits_in) and worst.view.pid != rank.page.pid:
        verdict = f"process {worst.slot.pid} waits for a lock while it reads {worst.reading}"
        stacks = f"xectool diagnose stacks {quoted(facts)}"
        return Hang("XT-HANG-READER-LOCK", verdict, (*why, *stack_line(rank)), stacks, rank=number, pid=pid)
    verdict = f"process {worst.slot.pid} is stuck in the file system: {worst.reading}"
    return Hang(
        "XT-HANG-READER-IO",
        verdict,
        why,
        f"timeout 10 head -c 1000000 {quote(worst.file)} | wc -c",
        rank=number,
        pid=pid,
    )


def _reader_gone(facts: RunFacts, rank: RankFacts, reader: Reader) -> Hang:
    doing = f" while it read {reader.reading}" if reader.slot.state == "read" else ""
    verdict = f"loader process {reader.slot.pid} of rank {rank.page.rank} is gone{doing}"
    kills = f"processes killed for lack of memory since the machine started: {max(facts.oom_kills, 0)}"
    memory = f"it last held {max(reader.slot.rss_bytes, 0) / 1e9:.2f} GB"
    fix = f"xectool diagnose run {quoted(facts)}"
    return Hang("XT-HANG-READER-DEAD", verdict, (memory, kills), fix, rank=rank.page.rank, pid=reader.slot.pid)


def _saves(facts: RunFacts, rank: RankFacts) -> Hang | None:
    age_s, view = rank.page.phase_age_s, rank.view
    if view.written_bytes_per_s > 0 or view.is_busy:
        verdict = f"rank {rank.page.rank} writes its checkpoint since {age_s:.0f} s and gets on"
        why = (f"{view.written_bytes_per_s / 1e6:.1f} MB/s, {view.cpu_share:.0%} of a core",)
        return Hang("XT-HANG-SLOW", verdict, why, "", False, rank.page.rank, view.pid)
    verdict = (
        f"the file system does not take the checkpoint of rank {rank.page.rank}: nothing written for {age_s:.0f} s"
    )
    seen = (kernel_line(view), *stack_line(rank))
    probe = quote(f"{facts.run_dir}/.probe")
    next_line = f"timeout 10 dd if=/dev/zero of={probe} bs=1M count=8 conv=fsync; rm {probe}"
    return Hang("XT-HANG-CHECKPOINT", verdict, seen, next_line, rank=rank.page.rank, pid=view.pid)


def _compiles(facts: RunFacts, rank: RankFacts) -> Hang | None:
    view = rank.view
    if not view.compilers and not view.is_busy:
        return None
    verdict = (
        f"rank {rank.page.rank} compiles since {rank.page.phase_age_s:.0f} s: {', '.join(view.compilers) or 'busy'}"
    )
    why = (f"{view.cpu_share:.0%} of a core, compilers below it: {', '.join(view.compilers) or 'none'}",)
    fix = "--set training.compile=off   # if it takes too long"
    return Hang("XT-HANG-COMPILE", verdict, why, fix, False, rank.page.rank, view.pid)


def _starts(facts: RunFacts, rank: RankFacts) -> Hang | None:
    if any(item.slot.state == "read" for item in rank.readers):
        return _waits_for_data(facts, rank)
    view, page = rank.view, rank.page
    if view.is_busy or view.read_bytes_per_s > READS_BYTES_PER_S:
        verdict = f"rank {page.rank} is still starting: {page.phase} for {page.phase_age_s:.0f} s, and busy"
        why = (f"{view.cpu_share:.0%} of a core, {view.read_bytes_per_s / 1e6:.1f} MB/s", *stack_line(rank))
        return Hang("XT-HANG-STARTING", verdict, why, "", False, page.rank, view.pid)
    if in_file_system(view):
        verdict = f"rank {page.rank} cannot open its files: {page.phase} for {page.phase_age_s:.0f} s"
        fix = f"xectool check-data --config {quoted(facts, 'config.yaml')}"
        return Hang("XT-HANG-OPEN", verdict, (kernel_line(view), *stack_line(rank)), fix, rank=page.rank, pid=view.pid)
    return None


def _works(facts: RunFacts, rank: RankFacts) -> Hang | None:
    if not rank.view.is_busy:
        return None
    page = rank.page
    verdict = (
        f"rank {page.rank} computes: {page.phase} for {page.phase_age_s:.1f} s, usually below {rank.usual_s:.1f} s"
    )
    why = (f"{rank.view.cpu_share:.0%} of a core", *stack_line(rank))
    bad = page.phase_age_s > rank.limit_s
    return Hang(
        "XT-HANG-SLOW", verdict, why, f"xectool diagnose modules {quoted(facts)}", bad, page.rank, rank.view.pid
    )


def _holds_interpreter(facts: RunFacts, rank: RankFacts) -> Hang:
    page = rank.page
    since = f"no thread of it has run for {page.heartbeat_age_s:.0f} s"
    verdict = f"rank {page.rank} hangs in compiled code that holds the interpreter: {since}"
    why = (kernel_line(rank.view), *stack_line(rank))
    return Hang(
        "XT-HANG-GIL", verdict, why, f"xectool diagnose stacks {quoted(facts)} --native", rank=page.rank, pid=page.pid
    )


def _stuck(facts: RunFacts, rank: RankFacts) -> Hang:
    page = rank.page
    verdict = f"rank {page.rank} stands in {page.phase} for {page.phase_age_s:.1f} s and does nothing"
    why = (kernel_line(rank.view), *stack_line(rank))
    return Hang("XT-HANG-STUCK", verdict, why, f"xectool diagnose stacks {quoted(facts)}", rank=page.rank, pid=page.pid)
