"""``xectool runs``: the table of runs, the comparison of two, and the replay into MLflow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import JsonOption
from xectool.cli.render import Output, table

if TYPE_CHECKING:
    from xectool.engine.runs import RunDifference, RunRow

app = typer.Typer(help="List runs, compare two, or bring MLflow up to date.", invoke_without_command=True)

COLUMNS = ("run", "status", "epochs", "steps", "val/loss", "at epoch", "started")


@app.callback()
def list_runs(
    context: typer.Context,
    root: Annotated[str, typer.Option(metavar="DIR", help="Directory that holds the runs.")] = "artifacts",
    json: JsonOption = False,
) -> None:
    """List the runs below a directory, live ones included."""
    if context.invoked_subcommand is not None:
        return
    from xectool import engine

    result = engine.runs.list_runs(root)
    rows = [[run.name, run.status, run.epochs, run.steps, *_best(run), run.started[:16]] for run in result.runs]
    title = f"{len(rows)} run{'' if len(rows) == 1 else 's'} below {result.root}"
    Output("runs", json).result(result, human=lambda screen: screen.print(table(title, COLUMNS, rows)))


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Run directory.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Run directory.")],
    json: JsonOption = False,
) -> None:
    """Show which configuration keys of two runs differ, and the metrics of their best epochs."""
    from xectool import engine

    result = engine.runs.compare(first, second)
    drawings = [
        table(f"{len(result.config)} keys differ", ["key", first, second], _rows(result.config)),
        table("metrics of the best epoch", ["metric", first, second], _rows(result.metrics)),
    ]
    Output("runs", json).result(result, human=lambda screen: screen.print(*drawings))


@app.command()
def sync(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    tracking_uri: Annotated[
        str | None, typer.Option(metavar="URI", help="Another database; default: the one the run was tracked with.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Replay into MLflow what it misses of a run; nothing is logged twice."""
    from xectool import engine

    result = engine.runs.sync(run, tracking_uri)
    text = f"{result.replayed} points replayed into {result.uri} (MLflow run {result.run_id})"
    Output("runs", json).result(result, human=lambda screen: screen.print(text, markup=False))


def _best(run: RunRow) -> tuple[object, object]:
    return (run.best, run.best_epoch) if run.best_epoch else ("-", "-")


def _rows(differences: Iterable[RunDifference]) -> list[list[object]]:
    return [[item.key, _shown(item.first), _shown(item.second)] for item in differences]


def _shown(value: object) -> object:
    return "-" if value is None else value
