"""``xectool convert``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import JsonOption
from xectool.cli.progress import watcher
from xectool.cli.render import Output
from xectool.errors import counted

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.converting import Converted


def convert(
    data: Annotated[list[str], typer.Argument(metavar="DATA", help="ROOT files to read, each as file.root:tree.")],
    into: Annotated[
        list[str], typer.Option(metavar="OUT.root", help="File to write, one for each that is read, in their order.")
    ],
    scale: Annotated[
        list[str] | None,
        typer.Option(metavar="BRANCH=FACTOR", help="Multiply what is known, e.g. energyTruth=1e-3; repeatable."),
    ] = None,
    marker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BRANCH=NUMBER",
            help="This number, as it is stored, becomes 1e10; of one component: number in square brackets.",
        ),
    ] = None,
    within: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BRANCH=LOW:HIGH",
            help="What lies beyond, after --scale, becomes 1e10; a range a component with commas between; repeatable.",
        ),
    ] = None,
    finite: Annotated[
        list[str] | None,
        typer.Option(metavar="BRANCH", help="NaN, infinity and what is beyond 1e10 becomes 1e10; repeatable."),
    ] = None,
    tree: Annotated[str, typer.Option(metavar="NAME", help="Tree of files that are named without one.")] = "tree",
    json: JsonOption = False,
) -> None:
    """Write ROOT files again with branches in another unit, and numbers that are no values as 1e10."""
    from xectool import engine

    with watcher(quiet=json) as shown:
        done = dict[str, int]()

        def advanced(path: str, written: int, total: int) -> None:
            if shown is not None and path not in done:
                shown.phase(f"write {path} again", total)
            if shown is not None:
                shown.advanced(written - done.get(path, 0), {})
            done[path] = written

        result = engine.convert(
            data,
            into,
            scale=scale or (),
            marker=marker or (),
            within=within or (),
            finite=finite or (),
            tree=tree,
            advanced=advanced,
        )
    Output("convert", json).result(
        result.as_dict(), findings=result.findings, human=lambda screen: _show(screen, result), next_line=result.next
    )


def _show(screen: Console, result: Converted) -> None:
    for file in result.files:
        changes = [f"{name} {result.changes[name]} ({count} changed)" for name, count in file.changed.items()]
        said = "; ".join(changes) or "as they are"
        screen.print(f"wrote {file.output}: {counted(file.events, 'event')} of {file.path}, {said}", markup=False)
    screen.print(f"Next: {result.next}", markup=False)
