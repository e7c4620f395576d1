"""How a process ended in machine code: the dump that its signal handler leaves beside the record."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from xectool.diagnosis.hang.stacks import parse_dump
from xectool.runlog.status_page import PageView
from xectool.runlog.storage import attempt_dir, attempts, slots_path
from xectool.runlog.worker_slots import stacks_path

ABORTED: Final = "Aborted"
MISMATCH: Final = (
    "most often what connects the ranks does so, where another one is in another collective (it left one out, or has "
    "one more) or does not come"
)
OTHERWISE: Final = "a fault in machine code, or memory that cannot be had there, ends a process in the same way"
_LIBRARY: Final = re.compile(r"(?:site|dist)-packages/|/lib/python3[^/]*/")
_FATAL: Final = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_READER: Final = "data/worker_process.py"
_END: Final = "\nExtension modules:"  # ends a dump


def last_fault(run_dir: Path, attempt: int, rank: int = 0) -> tuple[str, str]:
    """Return what ended a rank by the dump of its signal handler, and where its thread stood; else empty.

    Processes that read data dump into the same file; their end is an error that the run can tell.
    """
    try:
        text = stacks_path(slots_path(attempt_dir(run_dir, attempt), rank)).read_text(
            errors="replace", encoding="utf-8"
        )
    except OSError:
        return "", ""
    what, dump = _FATAL.split(text)[-2:] if _FATAL.search(text) else ("", "")
    own = dump.partition(_END)[0]
    return ("", "") if _READER in own else (what, innermost(own))


def aborted_inside(run_dir: Path, page: PageView) -> tuple[str, str]:
    """Return the collective in which a rank was aborted, and its own call there; empty where it ended otherwise.

    The library that connects the ranks, gloo or NCCL, aborts one where what came from another rank was of another
    collective, or nothing came for long. A fault in machine code in such a phase looks the same.
    """
    if page.phase == "collective" and page.collective:
        named = f"{page.collective} #{page.collective_seq}"
    elif page.phase == "backward":
        named = "the backward pass, which sums the gradients"
    else:
        return "", ""
    what, where = last_fault(run_dir, max(attempts(run_dir), default=0), page.rank)
    return (named, where) if what == ABORTED else ("", "")


def innermost(dump: str) -> str:
    """Return the innermost call of the thread that a dump tells last, which is not a library's; empty without one."""
    threads = parse_dump(dump.splitlines())
    frames = threads[0].frames if threads else ()
    own = next((frame for frame in frames if not _is_of_library(frame.file)), None)
    return f"{own.function}, {own.file}:{own.line}" if own else ""


def _is_of_library(file: str) -> bool:
    """Return whether a file is Python's or of an installed package, but for our own."""
    if file.startswith("<"):
        return True
    parts = _LIBRARY.split(file)
    return len(parts) > 1 and not parts[-1].startswith("xectool/")
