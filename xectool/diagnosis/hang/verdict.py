"""The verdict on a run that may hang: who is waited for, and why.

Ends and stopped processes come first, then whoever the other ranks wait for, then what that rank is doing. A phase that
lasts no longer than usual is no hang, whatever it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from xectool.diagnosis.evidence.kernel import HELD
from xectool.diagnosis.hang.collectives import all_inside, outside, waited_for
from xectool.diagnosis.hang.compiler import compiling, is_compiling
from xectool.diagnosis.hang.ends import ended, gone, oom_kills_since, out_of_memory
from xectool.diagnosis.hang.facts import HEARTBEAT_LATE_S, RankFacts, Reader, RunFacts, is_late
from xectool.diagnosis.hang.hang import Hang
from xectool.diagnosis.hang.tracker import tracker_trouble
from xectool.diagnosis.hang.wording import in_file_system, kernel_line, quoted, stack_line
from xectool.errors import in_shell

STARVED: Final = 0.8  # part of the time in which a process is ready to run and has no processor
READS_BYTES_PER_S: Final = 1e5  # the heartbeat's look at /proc is far below
READING: Final = ("validation", "outputs")  # events are read in there as well
STARTING: Final = ("start", "data_open", "build")
_RECORD: Final = "/xectool/runlog/"
# Of programs; those of the kernel, rwsem and mutex, are the file system's.
_LOCK: Final = re.compile(r"futex|semtimedop")


def judge(facts: RunFacts) -> Hang:
    """Return the verdict on a run."""
    for rule in (ended, gone, _stopped, _advancing):
        found = rule(facts)
        if found is not None and found.code == "XT-HANG-NONE":
            return tracker_trouble(facts.tracker, quoted(facts), found.verdict) or found
        if found is not None:
            return found
    culprit, waiting = waited_for(facts.ranks)
    if culprit is None:
        return all_inside(facts)
    found = _why_it_stands(facts, culprit)
    return outside(facts, culprit, waiting, found) if waiting else found


def _stopped(facts: RunFacts) -> Hang | None:
    views = [(rank.page.rank, "rank", rank.view) for rank in facts.ranks]
    views += [(r.page.rank, "loader process of rank", item.view) for r in facts.ranks for item in r.readers]
    for rank, role, view in views:
        if view.state in HELD:
            verdict = f"process {view.pid} ({role} {rank}) is {view.state}: a signal or a debugger holds it"
            why = ("everything else waits for it",)
            return Hang("XT-HANG-STOPPED", verdict, why, f"kill -CONT {view.pid}", rank=rank, pid=view.pid)
    if (held := facts.launcher) is not None:
        verdict = f"process {held.pid} (launcher of the ranks) is {held.state}: Ctrl-Z, a signal or a debugger holds it"
        why = ("the ranks wait for it where they wait for the first one, at the latest at the end of the epoch",)
        return Hang("XT-HANG-STOPPED", verdict, why, f"kill -CONT {held.pid}", pid=held.pid)
    return None


def _advancing(facts: RunFacts) -> Hang | None:
    if any(is_late(rank) for rank in facts.ranks):
        return None
    slowest = max(facts.ranks, key=lambda rank: rank.page.phase_age_s)
    page = slowest.page
    why = (f"rank {page.rank}: {page.phase} for {page.phase_age_s:.1f} s, usually up to {slowest.usual_s:.1f} s",)
    going, watch = f"the run goes on: step {page.step}, epoch {page.epoch}", f"xectool watch {quoted(facts)}"
    lost = [(rank, item) for rank in facts.ranks for item in rank.readers if _is_missed(item)]
    if lost:  # the step under way may last for a while
        found = _reader_gone(facts, *lost[0])
        return replace(found, verdict=f"{going}, and ends at its next batch: {found.verdict}")
    return Hang("XT-HANG-NONE", going, why, watch, bad=False)


def _is_missed(reader: Reader) -> bool:
    return reader.slot.loader == "training" and not reader.view.is_alive


def _why_it_stands(facts: RunFacts, rank: RankFacts) -> Hang:
    page = rank.page
    if page.heartbeat_age_s > HEARTBEAT_LATE_S and rank.view.state != "uninterruptible":
        return _starves(rank) or _holds_interpreter(facts, rank)
    by_phase: dict[str, Callable[[RunFacts, RankFacts], Hang | None]] = {
        "data_wait": _waits_for_data, "checkpoint": _saves, "compile": compiling, **dict.fromkeys(STARTING, _starts),
    }  # fmt: skip
    found = by_phase.get(page.phase, _computes)(facts, rank)
    return found if found is not None else _stuck(facts, rank)


def _computes(facts: RunFacts, rank: RankFacts) -> Hang | None:
    # a first backward pass or validation is compiled as well
    found = compiling(facts, rank) if is_compiling(rank) else None
    return found if found is not None else _works(facts, rank)


def _waits_for_data(facts: RunFacts, rank: RankFacts) -> Hang | None:
    readers = _in_a_read(rank) or _held_elsewhere(rank)
    gone = [item for item in rank.readers if not item.view.is_alive]
    if gone:
        return _reader_gone(facts, rank, gone[0])
    if not readers:
        return _works(facts, rank)
    worst = max(readers, key=lambda item: item.slot.age_s)
    age_s, inside = worst.slot.age_s, worst.slot.state == "read"
    where = f"reads {worst.reading} for {age_s:.1f} s" if inside else f"has read {worst.reading} {age_s:.1f} s ago"
    view = worst.now
    kernel = kernel_line(view, worst.slot.pid)
    why = (f"rank {rank.page.rank} waits for events, process {worst.slot.pid} {where}", kernel)
    number, pid = rank.page.rank, worst.slot.pid
    if view.is_busy:
        bad, loader = age_s > rank.limit_s, f"xectool diagnose loader {quoted(facts, 'config.yaml')}"
        how = f"for {age_s:.0f} s, and does not get on" if bad else "slow, not stuck"
        verdict = f"process {pid} works on {worst.reading}: {how}"
        return Hang("XT-HANG-SLOW", verdict, why, loader, bad, number, pid)
    if _LOCK.search(view.waits_in) and view.pid != rank.page.pid:
        when = "while it reads" if inside else "after it has read"
        verdict = f"process {worst.slot.pid} waits for a lock {when} {worst.reading}"
        stacks = f"xectool diagnose stacks {quoted(facts)}"
        return Hang("XT-HANG-READER-LOCK", verdict, (*why, *stack_line(rank)), stacks, rank=number, pid=pid)
    verdict = f"process {worst.slot.pid} is stuck in the file system: {worst.reading}"
    return Hang(
        "XT-HANG-READER-IO",
        verdict,
        why,
        f"timeout 10 head -c 1000000 {in_shell(worst.file)} | wc -c",
        rank=number,
        pid=pid,
    )


def _in_a_read(rank: RankFacts) -> list[Reader]:
    return [item for item in rank.readers if item.slot.state == "read"]


def _held_elsewhere(rank: RankFacts) -> list[Reader]:
    """Return the loader processes that are busy or held by something between two reads; an idle one polls."""
    others = [item for item in rank.readers if item.slot.state == "idle" and item.slot.pid != rank.page.pid]
    views = [(item, item.view) for item in others]
    return [item for item, view in views if view.is_busy or in_file_system(view) or _LOCK.search(view.waits_in)]


def _reader_gone(facts: RunFacts, rank: RankFacts, reader: Reader) -> Hang:
    doing = f" while it read {reader.reading}" if reader.slot.state == "read" else ""
    number, pid = rank.page.rank, reader.slot.pid
    who, memory = f"loader process {pid} of rank {number}", f"it last held {max(reader.slot.rss_bytes, 0) / 1e9:.2f} GB"
    kills = oom_kills_since(facts, rank.page.oom_kills)
    if kills:
        killed = f"processes of this machine killed for lack of memory since the run began: {kills}"
        why = (killed, f"it was lost{doing}" if doing else "it was idle", memory)
        return out_of_memory(facts, who, why, (number, pid))
    fix = f"xectool diagnose run {quoted(facts)}"
    return Hang("XT-HANG-READER-DEAD", f"{who} is gone{doing}", (memory,), fix, rank=number, pid=pid)


def _saves(facts: RunFacts, rank: RankFacts) -> Hang | None:
    age_s, view = rank.page.phase_age_s, rank.view
    if view.written_bytes_per_s > 0 or view.is_busy:
        verdict = f"rank {rank.page.rank} writes its checkpoint since {age_s:.0f} s and gets on"
        why = (f"{view.written_bytes_per_s / 1e6:.1f} MB/s, {view.cpu_share:.0%} of a core",)
        watch = f"xectool watch {quoted(facts)}"
        return Hang("XT-HANG-SLOW", verdict, why, watch, False, rank.page.rank, view.pid)
    return _not_taken(facts, rank, "checkpoint")


def _not_taken(facts: RunFacts, rank: RankFacts, what: str) -> Hang:
    page, seen = rank.page, (kernel_line(rank.view), *stack_line(rank))
    verdict = (
        f"the file system does not take the {what} of rank {page.rank}: nothing written for {page.phase_age_s:.0f} s"
    )
    probe = in_shell(f"{facts.run_dir}/.probe")
    next_line = f"timeout 10 dd if=/dev/zero of={probe} bs=1M count=8 conv=fsync; rm {probe}"
    return Hang("XT-HANG-CHECKPOINT", verdict, seen, next_line, rank=page.rank, pid=page.pid)


def _starts(facts: RunFacts, rank: RankFacts) -> Hang | None:
    if _in_a_read(rank):
        return _waits_for_data(facts, rank)
    view, page = rank.view, rank.page
    moved_s = min((item.slot.age_s for item in rank.readers if item.view.is_alive), default=math.inf)
    if view.is_busy or view.read_bytes_per_s > READS_BYTES_PER_S or moved_s < rank.usual_s:
        verdict = f"rank {page.rank} is still starting: {page.phase} for {page.phase_age_s:.0f} s, and gets on"
        why = (f"{view.cpu_share:.0%} of a core, {view.read_bytes_per_s / 1e6:.1f} MB/s", *stack_line(rank))
        status = f"xectool diagnose status {quoted(facts)}"
        return Hang("XT-HANG-STARTING", verdict, why, status, False, page.rank, view.pid)
    if in_file_system(view):
        verdict = f"rank {page.rank} cannot open its files: {page.phase} for {page.phase_age_s:.0f} s"
        first = facts.files[0] if facts.files else "TRAIN.root"
        fix = f"xectool check-data {in_shell(first)} --config {quoted(facts, 'config.yaml')}"
        return Hang("XT-HANG-OPEN", verdict, (kernel_line(view), *stack_line(rank)), fix, rank=page.rank, pid=view.pid)
    return None


def _works(facts: RunFacts, rank: RankFacts) -> Hang | None:
    if not rank.view.is_busy:
        long = any(item.slot.age_s > rank.usual_s for item in _in_a_read(rank))
        return _waits_for_data(facts, rank) if long and rank.page.phase in READING else None
    page = rank.page
    verdict = (
        f"rank {page.rank} computes: {page.phase} for {page.phase_age_s:.1f} s, usually below {rank.usual_s:.1f} s"
    )
    why = (f"{rank.view.cpu_share:.0%} of a core", *stack_line(rank))
    bad = page.phase_age_s > rank.limit_s
    return Hang(
        "XT-HANG-SLOW", verdict, why, f"xectool diagnose modules {quoted(facts)}", bad, page.rank, rank.view.pid
    )


def _starves(rank: RankFacts) -> Hang | None:
    view, page = rank.view, rank.page
    if view.delayed_share < STARVED:
        return None
    verdict = f"rank {page.rank} gets no processor: it is ready to run in {page.phase}, and others are served"
    why = (kernel_line(view), f"its last heartbeat is {page.heartbeat_age_s:.0f} s old")
    busiest = "ps -eo pid,pcpu,stat,args --sort=-pcpu | head"
    return Hang("XT-HANG-SLOW", verdict, why, busiest, False, page.rank, page.pid)


def _holds_interpreter(facts: RunFacts, rank: RankFacts) -> Hang:
    page = rank.page
    since = f"no thread of it has run for {page.heartbeat_age_s:.0f} s"
    verdict = f"rank {page.rank} hangs in compiled code that holds the interpreter: {since}"
    why = (kernel_line(rank.view), *stack_line(rank))
    return Hang(
        "XT-HANG-GIL", verdict, why, f"xectool diagnose stacks {quoted(facts)} --native", rank=page.rank, pid=page.pid
    )


def _stuck(facts: RunFacts, rank: RankFacts) -> Hang:
    page, main = rank.page, rank.stacks.main
    if in_file_system(rank.view) and main is not None and any(_RECORD in frame.file for frame in main.frames[:4]):
        return _not_taken(facts, rank, "record")
    verdict = f"rank {page.rank} stands in {page.phase} for {page.phase_age_s:.1f} s and does nothing"
    why = (kernel_line(rank.view), *stack_line(rank))
    return Hang("XT-HANG-STUCK", verdict, why, f"xectool diagnose stacks {quoted(facts)}", rank=page.rank, pid=page.pid)
