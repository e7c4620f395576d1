"""``xectool diagnose log``: classifies any training log by known signatures."""

from __future__ import annotations

from typing import Annotated

import typer

from xectool.cli.options import JsonOption
from xectool.cli.render import AlreadyShown, Output, verdict_box
from xectool.errors import EXIT_BAD_RESULT, counted


def log(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES", help="Logs of all ranks: files, directories, globs; - for what is piped in."),
    ],
    json: JsonOption = False,
) -> None:
    """Find the first cause in the logs of a run, of this trainer or any other."""
    from xectool import engine

    result = engine.diagnose.log(files)
    first = result.causes[0] if result.causes else None
    why = (
        [first.root_cause, *first.evidence]
        if first
        else [f"{item.path}: {counted(item.lines, 'line')}" for item in result.files]
    )
    next_line = (first.fix[0] if first.fix else first.explain) if first else ""
    others = result.findings[1:]
    Output("diagnose log", json).result(
        result,
        findings=result.findings if json else others,
        bad=not result.healthy,
        human=lambda screen: screen.print(verdict_box(result.verdict, why, next_line, result.healthy)),
    )
    if not result.healthy:
        raise AlreadyShown(EXIT_BAD_RESULT)
