"""``xectool ctl``: ask a running training for something."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xectool.cli.diagnose.hang import show_stacks
from xectool.cli.diagnose.memory import show_memory
from xectool.cli.diagnose.status import show_status
from xectool.cli.options import JsonOption, run_word
from xectool.cli.render import AlreadyShown, Output
from xectool.errors import EXIT_BAD_RESULT, UsageError, in_shell

if TYPE_CHECKING:
    from rich.console import Console

VIEWS = ("status", "stacks", "memory")
"""What is seen of a run from outside, whether it answers or not."""


def ctl(
    run: Annotated[str, typer.Argument(metavar="RUN", callback=run_word, help="Directory of a running training.")],
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="checkpoint, stop, lr, clip, cancel, status, stacks or memory.")
    ],
    value: Annotated[float | None, typer.Argument(metavar="VALUE", help="Largest gradient norm, for clip.")] = None,
    scale: Annotated[float | None, typer.Option(metavar="FACTOR", help="Factor of the learning rate, for lr.")] = None,
    tag: Annotated[str, typer.Option(metavar="NAME", help="Name under which a checkpoint is kept.")] = "",
    wait: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the next step boundary.")] = 10.0,
    json: JsonOption = False,
) -> None:
    """Ask a running training for a checkpoint, a graceful stop, another rate or clip; done between two steps."""
    from xectool import engine

    if action == "lr" and value is not None and scale is None:
        from xectool.engine.live import refuse_rate

        refuse_rate(run, value)
    output, number = Output("ctl", json), _number(run, action, value, scale, tag)
    if action in VIEWS:
        result, bad, show = _view(action, run)
        output.result(result, bad=bad, human=show)
        if bad:
            raise AlreadyShown(EXIT_BAD_RESULT)
        return
    done = engine.control(run, action, value=number, tag=tag, wait_s=wait)
    output.result(done, bad=not done.done, human=lambda screen: screen.print(done.message, markup=False))
    if not done.done:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _view(name: str, run: str) -> tuple[Any, bool, Callable[[Console], None]]:
    """Return what is seen of a run from outside, whether it is bad, and how it is shown."""
    from xectool import engine

    if name == "stacks":
        found = engine.diagnose.stacks(run)
        return {"processes": found}, False, lambda screen: show_stacks(screen, found)
    if name == "memory":
        sizes = engine.diagnose.memory(run)
        return sizes, bool(sizes.code), lambda screen: show_memory(screen, sizes)
    report = engine.diagnose.status(run)
    return report, report.bad, lambda screen: show_status(screen, report)


def _number(run: str, action: str, value: float | None, scale: float | None, tag: str) -> float:
    """Return the number of a request.

    Raises:
        UsageError: A number or name that the action does not take, or none where it takes one.
    """
    wrong = {
        "--scale": scale is not None and action != "lr",
        "VALUE": value is not None and action != "clip",
        "--tag": bool(tag) and action != "checkpoint",
    }
    line = f"xectool ctl {in_shell(run)} {action}"
    for name, given in wrong.items():
        if given:
            raise UsageError(f"{action} takes no {name}", where=line, fix="xectool ctl --help")
    if action == "lr" and scale is None:
        raise UsageError("lr takes a factor", where=line, fix=f"{line} --scale 0.1")
    if action == "clip" and value is None:
        raise UsageError("clip takes a norm", where=line, fix=f"{line} 0.5")
    return scale if scale is not None else value if value is not None else math.nan
