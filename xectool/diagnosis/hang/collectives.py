"""Who is outside the collective the others are in, and what that tells: too few batches, or a first forward."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from xectool.diagnosis.hang.compiler import is_compiling
from xectool.diagnosis.hang.facts import RankFacts, RunFacts
from xectool.diagnosis.hang.hang import Hang
from xectool.diagnosis.hang.wording import place, quoted
from xectool.runlog.status_page import PageView

WAITING: Final = ("collective", "backward")
"""Phases in which a rank waits for the others."""
_WRAPS: Final = re.compile(r"/torch/|/contextlib\.py$|/xectool/training/ranks/")
_TRAINER: Final = "/xectool/training/trainer.py"
_AFTER_THE_BATCHES: Final = ("validation", "outputs", "done")


def waited_for(ranks: Sequence[RankFacts]) -> tuple[RankFacts | None, list[RankFacts]]:
    """Return the rank that stands where the others do not wait, and those that wait; None where all wait."""
    if len(ranks) == 1:
        return ranks[0], []
    newest = max(rank.page.collective_seq for rank in ranks)
    waiting = [
        rank for rank in ranks
        if rank.page.phase in WAITING and rank.page.collective_seq == newest
        # NCCL spins while it waits; the first backward pass is compiled as well
        and (rank.page.phase == "collective" or (rank.view.cpu_share < 1.0 and not is_compiling(rank)))
    ]  # fmt: skip
    outside = [rank for rank in ranks if rank not in waiting and rank.page.phase != "done"]
    if not outside:
        return None, waiting
    return max(outside, key=lambda rank: rank.page.phase_age_s), waiting


def outside(facts: RunFacts, culprit: RankFacts, waiting: Sequence[RankFacts], found: Hang) -> Hang:
    """Return the verdict on a rank that others wait for.

    Args:
        facts: The run.
        culprit: The rank.
        waiting: Those that wait.
        found: The verdict on that rank by itself.
    """
    page = culprit.page
    said = f"rank {page.rank} is outside the collective the others are in: {place(culprit)}"
    others = ", ".join(f"rank {item.page.rank}: {place(item)}" for item in waiting)
    why, next_line = (said, f"waiting: {others}", *found.why), found.next
    if found.code not in ("XT-HANG-STUCK", "XT-HANG-SLOW"):
        code, verdict = found.code, f"all wait for rank {page.rank}: {found.verdict}"
    elif page.phase in _AFTER_THE_BATCHES and any(_is_behind(page, item.page) for item in waiting):
        code, next_line = "XT-HANG-UNEVEN", f"xectool diagnose status {quoted(facts)}"
        verdict = f"rank {page.rank} has had its last batch, and the others have one more: {place(culprit)}"
        why = (*batches((culprit, *waiting)), *why)
    elif page.phase == "forward" and page.step == 0:
        code, next_line = "XT-HANG-LAZY", f"xectool diagnose stacks {quoted(facts)}"
        verdict = f"rank {page.rank} is still in its first forward pass, which builds something: {place(culprit)}"
    else:
        code, verdict = "XT-HANG-RANK", said
    return Hang(code, verdict, why, next_line, found.bad, page.rank, found.pid)


def all_inside(facts: RunFacts) -> Hang:
    """Return the verdict where every rank waits in a collective, or has ended its part."""
    where = tuple(f"rank {rank.page.rank}: {place(rank)}" for rank in facts.ranks)
    left = [rank.page for rank in facts.ranks if rank.page.phase == "done"]
    status = f"xectool diagnose status {quoted(facts)}"
    if left:
        verdict = f"rank {left[0].rank} has ended its part, and the others wait for it: it had less to do than they"
        why = (*batches(facts.ranks), *where)
        return Hang("XT-HANG-UNEVEN", verdict, why, status, rank=left[0].rank, pid=left[0].pid)
    ended = _ended_the_epoch(facts.ranks)
    if ended is not None:
        verdict = f"rank {ended.page.rank} has had its last batch of the epoch, and the others have one more"
        why = (*batches(facts.ranks), *where)
        return Hang("XT-HANG-UNEVEN", verdict, why, status, rank=ended.page.rank, pid=ended.page.pid)
    ways = {rank.page.collective or "gradients" for rank in facts.ranks}
    if len(ways) > 1:
        verdict = f"the ranks are in different collectives, {' and '.join(sorted(ways))}: each waits for the others"
        stacks = f"xectool diagnose stacks {quoted(facts)}"
        if len({rank.page.batch for rank in facts.ranks}) > 1:
            return Hang("XT-HANG-UNEVEN", verdict, (*batches(facts.ranks), *where), status)
        return Hang("XT-HANG-RANK", verdict, where, stacks)
    found = _from_elsewhere(facts, where)
    if found is not None:
        return found
    verdict = "every rank is inside the same collective, and none comes out: the connection between them"
    return Hang("XT-HANG-TRANSPORT", verdict, where, "xectool diagnose distributed")


def _ended_the_epoch(ranks: Sequence[RankFacts]) -> RankFacts | None:
    """Return the rank that is past its batches, by the calls of the loop, where another one is still among them."""
    calls = [
        {
            frame.function.rpartition(".")[2]
            for frame in (rank.stacks.main.frames if rank.stacks.main is not None else ())
            if frame.file.endswith(_TRAINER)
        }
        for rank in ranks
    ]
    ended = [rank for rank, names in zip(ranks, calls, strict=True) if "_finish_epoch" in names]
    return ended[0] if ended and any("_train_epoch" in names for names in calls) else None


def _from_elsewhere(facts: RunFacts, where: tuple[str, ...]) -> Hang | None:
    """Return the verdict where the ranks are in collectives of one number and kind that are not the same, by stacks.

    A rank that left one out counts one less, and waits with that number in a later one.
    """
    calls = {rank.page.rank: _caller(rank) for rank in facts.ranks}
    if "" in calls.values() or len(set(calls.values())) == 1:
        return None
    count = Counter(calls.values())
    page = min((rank.page for rank in facts.ranks), key=lambda page: (count[calls[page.rank]], *_most_first(page)))
    what = page.collective or "collective"
    verdict = f"rank {page.rank} is in another {what} than the others: it left one out, or has one more"
    callers = tuple(f"rank {number} waits in {call}" for number, call in calls.items())
    stacks = f"xectool diagnose stacks {quoted(facts)}"
    return Hang(
        "XT-HANG-RANK", verdict, (*callers, *batches(facts.ranks), *where), stacks, rank=page.rank, pid=page.pid
    )


def _most_first(page: PageView) -> tuple[int, ...]:
    """Return what puts the rank first that is further: one that left a collective out runs ahead of the others."""
    return tuple(-part for part in (*page.batch, page.step))


def _caller(rank: RankFacts) -> str:
    """Return the innermost calls of a rank outside of torch and of what wraps its collectives, or empty."""
    main = rank.stacks.main
    frames = [str(frame) for frame in main.frames if not _WRAPS.search(frame.file)] if main is not None else []
    return " < ".join(frames[:2])


def _is_behind(page: PageView, other: PageView) -> bool:
    """Return whether the other rank trains on, which DDP does in the backward pass, with a batch the first has not."""
    return other.phase == "backward" or other.batch[1:] > page.batch[1:]


def batches(ranks: Iterable[RankFacts]) -> tuple[str, ...]:
    """Return how far each rank has come, a line each."""
    pages = sorted((rank.page for rank in ranks), key=lambda page: page.rank)
    return tuple(
        f"rank {page.rank}: step {page.step}, last batch of epoch {page.batch[1]}: {page.batch[3]}" for page in pages
    )
