"""``xectool train``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import ConfigArgument, DeviceOption, JsonOption, SetOption, parse_count
from xectool.cli.progress import watcher
from xectool.cli.render import AlreadyShown, Output, table
from xectool.errors import EXIT_BAD_RESULT, EXIT_INTERRUPTED, EXIT_OK
from xectool.findings import Severity, in_lines

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.training_run.result import TrainResult

_DONE = {
    "max_steps": "stopped after the steps asked for",
    "early_stopped": "stopped early (no epoch was better for training.early_stop_patience)",
    "dry_run": "checked, nothing trained and no run begun; it would be",
}


def train(
    config: ConfigArgument,
    set_: SetOption = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="auto|PATH",
            help="Continue: auto (newest sound checkpoint), a checkpoint or a run.",
        ),
    ] = None,
    run_name: Annotated[str | None, typer.Option(help="Name of the run and of its directory.")] = None,
    device: DeviceOption = None,
    nproc: Annotated[
        int | None,
        typer.Option(metavar="N", help="Ranks on this machine, one GPU each; default: distributed.num_gpus."),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(parser=parse_count, metavar="COUNT", help="Stop after this many optimizer steps.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything, look at the first events, build the model, train nothing."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Train a model on ROOT files, with checkpoints, tracking, predictions and plots."""
    from xectool.engine.at_hand import require_resumed

    require_resumed(resume, config, set_ or (), run_name)
    from xectool import engine

    def one_rank() -> TrainResult:
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
            return replace(result, last_lines=tuple(observer.recent) if observer else ())

    if engine.is_launched():
        raise AlreadyShown(engine.run_as_rank(one_rank))
    options = {"--resume": resume, "--run-name": run_name, "--device": device, "--max-steps": max_steps}
    arguments = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    arguments += [word for setting in set_ or () for word in ("--set", setting)] + ["--dry-run"] * dry_run
    wanted = engine.ranks_wanted(config, set_ or (), nproc)
    result = engine.train_ranks(config, wanted, arguments) if wanted > 1 else one_rank()
    _show(result, engine.command_again(config, nproc, arguments, Path(result.run_dir)), json)


def _show(result: TrainResult, again: str, json: bool) -> None:
    if int(os.environ.get("RANK") or 0):  # of torchrun: the first rank speaks for all
        raise AlreadyShown(EXIT_INTERRUPTED if result.status == "interrupted" else EXIT_OK)
    output = Output("train", json)
    if result.status == "interrupted":
        output.interrupted(result.as_dict(), fix=again)
        raise AlreadyShown(EXIT_INTERRUPTED)
    ran_away = ", but diverged" if result.status == "finished" else " and diverged"
    done = _DONE.get(result.status, result.status) + (ran_away if result.diverged else "")
    best = f", best epoch {result.best_epoch} of {result.epochs}" if result.best_epoch else ""
    columns, rows = result.headlines()
    title = f"{done}: {result.run_dir}{best}"
    # what has scrolled away is told again
    told = [found for found in result.findings if in_lines(found)[0] in result.last_lines]
    pages = [path for path in result.artifacts if path.endswith(".html")]

    def human(screen: Console) -> None:
        screen.print(table(title, columns, rows)) if rows else screen.print(title, markup=False)
        if result.diverged and not any(result.diverged in found.problem for found in result.findings):
            screen.print(result.diverged, markup=False)
        for page in pages:
            screen.print(f"report: {page}", markup=False)
        if told:
            screen.print(f"told above, with what mends it: {', '.join(dict.fromkeys(found.code for found in told))}")

    # The training that a dry run is for would stop at its first batch.
    stops = result.status == "dry_run" and any(found.severity is Severity.ERROR for found in result.findings)
    left = [found for found in result.findings if json or found not in told]
    output.result(result.as_dict(), findings=left, bad=stops, human=human)
    if stops:
        raise AlreadyShown(EXIT_BAD_RESULT)
