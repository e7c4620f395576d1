"""``xectool diagnose gradients``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import DeviceOption, JsonOption, SetOption, config_or_run_word
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.errors import EXIT_BAD_RESULT

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.diagnose.gradient_norms import GradientHealth


def gradients(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|RUN", callback=config_or_run_word, help="Configuration to take steps with, or a run."
        ),
    ],
    set_: SetOption = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Steps to take with a configuration.")] = 20,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Show gradient norms by block: which are dead, which explode, and what clip would fit."""
    from xectool import engine

    result = engine.diagnose.gradients(source, overrides=set_ or (), steps=steps, device=device)
    Output("diagnose gradients", json).result(result.as_dict(), bad=result.bad, human=lambda s: _show(s, result))
    if result.bad:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _show(screen: Console, result: GradientHealth) -> None:
    report = result.report
    rows = [[row.block, *map(_known, (row.median, row.p95, row.maximum, row.growth)), row.state]
            for row in report.blocks]  # fmt: skip
    screen.print(table("gradient norm before clipping", ["block", "median", "p95", "max", "growth", "state"], rows))
    why = [
        f"total norm: median {report.total.median:.3g}, p95 {report.total.p95:.3g}, max {report.grad_norm_max:.3g}",
        f"training.grad_clip {report.grad_clip:g}; {report.suggested_grad_clip:g} would catch outliers only",
    ]
    screen.print(verdict_box(report.verdict, why, result.next, good=not result.bad))


def _known(norm: float) -> float | None:
    """Return a norm, or None for a block that never had a gradient."""
    return None if math.isnan(norm) else norm
