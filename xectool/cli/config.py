"""``xectool config init|show|check|schema|diff``."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from xectool.cli.completion import offered
from xectool.cli.options import ConfigArgument, JsonOption, SetOption, config_word
from xectool.cli.render import Output, console, show_findings, table
from xectool.errors import counted
from xectool.findings import Finding

app = typer.Typer(help="Write, check and compare configurations.", no_args_is_help=True)


@app.command()
def init(
    kind: Annotated[
        str, typer.Option(help="regressor, mae or inpainter.", autocompletion=offered("kinds"))
    ] = "regressor",
    preset: Annotated[
        str | None, typer.Option(help="a100, gh200, cpu or ci.", autocompletion=offered("presets"))
    ] = None,
    set_: SetOption = None,
    list_presets: Annotated[bool, typer.Option("--list-presets", help="Name the presets and their machines.")] = False,
    json: JsonOption = False,
) -> None:
    """Print a commented configuration to start from: xectool config init > config.yaml."""
    from xectool import engine

    if list_presets:
        presets = engine.config.presets()
        _text_or_json(json, {"presets": presets}, "".join(f"{name:8} {title}\n" for name, title in presets.items()))
        return
    text = engine.config.init(kind, preset, set_ or ())
    _text_or_json(json, {"yaml": text}, text)


@app.command()
def show(config: ConfigArgument, set_: SetOption = None, json: JsonOption = False) -> None:
    """Print the resolved configuration, every default filled in."""
    from xectool import engine

    result = engine.config.show(config, set_ or ())
    _text_or_json(json, result.config, result.yaml, result.findings)


@app.command()
def check(
    config: ConfigArgument,
    set_: SetOption = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also look at its data files and their units, and try its training dry.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check a configuration and report every error and warning."""
    from xectool import engine

    result = engine.config.check(config, set_ or (), deep=deep)
    remarks = counted(len(result.findings), "remark")
    said = f"{config}: sound, {remarks}" + ("" if deep else "; --deep looks for its data files too")
    Output("config", json).result(
        result.config,
        findings=tuple(result.findings),
        human=lambda screen: screen.print(said, markup=False),
    )


@app.command()
def schema(json: JsonOption = False) -> None:
    """Print the JSON Schema of the configuration, for editors."""
    from xectool import engine

    result = engine.config.schema()
    _text_or_json(json, result, json_module.dumps(result, indent=2) + "\n")


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="A", callback=config_word, help="YAML configuration.")],
    second: Annotated[str, typer.Argument(metavar="B", callback=config_word, help="YAML configuration.")],
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Show which keys of two configurations differ once defaults are filled in."""
    from xectool import engine

    found = engine.config.diff(first, second, set_ or ())
    rows = [(item.key, item.first, item.second) for item in found]
    Output("config", json).result(
        {"differences": found},
        human=lambda screen: screen.print(table(counted(len(rows), "differing key"), ["key", first, second], rows)),
    )


def _text_or_json(json: bool, result: object, text: str, findings: Iterable[Finding] = ()) -> None:
    """Print what can be piped into a file on stdout, and remarks on stderr."""
    if json:
        Output("config", True).result(result, findings=tuple(findings))
        return
    sys.stdout.write(text)
    show_findings(console(), findings)
