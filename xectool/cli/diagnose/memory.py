"""``xectool diagnose memory``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import JsonOption, run_word
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.errors import EXIT_BAD_RESULT

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.diagnosis.reports.memory import MemoryReport


def memory(
    source: Annotated[
        str, typer.Argument(metavar="RUN|LOG", callback=run_word, help="Run directory, or the log of any program.")
    ],
    json: JsonOption = False,
) -> None:
    """Say which memory ran out and why: device or host, capacity, fragments, growth, another process."""
    from xectool import engine

    result = engine.diagnose.memory(source)
    bad = bool(result.code)
    Output("diagnose memory", json).result(result, bad=bad, human=lambda s: show_memory(s, result))
    if bad:
        raise AlreadyShown(EXIT_BAD_RESULT)


def show_memory(screen: Console, result: MemoryReport) -> None:
    """Print what was found of memory."""
    if result.table:
        rows = [[name, f"{size / 1e9:.3f}"] for name, size in result.table.items()]
        screen.print(table("memory", ["what", "GB"], rows))
    if result.ladder:
        steps = [
            [index, rung.title, " ".join(rung.settings), rung.saving] for index, rung in enumerate(result.ladder, 1)
        ]
        screen.print(table("what to change, in this order", ["", "what", "settings", "saves"], steps))
    why = [line for line in (result.kind, result.growth, *result.evidence, result.where) if line]
    screen.print(verdict_box(result.verdict, why, result.next, good=not result.code))
