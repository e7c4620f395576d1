"""``xectool diagnose loader``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import DeviceOption, JsonOption, SetOption, config_or_run_word, parse_count
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.cli.train_line import train_line
from xectool.errors import EXIT_BAD_RESULT, duration

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.diagnose.loading_speed import LoaderResult


def loader(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG|RUN", callback=config_or_run_word, help="YAML configuration or run directory."),
    ],
    set_: SetOption = None,
    max_events: Annotated[
        int, typer.Option("--max-events", parser=parse_count, metavar="COUNT", help="Events of one measurement.")
    ] = 4096,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", help="Time for all measurements.")] = 60.0,
    step_ms: Annotated[
        float | None, typer.Option("--step-ms", metavar="MS", help="Time of a step; default: real steps are measured.")
    ] = None,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Show where loading time goes, the limit of this machine, and which settings are worth a change."""
    from xectool import engine

    result = engine.diagnose.loader(
        config, overrides=set_ or (), max_events=max_events, seconds=seconds, step_ms=step_ms, device=device
    )
    Output("diagnose loader", json).result(
        result.as_dict(),
        findings=result.findings,
        bad=not result.healthy,
        human=lambda screen: _show(screen, result, train_line(config, set_ or (), result.config_lines)),
    )
    if not result.healthy:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _show(screen: Console, result: LoaderResult, train: str) -> None:
    rows: list[list[object]] = [
        [name, stage.us_per_event, 100 * stage.share, 100 * stage.spread] for name, stage in result.stages.items()
    ]
    screen.print(table("one thread", ("stage", "us an event", "share %", "spread %"), rows))
    raced: list[list[object]] = [
        [
            timing.setting.chunksize,
            timing.setting.num_workers,
            timing.setting.num_threads,
            timing.memory_bytes / 1e9,
            timing.skipped or f"{timing.events_per_s:.5g}",
            "" if timing.skipped else 100 * timing.spread,
            len(timing.rates),
        ]
        for timing in result.grid
    ]
    columns = ("chunksize", "workers", "threads", "GB", "events/s", "spread %", "rounds")
    screen.print(table("reading", columns, raced))
    screen.print(verdict_box(_verdict(result), _why(result), _next(result, train), result.healthy))


def _verdict(result: LoaderResult) -> str:
    if not result.healthy:
        return result.findings[0].problem
    return f"data keep up: {100 * result.data_wait_share:.1f} % of an epoch will be spent waiting"


def _why(result: LoaderResult) -> list[str]:
    low, high = map(duration, result.epoch_range_s)
    validation = "" if result.validation_s is None else f", and {duration(result.validation_s)} of validation beside"
    share = 100 * result.events_per_s / result.limit_events_per_s
    return [
        f"{result.events_per_s:.5g} events/s as configured ({100 * result.spread:.0f} % spread); decompression and one "
        f"copy alone allow {result.limit_events_per_s:.5g} at most, on all cores: {share:.0f} % of it",
        f"{result.dominant} takes longest; a batch of the network takes {duration(result.step_s)}",
        f"an epoch will take {duration(result.epoch_s)} ({low} to {high} while others take no more of the cores)"
        f"{validation}",
        *([f"with the settings below {duration(result.recommended_epoch_s)}"] if result.config_lines else []),
        result.reason,
        *result.notes,
    ]


def _next(result: LoaderResult, train: str) -> str:
    if result.config_lines:
        return train
    return "" if result.healthy else result.findings[0].fix
