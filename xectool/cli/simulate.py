"""``xectool simulate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import EventsOption, JsonOption
from xectool.cli.render import Output, table
from xectool.errors import counted

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.simulation import SimulateResult


def simulate(
    output: Annotated[
        str, typer.Argument(metavar="OUT.root", help="File to write; with --files N, OUT_000.root and on.")
    ],
    events: EventsOption = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the events.")] = 1,
    files: Annotated[int, typer.Option(help="Number of files the events are spread over.")] = 1,
    energy: Annotated[
        float | None, typer.Option(help="Photon energy in GeV; default: flat between 0.015 and 0.060.")
    ] = None,
    dead: Annotated[float, typer.Option(help="Share of sensors that are dead.")] = 0.01,
    pileup: Annotated[float, typer.Option(help="Probability of a second photon in an event.")] = 0.0,
    detector_seed: Annotated[int, typer.Option(help="Seed of dead channels and gains.")] = 1,
    file_format: Annotated[str, typer.Option("--format", help="ttree or rntuple.")] = "ttree",
    compression: Annotated[str, typer.Option(help="zlib:1, lz4:4, zstd:5, lzma:7 or none.")] = "zlib:1",
    json: JsonOption = False,
) -> None:
    """Write simulated events with truth to ROOT files."""
    from xectool import engine

    result = engine.simulate(
        output,
        events=events,
        seed=seed,
        files=files,
        energy_gev=energy,
        dead_fraction=dead,
        pileup=pileup,
        detector_seed=detector_seed,
        format=file_format,
        compression=compression,
    )
    Output("simulate", json).result(result, human=lambda screen: _show(screen, result))


def _show(screen: Console, result: SimulateResult) -> None:
    title = (
        f"{counted(result.events, 'event')} in {result.seconds:.1f} s ({result.events / result.seconds:.0f} events/s)"
    )
    screen.print(table(title, ["file"], [[path] for path in result.files]))
    if result.replaced:
        first, *others = result.replaced
        more = f" and {counted(len(others), 'other file')}" if others else ""
        screen.print(f"in place of an earlier simulation: {first}{more}", markup=False, soft_wrap=True)
    if result.removed:
        first, *others = result.removed
        more = f" and {counted(len(others), 'other file')}" if others else ""
        screen.print(f"removed, recorded hashes of what lay there before: {first}{more}", markup=False, soft_wrap=True)
