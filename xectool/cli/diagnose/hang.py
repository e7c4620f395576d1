"""``xectool diagnose hang`` and ``xectool diagnose stacks``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import JsonOption, run_word
from xectool.cli.render import AlreadyShown, Output, verdict_box
from xectool.errors import EXIT_BAD_RESULT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from xectool.engine.diagnose.hanging import HangReport, ProcessLine

RunArgument = Annotated[
    str | None, typer.Argument(metavar="RUN", callback=run_word, help="Run directory; live, hung or dead.")
]
PidOption = Annotated[int | None, typer.Option("--pid", metavar="P", help="Process id, in place of RUN.")]


def stacks(
    run: RunArgument = None,
    pid: PidOption = None,
    native: Annotated[bool, typer.Option("--native", help="Calls of compiled code too, where py-spy may.")] = False,
    json: JsonOption = False,
) -> None:
    """Show where every thread of every rank and loader process stands, without stopping what cannot be stopped."""
    from xectool import engine

    found = engine.diagnose.stacks(run, pid=pid, native=native)
    Output("diagnose stacks", json).result({"processes": found}, human=lambda screen: show_stacks(screen, found))


def hang(run: RunArgument = None, pid: PidOption = None, json: JsonOption = False) -> None:
    """Say who waits for whom in every rank and loader process, and whose fault it is."""
    from xectool import engine

    found = engine.diagnose.hang(run, pid=pid)
    output = Output("diagnose hang", json)
    output.result(
        found, findings=found.findings if json else (), bad=found.bad, human=lambda screen: _show_hang(screen, found)
    )
    if found.bad:
        raise AlreadyShown(EXIT_BAD_RESULT)


def show_stacks(screen: Console, found: Sequence[ProcessLine]) -> None:
    """Print the calls of every thread of some processes."""
    for line in found:
        _show_head(screen, line)
        for name, frames in line.threads.items():
            screen.print(f"  thread {name}", style="bold", markup=False)
            for frame in frames:
                screen.print(f"    {frame}", markup=False)
        if line.problem:
            screen.print(f"  {line.problem}", markup=False)


def _show_hang(screen: Console, found: HangReport) -> None:
    for line in found.processes:
        _show_head(screen, line)
    why = [text for item in found.findings for text in item.evidence if text]
    screen.print(verdict_box(found.verdict, why, found.next, not found.bad))


def _show_head(screen: Console, line: ProcessLine) -> None:
    rank = f" of rank {line.rank}" if line.rank >= 0 else ""
    screen.print(f"{line.role} {line.pid}{rank}: {line.state}; {line.waiting_for}", markup=False)
