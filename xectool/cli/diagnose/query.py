"""``xectool diagnose query``: SQL over the record of a run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from xectool.cli.options import JsonOption, run_word
from xectool.cli.render import Output, table
from xectool.errors import counted

_LONGEST = 100  # letters of a value in a table of several rows


def query(
    run: Annotated[
        str, typer.Argument(metavar="RUN", callback=run_word, help="Run directory, of a live run or one that is over.")
    ],
    sql: Annotated[str, typer.Argument(metavar="SQL", help="E.g. 'SELECT step, loss FROM steps WHERE nonfinite'.")],
    json: JsonOption = False,
) -> None:
    """Ask the record of a run in SQL: tables steps, rank_steps, modules, epochs, events, stacks, attempts."""
    from xectool import engine

    result = engine.diagnose.query(run, sql)
    rows = [["-" if value is None else value for value in row] for row in result.rows]
    shown = [[_shortened(value) for value in row] for row in rows] if len(rows) > 1 else rows
    drawings: list[RenderableType] = [table(counted(len(rows), "row"), result.columns, shown)]
    if shown != rows:
        drawings.append(Text("long values are cut at '…'; whole: --json, or a query for one row"))
    Output("diagnose query", json).result(result, human=lambda screen: screen.print(*drawings, sep="\n"))


def _shortened(value: object) -> object:
    """Return a value as it is, or the beginning of a long text, such as the marks of a checkpoint in an event."""
    return f"{value[:_LONGEST]}…" if isinstance(value, str) and len(value) > _LONGEST else value
