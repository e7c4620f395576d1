"""A rank that compiles: its compilers get on, or stand still and so does it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from xectool.diagnosis.evidence.kernel import HELD, look
from xectool.diagnosis.hang.facts import RankFacts, RunFacts
from xectool.diagnosis.hang.hang import Hang
from xectool.diagnosis.hang.wording import kernel_line, quoted

AGAIN_S: Final = 3.0  # of a second look: for half a second any compiler may wait for a file


def compiling(facts: RunFacts, rank: RankFacts) -> Hang | None:
    """Return the verdict on a rank in its first compiled step, None where it neither computes nor has a compiler."""
    view, since = rank.view, f"since {rank.page.phase_age_s:.0f} s"
    if view.is_busy or (view.compilers and view.idle_compiler is None):
        verdict = f"rank {rank.page.rank} compiles {since}: {', '.join(view.compilers) or 'busy'}"
        why = (f"{view.cpu_share:.0%} of a core, compilers below it: {', '.join(view.compilers) or 'none'}",)
        fix = f"xectool diagnose compile {quoted(facts)}   # what each mode takes, and whether it is worth it"
        return Hang("XT-HANG-COMPILE", verdict, why, fix, False, rank.page.rank, view.pid)
    if (idle := view.idle_compiler) is None:
        return None
    if idle.state not in HELD:
        again = look({view.pid: 0}, AGAIN_S)[view.pid]
        if again.idle_compiler is None:
            return compiling(facts, replace(rank, view=again))
        idle = again.idle_compiler
    who, why = f"process {idle.pid} ({idle.command}), a compiler of rank {rank.page.rank},", (kernel_line(idle),)
    if idle.state in HELD:
        verdict = f"{who} is {idle.state}: a signal or a debugger holds it"
        return Hang("XT-HANG-STOPPED", verdict, why, f"kill -CONT {idle.pid}", rank=rank.page.rank, pid=idle.pid)
    fix = f"xectool diagnose stacks {quoted(facts)}"
    return Hang(
        "XT-HANG-STUCK", f"{who} does nothing; it compiles {since}", why, fix, rank=rank.page.rank, pid=idle.pid
    )
