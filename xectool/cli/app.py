"""The application: its commands and the entry point of the process."""

from __future__ import annotations

import copy
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

import typer
from typer.main import get_command_name

from xectool import __version__
from xectool.cli import (
    boundary,
    check_data,
    config,
    convert,
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
app.command("convert")(convert.convert)
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


def with_named_commands(whole: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """Return the application with the parameters of those commands alone that ``words`` name, and the help of all.

    Typer makes the parameters of every command before it looks at the words: a sixth of the CPU of a start.
    """
    part = copy.copy(whole)
    part.registered_commands, part.registered_groups = [], []
    for command in map(copy.copy, whole.registered_commands):
        function = cast(Callable[..., Any], command.callback)
        command.name = command.name or get_command_name(function.__name__)
        if command.name not in words:
            command.help, command.callback = command.help or inspect.getdoc(function), _unnamed
        part.registered_commands.append(command)
    for group in map(copy.copy, whole.registered_groups):
        group.typer_instance = with_named_commands(cast(typer.Typer, group.typer_instance), words)
        part.registered_groups.append(group)
    return part


def _unnamed() -> None:
    """Stand for a command whose name is not among the words, so that it is never called."""
    raise AssertionError("a command was called whose name is not among the words")


def main() -> None:
    """Run the command line; the exit code follows the documented table."""
    # OpenMP reads this when torch loads. Threads that spin while they wait made a step nine times slower on two shared
    # cores (docs/experiments.md); a user's own setting is kept.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    completes = "_XECTOOL_COMPLETE" in os.environ  # a shell asks, with the words in its environment
    sys.exit(boundary.run(app if completes else with_named_commands(app, sys.argv[1:]), sys.argv[1:], signals.hear))
