"""``xectool train``."""

from __future__ import annotations

from typing import Annotated

import typer

from xectool.cli.options import DeviceOption, JsonOption, SetOption, parse_count
from xectool.cli.progress import watcher
from xectool.cli.render import AlreadyShown, Output, table
from xectool.errors import EXIT_INTERRUPTED


def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="YAML configuration; see: xectool config init")],
    set_: SetOption = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="auto|PATH", help="Continue: auto (newest sound checkpoint), a checkpoint or a run."),
    ] = None,
    run_name: Annotated[str | None, typer.Option(help="Name of the run and of its directory.")] = None,
    device: DeviceOption = None,
    max_steps: Annotated[
        int | None, typer.Option(parser=parse_count, metavar="COUNT", help="Stop after this many optimizer steps.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, build the model, train nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Train a model on ROOT files, with checkpoints, tracking, predictions and plots."""
    from xectool import engine

    with watcher(quiet=json) as observer:
        result = engine.train(
            config,
            overrides=set_ or (),
            resume=resume,
            run_name=run_name,
            device=device,
            max_steps=max_steps,
            dry_run=dry_run,
            observer=observer,
        )
    output = Output("train", json)
    if result.status == "interrupted":
        output.interrupted(result.as_dict(), fix=f"go on with: xectool train {config} --resume {result.run_dir}")
        raise AlreadyShown(EXIT_INTERRUPTED)
    best = f", best epoch {result.best_epoch} of {result.epochs}" if result.best_epoch else ""
    output.result(
        result.as_dict(),
        findings=result.findings,
        human=lambda screen: screen.print(
            table(
                f"{result.status}: {result.run_dir}{best}",
                ["metric", "network", "conventional"],
                result.headline_rows(),
            )
        ),
    )
