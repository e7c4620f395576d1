"""``xectool watch``: a run as it goes on."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli import signals
from xectool.cli.options import JsonOption, run_word
from xectool.cli.render import AlreadyShown, Output, console, table
from xectool.cli.streams import steady
from xectool.errors import EXIT_INTERRUPTED, duration

if TYPE_CHECKING:
    from rich.console import Group

    from xectool.engine.live import LiveView

BARS = " ▁▂▃▄▅▆▇█"
COLUMNS = 60


def watch(
    run: Annotated[str, typer.Argument(metavar="RUN", callback=run_word, help="Run directory; live or finished.")],
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.2, help="Time between two looks.")] = 2.0,
    json: JsonOption = False,
) -> None:
    """Show loss, rate, data wait, memory and what happened, live, until the run or Ctrl-C ends it."""
    from xectool import engine

    if once or json:
        view = engine.watch(run)
        Output("watch", json).result(view, human=lambda screen: screen.print(_frame(run, view)))
        return
    try:
        _follow(run, every)
    except KeyboardInterrupt:  # the way to end it: no failure to tell of
        signals.ignore()
        raise AlreadyShown(EXIT_INTERRUPTED) from None


def _follow(run: str, every: float) -> None:
    """Show a run again and again until it is over."""
    from rich.live import Live

    from xectool.engine.live import Watch

    watching = Watch(run)
    view = watching.look()
    screen = steady(sys.stderr)
    with Live(_frame(run, view), console=console(), auto_refresh=False) as live:
        while not view.is_over and not screen.gone:
            time.sleep(every)
            view = watching.look()
            live.update(_frame(run, view), refresh=True)


def _frame(run: str, view: LiveView) -> Group:
    from rich.console import Group
    from rich.text import Text

    from xectool.engine.metric_tables import named_rows

    report = view.report
    lines = [Text(f"{run}: {report.verdict}", style="red" if report.bad else "green")]
    if view.steps:
        lines.append(Text(f"loss       {view.losses[-1]:<11.5g} {sparkline(view.losses)}"))
        lines.append(Text(f"grad norm  {view.grad_norms[-1]:<11.5g} {sparkline(view.grad_norms)}"))
        wait = report.ranks[0].data_wait_share
        lines.append(Text(f"rate       {view.events_per_s:.4g} events/s, data wait {wait:.1%}, lr {view.lr:.3g}"))
    for rank in report.ranks:
        memory = f"{rank.rss_bytes / 1e9:.2f} GB" if rank.rss_bytes >= 0 else "-"
        device = f", device {rank.device_bytes / 1e9:.2f} GB" if rank.device_bytes >= 0 else ""
        age = duration(rank.phase_age_s)
        lines.append(Text(f"rank {rank.rank:<5} {rank.state}, {rank.phase} for {age}, {memory}{device}"))
    lines += [Text(line, style="yellow") for line in view.events]
    drawn = [table("last epoch", ["metric", "value"], named_rows(view.metrics))] if view.metrics else []
    return Group(*lines, *drawn)


def sparkline(values: tuple[float, ...]) -> str:
    """Return the course of some numbers as a row of bars, the newest last; gaps for what is not finite.

    >>> sparkline((0.0, 0.5, 1.0))
    '▁▅█'
    """
    import math

    shown = values[-COLUMNS:]
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    top = len(BARS) - 2
    marks = (round(top * (value - low) / span) if span else 0 for value in shown if math.isfinite(value))
    return "".join(BARS[1 + next(marks)] if math.isfinite(value) else " " for value in shown)
