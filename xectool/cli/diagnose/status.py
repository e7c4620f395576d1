"""``xectool diagnose status``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from xectool.cli.diagnose.hang import PidOption, RunArgument
from xectool.cli.options import JsonOption
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.errors import EXIT_BAD_RESULT, duration

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.diagnosis.reports.status import StatusReport

_OF_STATE = {
    "running": "its record says no end, and its process lives",
    "finished": "the run has finished",
    "failed": "the run ended with an error",
    "interrupted": "the run was asked to end",
    "killed": "its process is gone and its record has no last word",
    "ended": "its process has ended by itself, and its record is cut before its last word",
    "unknown": "it was written on a host that cannot be asked from here, or is a copy",
}


def status(run: RunArgument = None, pid: PidOption = None, json: JsonOption = False) -> None:
    """Show one line a rank and a reading thread: phase, age, pace, waiting, last batch, cost of the record."""
    from xectool import engine

    result = engine.diagnose.status(run, pid=pid)
    Output("diagnose status", json).result(result, bad=result.bad, human=lambda screen: show_status(screen, result))
    if result.bad:
        raise AlreadyShown(EXIT_BAD_RESULT)


def show_status(screen: Console, result: StatusReport) -> None:
    """Print one line a rank and a reading thread."""
    ranks = [
        [
            r.rank, r.pid, r.state, r.phase, duration(r.phase_age_s), r.step,
            _known(r.steps_per_s, ".3g"), _known(r.data_wait_share, ".0%"),
            f"{r.rss_bytes / 1e9:.2f}" if r.rss_bytes >= 0 else "-", _known(r.recorder_share, ".2%"),
        ]
        for r in result.ranks
    ]  # fmt: skip
    names = ["rank", "pid", "state", "phase", "for", "step", "step/s", "wait", "GB", "rec"]
    screen.print(table("ranks", names, ranks))
    for line in result.ranks:
        if line.batch:
            screen.print(f"rank {line.rank}, last batch: {line.batch}", markup=False)
    if result.workers:
        workers = [[w.loader, w.pid, w.state, duration(w.age_s), w.file, w.entries, w.reads] for w in result.workers]
        screen.print(table("readers", ["loader", "pid", "state", "for", "file", "entries", "reads"], workers))
    why = _OF_STATE.get(result.state, f"state of the run: {result.state}")
    screen.print(verdict_box(result.verdict, [why, *result.damage], result.next, not result.bad))


def _known(value: float, shown: str) -> str:
    return format(value, shown) if math.isfinite(value) else "-"
