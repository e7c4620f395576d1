"""``xectool diagnose query``: SQL over the record of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from xectool.cli.options import JsonOption, run_word
from xectool.cli.render import Output, table


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
    title = f"{len(rows)} row{'' if len(rows) == 1 else 's'}"
    Output("diagnose query", json).result(result, human=lambda screen: screen.print(table(title, result.columns, rows)))
