"""``xectool diagnose nan-batch``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import DeviceOption, JsonOption, MaxEventsOption, SetOption, config_word, run_word
from xectool.cli.render import AlreadyShown, Output, verdict_box
from xectool.errors import EXIT_BAD_RESULT
from xectool.findings import few

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.diagnose.nonfinite import NanBatchResult

MOST_WHY = 12  # with what was read instead of what was given, which comes first, and the facts of a culprit


def nan_batch(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG", callback=config_word, help="YAML configuration; not needed with --run or --batch."
        ),
    ] = None,
    set_: SetOption = None,
    ckpt: Annotated[
        str | None, typer.Option(metavar="PATH", help="Weights to search with; without, those of the seed.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="RUN", callback=run_word, help="Run: its incident or first bad step.")
    ] = None,
    incident: Annotated[
        int | None, typer.Option(metavar="N", help="Number of the incident; default: the first.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(metavar="FILE.npz", help="Saved batch of an earlier search; needs no data files.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="train|val", help="Which events are searched; default: train, then val.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Try every batch on the network; slow.")] = False,
    max_events: MaxEventsOption = None,
    device: DeviceOption = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.npz",
            help="Where the failing events go; default: a new nan_batch.npz.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find the event, sensor and module that first go non-finite: in input, weights, or where they meet."""
    from xectool import engine

    result = engine.diagnose.nan_batch(
        config,
        overrides=set_ or (),
        ckpt=ckpt,
        run=run,
        incident=incident,
        batch=batch,
        data=data,
        full=full,
        max_events=max_events,
        device=device,
        output=output,
    )
    Output("diagnose nan-batch", json).result(
        result.as_dict(), findings=result.findings if json else (), bad=result.found, human=lambda s: _show(s, result)
    )
    if result.found:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _show(screen: Console, result: NanBatchResult) -> None:
    shown = [f"{result.minimal} holds the fewest events that show it: {result.reproduce}"] if result.reproduce else []
    shown += [f"written: {' and '.join(result.written)}"] if result.written else []
    next_line = result.next or result.reproduce
    screen.print(verdict_box(result.verdict, (*few(result.why, MOST_WHY), *shown), next_line, good=not result.found))
