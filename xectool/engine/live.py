"""``ctl`` and ``watch``: ask a running training for something, and look at it while it goes on."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import numpy as np

from xectool.checkpoint.names import LAST_NAME
from xectool.diagnosis.cases.growth import HIGH_LR
from xectool.diagnosis.reports.status import StatusReport, status_report
from xectool.errors import UsageError, XecError, in_shell
from xectool.runlog.control import ACTIONS, SILENT, Request, ask
from xectool.runlog.reader import RunReader, RunStatus
from xectool.runlog.records import EventRecord, is_routine

SHOWN_STEPS: Final = 200
QUIET_KINDS: Final = frozenset({"checkpoint", "resume"})


@dataclass(frozen=True)
class ControlResult:
    """What a run answered.

    Attributes:
        action: What was asked for.
        done: Whether it was done.
        step: Last finished optimizer step when the run answered.
        phase: What its training thread was doing then.
        message: What was done, or why not yet.
    """

    action: str
    done: bool
    step: int
    phase: str
    message: str


def control(
    run_dir: Path | str, action: str, *, value: float = math.nan, tag: str = "", wait_s: float = 10.0
) -> ControlResult:
    """Ask a running training for something; it is done between two steps, on all ranks at the same one.

    Args:
        run_dir: Directory of the run.
        action: ``checkpoint``, ``stop``, ``lr``, ``clip`` or ``cancel``.
        value: Factor of the learning rate, or largest gradient norm.
        tag: Name under which a checkpoint is kept.
        wait_s: How long to wait for the next step boundary.

    Raises:
        UsageError: No such action or value; the run is over, on another machine, or another user's.
        WorldError: The run does not answer.
    """
    directory = Path(run_dir).expanduser()
    with _named(directory):
        request = Request(action, value, tag, wait_s)
    place = _socket(directory, _words(action, value, tag))
    with _named(directory):
        return ControlResult(**ask(place, request))


def refuse_rate(run_dir: Path | str, rate: float) -> NoReturn:
    """Refuse a number that was given without saying that it is a factor of the learning rate.

    The fix says to which rate each meaning leads. First comes the one that changes the rate less, as a ratio; a factor
    it is where it is beyond the largest rate that AdamW takes.

    Args:
        run_dir: Directory of the run.
        rate: The number.

    Raises:
        UsageError: In any case; as `control` where nothing can be asked of the run.
    """
    directory = Path(run_dir).expanduser()
    _socket(directory, f"lr --scale {rate:g}")
    now, allowed = watch(directory).lr, ACTIONS["lr"]
    wanted = float(f"{rate / now:.6g}") if now > 0 else math.nan
    may_be_rate = wanted > 0 and rate < HIGH_LR
    near = min(max(wanted, allowed.low), allowed.high) if may_be_rate else wanted  # what one request may lead to
    is_rate = may_be_rate and (rate < allowed.low or abs(math.log(wanted)) <= abs(math.log(rate)))
    meant = dict.fromkeys((near, rate) if is_rate else (rate, near))
    factors = [factor for factor in meant if allowed.low <= factor <= allowed.high]
    beyond = [factor for factor in dict.fromkeys((wanted, rate)) if factor < allowed.low or factor > allowed.high]
    doubts = [f"{rate:g} does not say whether it is one"] if rate in factors or wanted in factors else []
    doubts += [f"{factor:g} is beyond {allowed.low:g} to {allowed.high:g}" for factor in beyond]
    known = f"; the rate is {now:.4g} now" if now > 0 else ""
    line = f"xectool ctl {in_shell(directory)} lr"
    first, *others = (f"--scale {factor:g}{_leading_to(now * factor)}" for factor in factors or [0.1])
    problem = f"lr takes a factor of the rate, as --scale; {', and '.join(doubts) or 'this is no number'}{known}"
    raise UsageError(problem, where=line, fix="; ".join((f"{line} {first}", *others)))


def _leading_to(rate: float) -> str:
    return f"   # to {rate:.4g}" if rate > 0 else ""


@contextlib.contextmanager
def _named(run_dir: Path) -> Iterator[None]:
    """Name the run, and its last checkpoint where it does not answer, in the refusals of what knows only a socket."""
    try:
        yield
    except XecError as error:
        error.fix = error.fix.replace("RUN", in_shell(run_dir))
        error.where = error.where.replace("ctl RUN", f"ctl {in_shell(run_dir)}")
        if error.code == SILENT:  # the run cannot say it itself
            last = run_dir / LAST_NAME
            error.problem += (
                f"; the last good checkpoint is {last}" if last.exists() else "; there is no checkpoint yet"
            )
        raise


def _words(action: str, value: float, tag: str) -> str:
    """Return an action as it is typed.

    >>> _words("lr", 0.1, ""), _words("clip", 0.5, ""), _words("checkpoint", math.nan, "old")
    ('lr --scale 0.1', 'clip 0.5', 'checkpoint --tag old')
    """
    number = "" if math.isnan(value) else f" --scale {value:g}" if action == "lr" else f" {value:g}"
    return f"{action}{number}{f' --tag {in_shell(tag)}' if tag else ''}"


def _socket(run_dir: Path, words: str) -> Path:
    """Return the socket of the attempt that runs now.

    Args:
        run_dir: Directory of the run.
        words: What is asked of it, as it is typed.

    Raises:
        UsageError: There is none.
    """
    reader = RunReader(run_dir)
    status = reader.status()
    require_here(status, run_dir, f"ctl {{run}} {words}")
    if status.state != "running":
        raise UsageError(
            f"the run is over ({status.state}): there is nothing to control",
            where=str(run_dir),
            fix=f"xectool diagnose run {in_shell(run_dir)}",
            code="XT-CTL-OVER",
        )
    opened = [event for event in reader.last_events() if event.kind == "control_socket"]
    if not opened or not opened[-1].data.get("socket"):
        raise UsageError(
            opened[-1].message if opened else "the run is still starting; it can be controlled from its first step on",
            where=str(run_dir),
            fix=f"xectool diagnose status {in_shell(run_dir)}",
            code="XT-CTL-CLOSED",
        )
    return Path(str(opened[-1].data["socket"]))


def require_here(status: RunStatus, run_dir: Path, command: str) -> None:
    """Refuse a run of another machine, and the copy of one that goes on elsewhere.

    Args:
        status: How it stands.
        run_dir: Its directory.
        command: What to do there, with ``{run}`` in place of the run.

    Raises:
        UsageError: The processes of the run cannot be seen from here.
    """
    if status.original:
        raise UsageError(
            f"this is a copy of a run that goes on: process {status.pid} writes to {status.original}",
            where=str(run_dir),
            fix=f"xectool {command.format(run=in_shell(status.original))}",
            code="XT-CTL-COPY",
        )
    if status.state == "unknown":
        raise UsageError(
            f"the run is on {status.host}, this is {socket.gethostname()}",
            where=str(run_dir),
            fix=f"ssh {status.host} xectool {command.format(run=in_shell(run_dir.resolve()))}",
            code="XT-CTL-HOST",
        )


@dataclass(frozen=True)
class LiveView:
    """A run at this moment, as `watch` shows it.

    Attributes:
        report: Its ranks and reading threads.
        steps: Number of each shown step, the newest last.
        losses: Loss of each.
        grad_norms: Gradient norm of each.
        lr: Learning rate of the newest.
        events_per_s: Events a second over the shown steps.
        metrics: Metrics of the last finished epoch.
        events: What happened, the newest last.
    """

    report: StatusReport
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    lr: float
    events_per_s: float
    metrics: dict[str, float]
    events: tuple[str, ...]

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.report.state != "running"


class Watch:
    """Looks at a run again and again; a look reads what is new, however long the run is.

    Args:
        run_dir: Directory of the run.

    Raises:
        UsageError: The directory holds no run record.
    """

    def __init__(self, run_dir: Path | str) -> None:
        self._directory = Path(run_dir).expanduser()
        self._reader = RunReader(self._directory)

    def look(self) -> LiveView:
        """Return how the run stands now; live, hung or over."""
        reader = self._reader
        blocks = reader.last_blocks(SHOWN_STEPS)
        names = ("step", "loss", "grad_norm", "lr", "step_s", "num_events")
        steps, losses, norms, lrs, seconds, counts = (
            np.concatenate([block.column(name) for block in blocks] or [np.empty(0)])[-SHOWN_STEPS:] for name in names
        )
        epochs = reader.epochs()
        return LiveView(
            report=status_report(self._directory, reader),
            steps=tuple(int(step) for step in steps),
            losses=tuple(float(loss) for loss in losses),
            grad_norms=tuple(float(norm) for norm in norms),
            lr=float(lrs[-1]) if len(lrs) else math.nan,
            events_per_s=float(counts.sum() / seconds.sum()) if seconds.sum() else math.nan,
            metrics=dict(epochs[-1].metrics) if epochs else {},
            events=tuple(_line(event) for event in _worth_showing(reader.events())[-8:]),
        )


def watch(run_dir: Path | str) -> LiveView:
    """Return how a run stands now; live, hung or over.

    Raises:
        UsageError: The directory holds no run record.
    """
    return Watch(run_dir).look()


def _worth_showing(events: Sequence[EventRecord]) -> list[EventRecord]:
    return [event for event in events if event.kind not in QUIET_KINDS and not is_routine(event)]


def _line(event: EventRecord) -> str:
    return f"step {event.step} {event.kind}: {event.message}" if event.message else f"step {event.step} {event.kind}"
