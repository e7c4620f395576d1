"""``xectool ctl``: ask a running training for something."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from xectool.cli.diagnose.hang import show_stacks
from xectool.cli.diagnose.status import show_status
from xectool.cli.options import JsonOption
from xectool.cli.render import AlreadyShown, Output
from xectool.errors import EXIT_BAD_RESULT, UsageError


def ctl(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Directory of a running training.")],
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="checkpoint, stop, lr, clip, cancel, status or stacks.")
    ],
    value: Annotated[float | None, typer.Argument(metavar="VALUE", help="Largest gradient norm, for clip.")] = None,
    scale: Annotated[float | None, typer.Option(metavar="FACTOR", help="Factor of the learning rate, for lr.")] = None,
    tag: Annotated[str, typer.Option(metavar="NAME", help="Name under which a checkpoint is kept.")] = "",
    wait: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the next step boundary.")] = 10.0,
    json: JsonOption = False,
) -> None:
    """Ask a running training for a checkpoint, a graceful stop, another rate or clip; done between two steps."""
    from xectool import engine

    output, number = Output("ctl", json), _number(action, value, scale, tag)
    if action == "status":
        report = engine.diagnose.status(run)
        output.result(report, bad=report.bad, human=lambda screen: show_status(screen, report))
        return
    if action == "stacks":
        found = engine.diagnose.stacks(run)
        output.result({"processes": found}, human=lambda screen: show_stacks(screen, found))
        return
    done = engine.control(run, action, value=number, tag=tag, wait_s=wait)
    output.result(done, bad=not done.done, human=lambda screen: screen.print(done.message, markup=False))
    if not done.done:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _number(action: str, value: float | None, scale: float | None, tag: str) -> float:
    """Return the number of a request.

    Raises:
        UsageError: A number or name that the action does not take, or none where it takes one.
    """
    wrong = {
        "--scale": scale is not None and action != "lr",
        "VALUE": value is not None and action != "clip",
        "--tag": bool(tag) and action != "checkpoint",
    }
    for name, given in wrong.items():
        if given:
            raise UsageError(f"{action} takes no {name}", where=f"xectool ctl RUN {action}", fix="xectool ctl --help")
    if action == "lr" and scale is None:
        raise UsageError("lr takes a factor", where="xectool ctl RUN lr", fix="xectool ctl RUN lr --scale 0.1")
    if action == "clip" and value is None:
        raise UsageError("clip takes a norm", where="xectool ctl RUN clip", fix="xectool ctl RUN clip 0.5")
    return scale if scale is not None else value if value is not None else math.nan
