"""``xectool diagnose compile``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import DeviceOption, JsonOption, SetOption, config_or_run_word
from xectool.cli.progress import watcher
from xectool.cli.render import AlreadyShown, Output, console, table, verdict_box
from xectool.cli.train_line import train_line
from xectool.errors import EXIT_BAD_RESULT, EXIT_INTERRUPTED, counted, duration

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.diagnose.compiling import CompileResult


def compile(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG|RUN", callback=config_or_run_word, help="YAML configuration or run directory."),
    ],
    set_: SetOption = None,
    modes: Annotated[
        str, typer.Option(metavar="A,B", help="Modes to measure; default: those that differ on the device.")
    ] = "",
    steps: Annotated[int, typer.Option(min=1, help="Measured steps of each mode.")] = 5,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Longest time of all modes together.")] = 600.0,
    fail_on_break: Annotated[bool, typer.Option("--fail-on-break", help="Exit with 1 if the graph breaks.")] = False,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Show graph breaks, recompilations, and time and memory of each mode of torch.compile here."""
    from xectool import engine

    with watcher(quiet=json) as observer:
        result = engine.diagnose.compile(
            config,
            overrides=set_ or (),
            modes=[mode.strip() for mode in modes.split(",") if mode.strip()],
            steps=steps,
            timeout_s=timeout,
            device=device,
            observer=observer,
        )
    output, line = Output("diagnose compile", json), train_line(config, set_ or (), result.config_lines[:1])
    if result.interrupted:
        if not json:
            _show(console(), result, line)
        output.interrupted(result.as_dict(), fix=result.again)
        raise AlreadyShown(EXIT_INTERRUPTED)
    bad = not result.healthy or (fail_on_break and bool(result.graph_breaks))
    output.result(
        result.as_dict(),
        findings=result.findings,
        bad=bad,
        human=lambda screen: _show(screen, result, line),
    )
    if bad:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _show(screen: Console, result: CompileResult, train: str) -> None:
    even = result.recommendation.break_even if result.recommendation else {}
    rows: list[list[object]] = [
        [
            time.mode,
            "none" if time.error else f"{time.compile_s:.4g}",
            time.step_ms if time.steps else "",
            100 * time.spread if time.steps else "",
            "" if time.error else time.peak_bytes / 1e9,
            time.host_peak_bytes / 1e9,
            "" if time.error else f"{time.max_rel_diff:.1e}",
            f"{time.cache_hits}/{time.cache_misses}",
            even.get(time.mode) or ("never" if time.mode in even else ""),
        ]
        for time in result.modes
    ]
    columns = ("mode", "compile s", "step ms", "spread %", "GB", "host GB", "differs", "cache hit/miss", "pays after")
    screen.print(table(f"forward and backward on {result.device}", columns, rows))
    screen.print(verdict_box(_verdict(result), _why(result), _next(result, train), result.healthy))


def _next(result: CompileResult, train: str) -> str:
    if result.config_lines:
        return train
    return next((found.fix for found in result.findings if found.severity.value != "info"), "")


def _verdict(result: CompileResult) -> str:
    if not result.healthy:
        return result.findings[0].problem
    best = "best so far" if result.interrupted else "best for the planned run"
    return f"{best}: training.compile: {result.recommended}"


def _why(result: CompileResult) -> list[str]:
    graphs, threads, again = result.graphs, result.threads, counted(len(result.graphs.recompiles), "recompilation")
    shape = "one graph" if result.fullgraph else f"{graphs.graphs} graphs, {len(graphs.breaks)} breaks"
    return [
        *([result.recommendation.reason] if result.recommendation else []),
        *(f"{time.mode}: {time.error}" for time in result.modes if time.error),
        f"{shape} of {graphs.ops} operations ({graphs.unique_ops} different), traced in {duration(graphs.trace_s)}; "
        f"{again} for batches of {', '.join(map(str, graphs.batch_sizes))} events",
        f"C++ compiler: {result.toolchain.cxx or 'none'}; triton: {result.toolchain.triton or 'none'}",
        f"{threads['training']} compile processes (PyTorch alone would start {threads['pytorch']}), "
        f"{threads['memory_bytes'] / 1e9:.3g} GB free",
        *result.notes,
    ]
