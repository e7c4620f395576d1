"""``xectool diagnose mlflow``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import JsonOption
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.errors import EXIT_BAD_RESULT

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.diagnose.tracking_database import TrackingHealth


def mlflow(
    uri: Annotated[
        str | None,
        typer.Argument(
            metavar="URI",
            help="Tracking URI, sqlite file, or directory of runs; default: MLFLOW_TRACKING_URI, else that of --root.",
        ),
    ] = None,
    root: Annotated[str, typer.Option(metavar="DIR", help="Directory that holds the runs.")] = "artifacts",
    json: JsonOption = False,
) -> None:
    """Show who holds the tracking database, whether it is sound, and how to replay what is missing."""
    from xectool import engine

    result = engine.diagnose.mlflow(uri, root=root)
    Output("diagnose mlflow", json).result(result, bad=not result.ok, human=lambda s: _show(s, result))
    if not result.ok:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _show(screen: Console, result: TrackingHealth) -> None:
    if result.users:
        rows = [[user.pid, user.lock or "-", user.cmdline] for user in result.users]
        screen.print(table("processes that have it open", ["pid", "lock", "command"], rows))
    for command in result.replay:
        screen.print(f"replay: {command}", markup=False)
    screen.print(verdict_box(result.verdict, [result.uri, *result.why], result.next, good=result.ok))
