"""What a verdict on a run that may hang consists of."""

from __future__ import annotations

from dataclasses import dataclass


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
