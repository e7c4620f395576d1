"""``xectool export``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.completion import offered
from xectool.cli.options import JsonOption, MaxEventsOption, checkpoint_word
from xectool.cli.progress import watcher
from xectool.cli.render import Output, table
from xectool.errors import counted

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.exporting import ExportResult

MEBI = 1024.0**2
TOLD_HELP = (
    "What a checkpoint of the older system does not tell: tasks.energy.log_transform=true; or a name in --verify-on "
    "that is not the training's: data.npho_branch and the like; repeatable."
)


def export(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CKPT", callback=checkpoint_word, help="Checkpoint of ours or of the older system.")
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="onnx, torchscript, pt2 or safetensors; default: by --output, else onnx.",
            autocompletion=offered("formats"),
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="File to write; default: CKPT's name here.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="A,B", help="Tasks of a regressor, in the order of the outputs; default: all.")
    ] = None,
    inputs: Annotated[
        str, typer.Option(help="raw: readings in, physical units out. normalized: network units in and out.")
    ] = "raw",
    weights: Annotated[str, typer.Option(help="auto (EMA where present), ema, model or best.")] = "auto",
    verify_on: Annotated[
        list[str] | None,
        typer.Option("--verify-on", metavar="DATA", help="ROOT files to compare on too; repeatable."),
    ] = None,
    max_events: MaxEventsOption = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=TOLD_HELP)] = None,
    json: JsonOption = False,
) -> None:
    """Export a network; the file is kept only if it gives the same numbers as the original."""
    from xectool import engine

    with watcher(quiet=json) as observer:
        result = engine.export(
            checkpoint,
            to=to,
            output=output,
            tasks=[name.strip() for name in (tasks or "").split(",") if name.strip()],
            inputs=inputs,
            weights=weights,
            verify_on=verify_on or (),
            max_events=max_events,
            names=set_ or (),
            observer=observer,
        )
    Output("export", json).result(
        result.as_dict(), findings=result.findings, human=lambda screen: _show(screen, result)
    )


def _show(screen: Console, result: ExportResult) -> None:
    opset = f", opset {result.opset}" if result.opset else ""
    title = f"{result.path}: {result.format}{opset}, {result.size_bytes / MEBI:.1f} MiB, weights: {result.weights}"
    rows = [["input", port.name, port.axes, port.unit, port.meaning] for port in result.inputs]
    rows += [["output", port.name, port.axes, port.unit, port.meaning] for port in result.outputs]
    screen.print(table(title, ["", "name", "type", "unit", "meaning"], rows))
    agreement = [
        [item.output, item.max_abs, item.max_rel, item.in_resolution, item.limit, item.yardstick]
        for item in result.agreement
    ]
    batches = ", ".join(map(str, result.batch_sizes))
    what = (
        f"agrees with the network on {counted(result.verified_events, 'event')} ({result.verified_on}) and "
        f"{result.edge_cases} edge cases, batches of {batches}, run by {', '.join(result.providers)}"
    )
    columns = ["output", "max abs", "max rel", "in resolutions", "limit", "one resolution"]
    screen.print(table(what, columns, agreement))
