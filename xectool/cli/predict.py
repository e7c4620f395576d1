"""``xectool predict``."""

from __future__ import annotations

from typing import Annotated

import typer

from xectool.cli.options import DeviceOption, JsonOption, MaxEventsOption
from xectool.cli.progress import watcher
from xectool.cli.render import Output, table


def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint of ours or of the older system.")],
    data: Annotated[list[str], typer.Argument(metavar="DATA…", help="ROOT files, globs, directories, @lists or urls.")],
    output: Annotated[str, typer.Option("--output", "-o", help="ROOT file to write.")] = "predictions.root",
    report: Annotated[str | None, typer.Option(metavar="DIR", help="Also write resolution plots here.")] = None,
    weights: Annotated[str, typer.Option(help="auto (EMA where present), ema, model or best.")] = "auto",
    batch_size: Annotated[int, typer.Option(help="Events in one forward pass.", min=1)] = 256,
    device: DeviceOption = None,
    max_events: MaxEventsOption = None,
    json: JsonOption = False,
) -> None:
    """Predict events of ROOT files in physical units, with metrics where the files hold the truth."""
    from xectool import engine

    with watcher(quiet=json) as observer:
        result = engine.predict(
            model,
            data,
            output=output,
            report=report,
            weights=weights,
            batch_size=batch_size,
            device=device,
            max_events=max_events,
            observer=observer,
        )
    Output("predict", json).result(
        result.as_dict(),
        findings=result.findings,
        human=lambda screen: screen.print(
            table(
                f"{result.events} events, {result.events_per_s:.0f} events/s: {result.output}",
                ["metric", "value"],
                [[name, value] for name, value in sorted(result.metrics.items())],
            )
        ),
    )
