"""``xectool config init|show|check|schema|diff``."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated

import typer

from xectool.cli.options import JsonOption, SetOption
from xectool.cli.render import Output, plain, table
from xectool.errors import EXIT_USER

app = typer.Typer(help="Write, check and compare configurations.", no_args_is_help=True)

ConfigArgument = Annotated[str, typer.Argument(metavar="CONFIG", help="YAML configuration.")]


@app.command()
def init(
    kind: Annotated[str, typer.Option(help="regressor, mae or inpainter.")] = "regressor",
    json: JsonOption = False,
) -> None:
    """Print a commented configuration to start from: xectool config init > config.yaml."""
    from xectool import engine

    result = engine.config.init(kind)
    _print_text(json, result, result.text)


@app.command()
def show(config: ConfigArgument, set_: SetOption = None, json: JsonOption = False) -> None:
    """Print the resolved configuration, every default filled in."""
    from xectool import engine

    result = engine.config.show(config, set_ or ())
    _print_text(json, result, result.text)


@app.command()
def check(
    config: ConfigArgument,
    set_: SetOption = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also check that the named files exist.")] = False,
    json: JsonOption = False,
) -> None:
    """Check a configuration and report every error and warning."""
    from xectool import engine

    result = engine.config.check(config, set_ or (), deep=deep)
    Output("config", json).result(
        result.config,
        findings=result.findings,
        bad=not result.ok,
        human=lambda screen: screen.print(f"{config}: {'sound' if result.ok else 'refused'}", markup=False),
    )
    if not result.ok:
        raise typer.Exit(EXIT_USER)


@app.command()
def schema(json: JsonOption = False) -> None:
    """Print the JSON Schema of the configuration, for editors."""
    from xectool import engine

    result = engine.config.schema()
    _print_text(json, result.schema, json_module.dumps(result.schema, indent=2) + "\n")


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="YAML configuration.")],
    second: Annotated[str, typer.Argument(metavar="B", help="YAML configuration.")],
    json: JsonOption = False,
) -> None:
    """Show which keys of two configurations differ once defaults are filled in."""
    from xectool import engine

    result = engine.config.diff(first, second)
    Output("config", json).result(
        result,
        human=lambda screen: screen.print(
            table(f"{len(result.differences)} keys differ", ["key", first, second], map(_row, result.differences))
        ),
    )


def _row(difference: object) -> list[object]:
    value = plain(difference)
    return list(value.values()) if isinstance(value, dict) else list(value)


def _print_text(json: bool, result: object, text: str) -> None:
    if json:
        Output("config", True).result(result)
    else:
        sys.stdout.write(text)
