"""``xectool explain``: what a finding code, a configuration key, a metric or a topic means; works offline."""

from __future__ import annotations

from typing import Annotated

import typer

from xectool.cli.completion import offered
from xectool.cli.options import JsonOption
from xectool.cli.render import Output


def explain(
    topic: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="Finding codes, keys, metrics or topics; without one, a list.",
            autocompletion=offered("topics"),
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Explain finding codes, configuration keys, metrics or topics."""
    from xectool import engine

    # names or words of one topic: `xectool explain oom gpu`
    result = engine.explain(" ".join(topic or []))
    lines = [result.title, "", result.text] + (["", f"see: {', '.join(result.see)}"] if topic and result.see else [])
    Output("explain", json).result(result, human=lambda screen: screen.print("\n".join(lines), markup=False))
