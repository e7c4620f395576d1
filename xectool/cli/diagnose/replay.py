"""``xectool diagnose replay``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import DeviceOption, JsonOption, recorded_run_word
from xectool.cli.progress import watcher
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.errors import EXIT_BAD_RESULT

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.diagnose.replayed_step import ReplayResult

MAX_ROWS = 20


def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", callback=recorded_run_word, help="Run directory.")],
    step: Annotated[int, typer.Option(metavar="N", help="Optimizer step of the run, from 1.")],
    counterfactuals: Annotated[
        bool, typer.Option("--counterfactuals", help="Try what would have cured it: events, rate, precision.")
    ] = False,
    with_left_out: Annotated[
        bool, typer.Option("--with-left-out", help="Serve it the events that the run left out of this step.")
    ] = False,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Run a recorded step again, bit for bit, and look at every module."""
    from xectool import engine

    with watcher(quiet=json) as observer:
        result = engine.diagnose.replay(
            run,
            step,
            with_counterfactuals=counterfactuals,
            with_left_out=with_left_out,
            device=device,
            observer=observer,
        )
    Output("diagnose replay", json).result(
        result.as_dict(),
        findings=result.findings if json else (),
        bad=not result.good,
        human=lambda screen: _show(screen, result),
    )
    if not result.good:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _show(screen: Console, result: ReplayResult) -> None:
    shown = sorted(result.modules, key=lambda own: (-own.nonfinite - own.nonfinite_grad, -own.absmax))[:MAX_ROWS]
    rows = [[m.module, m.kind, m.mean, m.std, m.absmax, m.nonfinite, m.grad_norm] for m in shown]
    columns = ["module", "kind", "mean", "std", "absmax", "non-finite", "gradient norm"]
    screen.print(table(f"modules in step {result.step}, largest outputs first", columns, rows))
    if result.counterfactuals:
        tried = [
            [c.change, c.loss, c.grad_norm, "-" if c.cures is None else "yes" if c.cures else "no", c.detail]
            for c in result.counterfactuals
        ]
        screen.print(table("with one thing changed", ["change", "loss", "gradient norm", "cures", "what"], tried))
    screen.print(verdict_box(result.verdict, result.why, result.next, result.good))
