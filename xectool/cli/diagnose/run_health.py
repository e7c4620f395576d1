"""``xectool diagnose run`` and ``xectool diagnose loss``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import JsonOption, run_word
from xectool.cli.render import AlreadyShown, Output, table, verdict_box
from xectool.cli.wrapping import wrapped
from xectool.errors import EXIT_BAD_RESULT, counted, in_shell
from xectool.findings import few, to_paste

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.diagnosis.cause import Cause
    from xectool.engine.diagnose.run_health import LossHealth, RunHealth

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", callback=run_word, help="Run directory; the run may still go on.")
]
LIST = "data.exclude=["
_NAME = "mlflow.run_name"


def run(run: RunArgument, json: JsonOption = False) -> None:
    """Say what is wrong with a run, most likely cause first, and what to do; reads the record only."""
    from xectool import engine

    result = engine.diagnose.run(run)
    Output("diagnose run", json).result(
        result.as_dict(), findings=result.findings if json else (), bad=result.bad, human=lambda s: _show_run(s, result)
    )
    if result.bad:
        raise AlreadyShown(EXIT_BAD_RESULT)


def loss(run: RunArgument, json: JsonOption = False) -> None:
    """Say whether the loss of a run is not finite, jumps, stands still or collapsed: since when, and why."""
    from xectool import engine

    result = engine.diagnose.loss(run)
    Output("diagnose loss", json).result(
        result.as_dict(),
        findings=result.findings if json else (),
        bad=result.bad,
        human=lambda s: _show_loss(s, result),
    )
    if result.bad:
        raise AlreadyShown(EXIT_BAD_RESULT)


def _show_run(screen: Console, result: RunHealth) -> None:
    if len(result.causes) > 1:
        rows = [
            [cause.code, f"{cause.confidence:.0%}", cause.step or "-", cause.follows or "-"] for cause in result.causes
        ]
        title = "causes, most likely first" + (
            ", then what follows from them" if any(cause.follows for cause in result.causes) else ""
        )
        screen.print(table(title, ["code", "confidence", "step", "follows from"], rows))
        for cause in result.causes[1:]:
            fix = to_paste("  fix:", _without_list(cause.fix))
            screen.print(f"{wrapped(f'{cause.code}: {cause.problem}', screen.width, 2, 0)}\n{fix}", markup=False)
    for note in result.notes:
        fix = "\n" + to_paste("  fix:", note.fix) if note.fix else ""
        screen.print(f"{wrapped(f'note {note.code}: {note.problem}', screen.width, 2, 0)}{fix}", markup=False)
    looked = f"{counted(len(result.rules_run), 'rule')} looked, {len(result.rules_skipped)} had nothing to look at"
    if result.exclude and not result.causes[0].blamed:
        screen.print(f"all events to blame: --set {in_shell(result.exclude)}", markup=False)
    _show_box(screen, result.verdict, result.causes, looked, result.next)


def _show_loss(screen: Console, result: LossHealth) -> None:
    if result.baselines:
        rows = [[b.term, b.loss, b.validation, b.trivial, b.ratio] for b in result.baselines]
        screen.print(table("loss and best constant", ["term", "loss", "validation", "constant", "ratio"], rows))
    if result.spikes:
        spikes = [[s.step, s.epoch, s.loss, s.median, s.grad_norm, s.lr, s.steps, s.recovered] for s in result.spikes]
        names = ["step", "epoch", "loss", "median before", "grad norm", "lr", "steps", "recovered"]
        screen.print(table("jumps of the loss", names, spikes))
    gradients = [
        [g.epoch, g.summary.median, g.summary.p95, g.summary.maximum, f"{g.summary.clipped:.0%}", g.summary.band]
        for g in result.gradients[-10:]
    ]
    names = ["epoch", "median", "p95", "max", "clipped", "what it says"]
    screen.print(table("gradient norm before clipping", names, gradients))
    for key, value in result.recovery_changes.items():
        if key != _NAME:  # it mends nothing, and stands in the line to paste
            screen.print(f"recovery: {key}: {value}", markup=False)
    _show_box(screen, result.verdict, result.causes, "", result.recovery_command)


def _show_box(screen: Console, verdict: str, causes: Sequence[Cause], healthy: str, following: str) -> None:
    if not causes:
        screen.print(verdict_box(verdict, [healthy] if healthy else [], following, good=True))
        return
    first = causes[0]
    why = [f"confidence {first.confidence:.0%}", *few(first.evidence)]
    why += few([f"ruled out: {line}" for line in first.ruled_out])
    screen.print(verdict_box(verdict, why, following or first.fix, good=False))


def _without_list(fix: str) -> str:
    """Return the line of a further cause: the events to leave out are in one list."""
    command, _, comment = fix.partition("   # ")
    return command if LIST in comment else fix
