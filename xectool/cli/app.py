"""The application: its commands and the entry point of the process."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from xectool import __version__
from xectool.cli import (
    boundary,
    check_data,
    config,
    ctl,
    diagnose,
    estimate_memory,
    explain,
    export,
    inspect_ckpt,
    lr_sweep,
    predict,
    prepare,
    report,
    runs,
    signals,
    simulate,
    submit,
    train,
    watch,
)

app = typer.Typer(
    name="xectool",
    help="Train neural networks on MEG II liquid-xenon calorimeter data, and find out what went wrong when it does.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("simulate")(simulate.simulate)
app.command("prepare")(prepare.prepare)
app.command("train")(train.train)
app.command("submit")(submit.submit)
app.command("predict")(predict.predict)
app.command("check-data")(check_data.check_data)
app.command("inspect-ckpt")(inspect_ckpt.inspect_ckpt)
app.command("lr-sweep")(lr_sweep.lr_sweep)
app.command("estimate-memory")(estimate_memory.estimate_memory)
app.command("watch")(watch.watch)
app.command("ctl")(ctl.ctl)
app.command("report")(report.report)
app.command("explain")(explain.explain)
app.command("export")(export.export)
app.add_typer(config.app, name="config")
app.add_typer(diagnose.app, name="diagnose")
app.add_typer(runs.app, name="runs")


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"xectool {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show results and problems only; anywhere here.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show log lines too, and what an error came from; anywhere here.")
    ] = False,
) -> None:
    """Train neural networks on MEG II liquid-xenon calorimeter data, and find out what went wrong when it does."""


def main() -> None:
    """Run the command line; the exit code follows the documented table."""
    # OpenMP reads this when torch loads. Threads that spin while they wait made a step nine times slower on two shared
    # cores (docs/experiments.md); a user's own setting is kept.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(boundary.run(app, sys.argv[1:], signals.hear))
