"""A rank that compiles: its compilers get on, or stand still and so does it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from xectool.diagnosis.evidence.kernel import HELD, look
from xectool.diagnosis.hang.facts import RankFacts, RunFacts
from xectool.diagnosis.hang.hang import Hang
from xectool.diagnosis.hang.wording import kernel_line, quoted

_INDUCTOR: Final = "/torch/_inductor/compile_fx.py"
_COMPILES: Final = re.compile(r"compile_fx|codegen")
# Of half a second each, until one sees work: a compiler may wait for a file, and the next one may be about to start.
LOOKS: Final = 6


def is_compiling(rank: RankFacts) -> bool:
    """Return whether compilers of a rank work below it, or it stands in the part of torch that writes code itself."""
    frames = rank.stacks.main.frames if rank.stacks.main is not None else ()
    own = any(frame.file.endswith(_INDUCTOR) and _COMPILES.search(frame.function) for frame in frames)
    return own or bool(rank.view.compilers)


def compiling(facts: RunFacts, rank: RankFacts) -> Hang | None:
    """Return the verdict on a rank in its first compiled step, None where it neither computes nor has a compiler."""
    idle = rank.view.idle_compiler
    if found := _at_work(facts, rank):
        return found
    for _ in range(LOOKS):
        if idle is not None and idle.state in HELD:
            break
        again = look({rank.view.pid: 0})[rank.view.pid]
        if found := _at_work(facts, replace(rank, view=again)):
            return found
        idle = again.idle_compiler
        if not again.is_alive:
            break
    if idle is None:
        return None
    who, why = f"process {idle.pid} ({idle.command}), a compiler of rank {rank.page.rank},", (kernel_line(idle),)
    if idle.state in HELD:
        verdict = f"{who} is {idle.state}: a signal or a debugger holds it"
        return Hang("XT-HANG-STOPPED", verdict, why, f"kill -CONT {idle.pid}", rank=rank.page.rank, pid=idle.pid)
    fix, since = f"xectool diagnose stacks {quoted(facts)}", f"since {rank.page.phase_age_s:.0f} s"
    return Hang(
        "XT-HANG-STUCK", f"{who} does nothing; it compiles {since}", why, fix, rank=rank.page.rank, pid=idle.pid
    )


def _at_work(facts: RunFacts, rank: RankFacts) -> Hang | None:
    view = rank.view
    if not (view.is_busy or (view.compilers and view.idle_compiler is None)):
        return None
    compilers = ", ".join(view.compilers)
    verdict = f"rank {rank.page.rank} compiles since {rank.page.phase_age_s:.0f} s: {compilers or 'busy'}"
    why = (f"{view.cpu_share:.0%} of a core, compilers below it: {compilers or 'none'}",)
    fix = f"xectool diagnose compile {quoted(facts)}   # what each mode takes, and whether it is worth it"
    return Hang("XT-HANG-COMPILE", verdict, why, fix, False, rank.page.rank, view.pid)
