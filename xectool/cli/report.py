"""``xectool report``: one HTML file that holds all of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from xectool.cli.options import JsonOption, recorded_run_word
from xectool.cli.progress import watcher
from xectool.cli.render import Output


def report(
    run: Annotated[
        str, typer.Argument(metavar="RUN", callback=recorded_run_word, help="Run directory; live or finished.")
    ],
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="The page; default RUN/report.html.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write verdict, curves, plots, events, configuration and environment of a run into one page.

    `xectool runs compare` sets several runs side by side.
    """
    from xectool import engine

    with watcher(quiet=json) as observer:
        found = engine.report(run, output, observer=observer)
    text = f"{found.path} ({found.size_bytes / 1e6:.1f} MB): {found.verdict}"
    Output("report", json).result(found, human=lambda screen: screen.print(text, markup=False))
