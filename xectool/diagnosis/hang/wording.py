"""How a verdict on a hang says where a rank stands."""

from __future__ import annotations

import re
from typing import Final

from xectool.diagnosis.evidence.kernel import ProcessView
from xectool.diagnosis.hang.facts import RankFacts, RunFacts
from xectool.errors import in_shell

_IO: Final = re.compile(  # whole beginnings of names: poll_ is no ll_, and an anon_pipe_ no file
    r"nfs|rpc|lustre|gpfs|fuse|request_wait_answer|ceph|wait_for_partner|rwsem|io_schedule|folio|wait_on_|blk|jbd2|ext4|xfs"
    r"|fifo|\b(?:ll|cl|pipe)_"
)


def quoted(facts: RunFacts, *parts: str) -> str:
    """Return the run directory, or a file in it, as a shell takes it."""
    return in_shell("/".join((str(facts.run_dir), *parts)))


def place(rank: RankFacts) -> str:
    """Return what a rank is doing, where and since when."""
    page = rank.page
    doing = (
        f"{page.collective} #{page.collective_seq}" if page.phase == "collective" and page.collective else page.phase
    )
    return f"{doing} at step {page.step} for {page.phase_age_s:.1f} s"


def in_file_system(view: ProcessView) -> bool:
    """Return whether the kernel waits for a file system on behalf of a process."""
    return view.state == "uninterruptible" or bool(_IO.search(view.waits_in))


def kernel_line(view: ProcessView, process: int = 0) -> str:
    """Return what the kernel says of a process, or of a thread of ``process``."""
    waits = f", waits in {view.waits_in}" if view.waits_in else ""
    moved = (view.read_bytes_per_s + view.written_bytes_per_s) / 1e6
    work = f"{view.cpu_share:.0%} of a core, {moved:.1f} MB/s"
    who = f"thread {view.pid} of process {process}" if process not in (0, view.pid) else f"process {view.pid}"
    return f"kernel: {who} is {view.state}{waits}, {work}"


def stack_line(rank: RankFacts) -> tuple[str, ...]:
    """Return where its training thread stands: the innermost calls that say something."""
    main = rank.stacks.main
    if main is None or not main.frames:
        return ((f"no stack: {rank.stacks.problem}"),) if rank.stacks.problem else ()
    return ("stack: " + " < ".join(str(frame) for frame in main.frames[:4]),)
