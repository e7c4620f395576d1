"""``xectool predict``: predictions, repaired files, and the comparison of ways to fill dead sensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from xectool.cli.options import DeviceOption, JsonOption, MaxEventsOption
from xectool.cli.progress import watcher
from xectool.cli.render import Output, table
from xectool.errors import UsageError, counted

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_OUTPUT = "predictions.root"
DEAD_HELP = (
    "Dead channels: a text file, branch:NAME, data, or a sqlite:/mysql: url. Default: with --repair and --compare the "
    "sensors without a reading, event by event; else sensors are hidden as in training."
)
BATCH_HELP = "Events in one forward pass; default: 256, on a CPU 16 to 64 by the width of the encoder."
HOPS_HELP = (
    "Neighbours within K hops, 1 to 4, for the conventional estimates; default: training.baseline_hops, --compare 1."
)
ENGINE_HELP = (
    "What computes a checkpoint: eager, compiled, onnx, or auto (default: eager; on a GPU compiled where it pays)."
)
NAMES_HELP = (
    "A name in DATA that is not the training's: data.npho_branch, data.tree_name and the like; or what a checkpoint "
    "of the older system does not tell: tasks.energy.log_transform=true; repeatable."
)


def predict(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Checkpoint of ours or of the older system, or an export but for .pt2."),
    ],
    data: Annotated[
        list[str], typer.Argument(metavar="DATA", help="ROOT files: paths, globs, directories, @lists, urls.")
    ],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help=f"ROOT file to write; default: {DEFAULT_OUTPUT}.")
    ] = None,
    report: Annotated[str | None, typer.Option(metavar="DIR", help="Also write resolution plots here.")] = None,
    repair: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write DATA with dead sensors filled by the inpainter MODEL, all branches carried."
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="VARIANTS", help="Run the regressor MODEL on each of raw,neighbour,inpainted and print the table."
        ),
    ] = None,
    inpainter: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Inpainter for the variant inpainted of --compare.")
    ] = None,
    dead: Annotated[str | None, typer.Option(metavar="ORIGIN", help=DEAD_HELP)] = None,
    run: Annotated[
        int | None, typer.Option(metavar="N", help="Number of the run that a database of --dead is asked about.")
    ] = None,
    hops: Annotated[int | None, typer.Option(metavar="K", help=HOPS_HELP)] = None,
    weights: Annotated[str, typer.Option(help="auto (EMA where present), ema, model or best.")] = "auto",
    batch_size: Annotated[int | None, typer.Option(min=1, help=BATCH_HELP)] = None,
    engine: Annotated[str | None, typer.Option(metavar="NAME", help=ENGINE_HELP)] = None,
    device: DeviceOption = None,
    max_events: MaxEventsOption = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=NAMES_HELP)] = None,
    json: JsonOption = False,
) -> None:
    """Predict events of ROOT files in physical units, with metrics where the files hold the truth.

    With --repair: copy the files with dead sensors filled. With --compare: what filling is worth to a regressor.
    """
    from xectool.engine.at_hand import present_checkpoint

    present_checkpoint(model, "inpainter" if repair is not None else "")
    _refuse_idle({"--output": output, "--report": report, "--engine": engine}, repair, compare, inpainter)
    if hops is not None and repair is not None:
        raise UsageError("--hops has no effect with --repair", where="--hops", fix="leave out --hops")
    common: dict[str, Any] = {
        "dead": dead,
        "run_number": run,
        "weights": weights,
        "batch_size": batch_size,
        "device": device,
        "max_events": max_events,
        "names": set_ or (),
    }
    if repair is not None:
        _repair(model, data, repair, common, json)
    elif compare is not None:
        _compare(model, data, {"variants": _names(compare), "inpainter": inpainter, "hops": hops, **common}, json)
    else:
        written = {"output": output or DEFAULT_OUTPUT, "report": report}
        _predict(model, data, {**written, "engine": engine or "auto", "hops": hops, **common}, json)


def _refuse_idle(
    options: dict[str, str | None], repair: str | None, compare: str | None, inpainter: str | None
) -> None:
    """Refuse options that the chosen work does nothing with."""
    if repair is not None and compare is not None:
        raise UsageError(
            "--repair and --compare are two different commands",
            where="command line",
            fix=f"xectool predict INPAINTER DATA --repair {repair}, then xectool predict REGRESSOR DATA "
            f"--compare {compare}",
        )
    chosen = "--repair" if repair is not None else "--compare"
    if repair is not None or compare is not None:
        for option, value in options.items():
            if value is not None:
                raise UsageError(f"{option} has no effect with {chosen}", where=option, fix=f"leave out {option}")
    if inpainter is not None and compare is None:
        raise UsageError(
            "--inpainter has no effect without --compare",
            where="--inpainter",
            fix="xectool predict REGRESSOR DATA --compare raw,neighbour,inpainted --inpainter INPAINTER, or "
            "xectool predict INPAINTER DATA --repair repaired.root",
        )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _predict(model: str, data: list[str], options: dict[str, Any], json: bool) -> None:
    from xectool import engine

    with watcher(quiet=json) as observer:
        result = engine.predict(model, data, **options, observer=observer)
    Output("predict", json).result(
        result.as_dict(),
        findings=result.findings,
        human=lambda screen: screen.print(result.title(), *(table(*own) for own in result.tables())),
    )


def _repair(model: str, data: list[str], output: str, options: dict[str, Any], json: bool) -> None:
    from xectool import engine

    with watcher(quiet=json) as observer:
        result = engine.repair(model, data, output=output, **options, observer=observer)
    text = (
        f"{counted(result.events, 'event')}, {result.events_per_s:.0f} events/s: {result.output}; "
        f"{result.filled_per_event:.1f} of {result.dead_per_event:.1f} dead sensors an event filled ({result.dead})"
    )
    Output("predict", json).result(
        result.as_dict(), findings=result.findings, human=lambda screen: screen.print(text, markup=False)
    )


def _compare(model: str, data: list[str], options: dict[str, Any], json: bool) -> None:
    from xectool import engine

    with watcher(quiet=json) as observer:
        result = engine.compare(model, data, **options, observer=observer)
    shown = table(result.title(), *result.table())
    told = "\n".join(result.verdict())

    def human(screen: Console) -> None:
        screen.print(shown)
        screen.print(told, markup=False)

    Output("predict", json).result(result.as_dict(), findings=result.findings, human=human)
