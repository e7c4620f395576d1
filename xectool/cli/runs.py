"""``xectool runs``: the table of runs, their comparison, and the replay into MLflow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from xectool.cli.options import JsonOption, run_word
from xectool.cli.render import Output, table
from xectool.errors import counted, in_shell

if TYPE_CHECKING:
    from xectool.engine.runs import RunDifference, RunRow

app = typer.Typer(help="List runs, compare them, or bring MLflow up to date.", invoke_without_command=True)

USUAL_ROOT = "artifacts"
SHOWN = 3  # directories with other runs
COLUMNS = ("run", "status", "epochs", "steps", "val/loss", "best", "started")


@app.callback()
def list_runs(
    context: typer.Context,
    root: Annotated[str, typer.Option(metavar="DIR", help="Directory that holds the runs.")] = USUAL_ROOT,
    tracking_uri: Annotated[
        str | None, typer.Option(metavar="URI", help="List the runs of this MLflow database instead: sqlite:///FILE.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the runs below a directory, or in an MLflow database, live ones included."""
    if context.invoked_subcommand is not None:
        return
    from xectool import engine

    result = engine.runs.list_runs(root, tracking_uri)
    rows = [
        [run.name, _status(run), run.epochs, run.steps, *_best(run), run.started[:16].replace("T", " ")]
        for run in result.runs
    ]
    drawings: list[RenderableType] = [table(f"{counted(len(rows), 'run')} in {result.root}", COLUMNS, rows)]
    drawings += [Text(_damage(run)) for run in result.runs if run.damage]
    drawings += [Text(f"runs elsewhere: xectool runs --root {in_shell(place)}") for place in result.elsewhere[:SHOWN]]
    if not (rows or result.elsewhere or tracking_uri):
        drawings.append(Text("runs elsewhere: xectool runs --root DIR   # checkpoint.save_dir of the configuration"))
    Output("runs", json).result(result, human=lambda screen: screen.print(*drawings, sep="\n"))


@app.command()
def compare(
    context: typer.Context,
    first: Annotated[str, typer.Argument(metavar="A", help="Run directory, or its name as `xectool runs` lists it.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    others: Annotated[list[str] | None, typer.Argument(metavar="C", help="Further ones.")] = None,
    tracking_uri: Annotated[
        str | None, typer.Option(metavar="URI", help="MLflow database that holds the runs that are no directories.")
    ] = None,
    root: Annotated[
        str | None, typer.Option(metavar="DIR", help="Directory that holds the runs; default: artifacts.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show which configuration keys of runs differ, and the metrics of their best epochs with errors."""
    from xectool import engine

    place = root or (context.parent.params["root"] if context.parent else USUAL_ROOT)
    result = engine.runs.compare(first, second, *(others or ()), tracking_uri=tracking_uri, root=place)
    title = "metrics of the best epoch" + (f", errors from {counted(result.events, 'event')}" if result.events else "")
    kinds = next((item for item in result.config if item.key == "kind"), None)  # they differ in it
    own = [item for item in result.config if kinds and any(item.absent)]
    keys = [[item.key, *map(_shown, item.values)] for item in result.config if item not in own]
    names = _names(result.runs)
    changes = [f"{name} minus {names[0]}" for name in names[1:]] if result.events else []
    bare = ", ".join(dict(zip(result.runs, names, strict=True))[run] for run in result.without_config)
    differing = f"no keys compared: no configuration of {bare}" if bare else counted(len(keys), "differing key")
    drawings = [
        table(differing, ["key", *names], keys),
        *_keys_of_some(own, names),
        table(title, ["metric", *names, *changes], [_metric_row(metric, len(changes)) for metric in result.metrics]),
        *map(Text, result.notes),
    ]
    Output("runs", json).result(result, human=lambda screen: screen.print(*drawings, sep="\n"))


@app.command()
def sync(
    run: Annotated[str, typer.Argument(metavar="RUN", callback=run_word, help="Run directory.")],
    tracking_uri: Annotated[
        str | None, typer.Option(metavar="URI", help="Another database; default: the one the run was tracked with.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Replay into MLflow what it misses of a run; nothing is logged twice."""
    from xectool import engine

    result = engine.runs.sync(run, tracking_uri)
    text = f"{counted(result.replayed, 'point')} replayed into {result.uri} (MLflow run {result.run_id})"
    Output("runs", json).result(result, human=lambda screen: screen.print(text, markup=False))


def _best(run: RunRow) -> tuple[object, object]:
    if run.best_epoch:
        return run.best, run.best_epoch
    return ("-", "-") if math.isnan(run.loss_at_end) else (run.loss_at_end, "at its end")


def _status(run: RunRow) -> str:
    return ", ".join(filter(None, [run.status, run.ended_by, "record damaged" if run.damage else ""]))


def _damage(run: RunRow) -> str:
    more = f" (and {counted(len(run.damage) - 1, 'further file')})" if len(run.damage) > 1 else ""
    return f"{run.name}: {run.damage[0]}{more}: xectool diagnose run {in_shell(run.path)}"


def _names(runs: Sequence[str]) -> Sequence[str]:
    """Return the names of run directories, or the paths where two have the same name."""
    names = [Path(run).name for run in runs]
    return names if len(set(names)) == len(names) else runs


def _keys_of_some(own: Sequence[RunDifference], names: Sequence[str]) -> list[Text]:
    """Return a line for the keys that runs of one kind alone have, counted by section."""
    by_owner: dict[str, Counter[str]] = {}
    for item in own:
        owner = " and ".join(name for name, absent in zip(names, item.absent, strict=True) if not absent)
        by_owner.setdefault(owner, Counter())[item.key.partition(".")[0]] += 1
    return [
        Text(f"keys of {owner} alone: {', '.join(f'{section} ({n})' for section, n in found.most_common())}")
        for owner, found in by_owner.items()
    ]


def _metric_row(metric: RunDifference, num_changes: int) -> list[object]:
    if not metric.errors:
        return [metric.title, *map(_shown, metric.values), *num_changes * [""]]
    values = [_with_error(*pair) for pair in zip(metric.values, metric.errors, strict=True)]
    changes = [_with_error(*pair) for pair in zip(metric.differences, metric.difference_errors, strict=True)]
    return [metric.title, *values, *changes]


def _with_error(value: object, error: object) -> str:
    return f"{value:.4g} ± {error:.2g}"


def _shown(value: object) -> object:
    return "-" if value is None else value
