"""Which rank ended a job, and why, from what each of them left behind."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from xectool.engine.ranks.outcome import read_outcome, result_of
from xectool.engine.training_run.result import TrainResult
from xectool.errors import EXIT_INTERRUPTED, WorldError, XecError
from xectool.runlog.process import who_killed
from xectool.training.ranks.faults import VICTIM, raised_elsewhere

VICTIMS: Final = (VICTIM, "XT-RANK-TIMEOUT")
_TAIL_BYTES: Final = 2000
_CUT_SHORT: Final = (
    ": a file that it had mapped was cut short, such as a copy in data.cache, or had no room, as in /dev/shm"
)


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    Attributes:
        nproc: Number of ranks.
        directory: Outcomes and logs of the ranks.
        failures: Ranks that ended with another code than 0.
        ended: Processes the launcher ended itself.
        interrupted: Whether a signal asked for the end.
        places: Host, phase and last step of each rank, as far as they are known.
        hang: Verdict on a rank that did not get on before, or empty.
        oom_kills: Processes the kernel has killed for lack of memory since the job began, -1 where it does not say.
        first: Pid of each rank that ended before the others, as far as that is known.
    """

    nproc: int
    directory: Path
    failures: Mapping[int, ProcessFailure]
    ended: frozenset[int]
    interrupted: bool
    places: Mapping[int, str] = field(default_factory=dict)
    hang: str = ""
    oom_kills: int = -1
    first: Mapping[int, int] = field(default_factory=dict)


def verdict_of(ending: Ending, again: str) -> TrainResult:
    """Return the result of the first rank.

    Raises:
        XecError: The error of the rank that ended first of those with one of their own; a rank that was killed is
            named with pid and signal.
        KeyboardInterrupt: The ranks were interrupted before they could end by themselves.
    """
    outcomes = {rank: read_outcome(ending.directory, rank) for rank in range(ending.nproc)}
    codes = {failure.exitcode for failure in ending.failures.values()}
    if "result" in outcomes[0] and codes <= {EXIT_INTERRUPTED}:
        return result_of(outcomes[0])
    left = [rank for rank in sorted(ending.first) if rank not in ending.failures and not outcomes[rank]]
    if left and not ending.interrupted:  # what became of the others follows from it
        raise _left(left[0], ending, again)
    killed = _killed(ending)
    if killed is not None:
        raise _death(*killed, ending, again)
    own = {rank: outcome for rank, outcome in outcomes.items() if _is_cause(outcome)}
    if own:
        rank = min(own, key=lambda one: (_ended_at(ending, one), one))
        facts = dict(own[rank]["error"])
        if len(own) == 1 and ending.nproc > 1:
            facts["where"] = f"rank {rank}: {facts['where']}"
        raised_elsewhere(facts)
    one = any(code.exitcode == EXIT_INTERRUPTED and not outcomes[rank] for rank, code in ending.failures.items())
    if ending.interrupted or one:  # a rank may be interrupted by itself
        raise KeyboardInterrupt
    raise _unexplained(ending, outcomes, again)


def _killed(ending: Ending) -> tuple[int, ProcessFailure] | None:
    """Return the rank that a signal ended which the launcher did not send.

    A batch system sends SIGUSR1 to all of them, also to one that Python has not started yet and that it ends; one that
    was interrupted ends itself by SIGINT where Python says so, or aborts before it has begun, where threads of gloo or
    of libraries that it was loading outlive its interpreter.
    """
    for rank, failure in sorted(ending.failures.items()):
        harmless = {signal.SIGUSR1, signal.SIGINT} | (set() if ending.places.get(rank) else {signal.SIGABRT})
        asked = ending.interrupted and -failure.exitcode in harmless
        by_launcher = failure.pid in ending.ended or failure.exitcode == -signal.SIGTERM or asked
        if failure.exitcode < 0 and not by_launcher:
            return rank, failure
    return None


def _ended_at(ending: Ending, rank: int) -> float:
    """Return when a rank failed, in s since 1970; infinite where the launcher has not seen it fail."""
    failure = ending.failures.get(rank)
    return float(failure.timestamp) if failure is not None else math.inf


def _is_cause(outcome: Mapping[str, Any]) -> bool:
    return "error" in outcome and outcome["error"]["code"] not in VICTIMS


def _death(rank: int, failure: ProcessFailure, ending: Ending, again: str) -> XecError:
    number = -failure.exitcode
    name = signal.Signals(number).name if number in {item.value for item in signal.Signals} else f"signal {number}"
    hints: dict[int, str] = {signal.SIGKILL: who_killed(ending.oom_kills), signal.SIGBUS: _CUT_SHORT}
    hint = hints.get(number, "")
    return WorldError(
        f"rank {rank} (pid {failure.pid}) was killed by signal {number} ({name}){hint}; the other ranks were ended",
        where=f"rank {rank} of {ending.nproc}{ending.places.get(rank, '')}{_log(ending, rank)}",
        fix=again,
        code="XT-RANK-DIED",
    )


def _left(rank: int, ending: Ending, again: str) -> XecError:
    """Return what is said of a rank that came to no end of its own and failed at nothing."""
    pid = f" (pid {ending.first[rank]})" if rank in ending.first else ""
    others = "; the other ranks were ended" if ending.failures else ""
    return WorldError(
        f"rank {rank}{pid} ended with exit code 0 in the middle of the training, as by sys.exit in a plugin{others}",
        where=f"rank {rank} of {ending.nproc}{ending.places.get(rank, '')}{_log(ending, rank)}",
        fix=again,
        code="XT-RANK-DIED",
    )


def _unexplained(ending: Ending, outcomes: Mapping[int, Mapping[str, Any]], again: str) -> XecError:
    """Return what is known where no rank says what went wrong: a defect first, then whoever lost another rank."""
    silent = [rank for rank, failure in sorted(ending.failures.items()) if not outcomes[rank] and failure.exitcode > 0]
    if silent:
        failure = ending.failures[silent[0]]
        return XecError(
            f"rank {silent[0]} (pid {failure.pid}) ended with exit code {failure.exitcode}",
            where=f"rank {silent[0]}{ending.places.get(silent[0], '')}{_log(ending, silent[0])}",
            fix="please report it together with what the rank said last",
            code="XT-DEFECT",
        )
    if not ending.failures:
        return _left(next((rank for rank, outcome in outcomes.items() if not outcome), 0), ending, again)
    rank, failure = min(ending.failures.items(), key=lambda item: (item[1].timestamp, item[0]))
    said = outcomes[rank].get("error", {}).get("problem", f"it ended with exit code {failure.exitcode}")
    before = f"; before that: {ending.hang}" if ending.hang else ""
    return WorldError(
        f"rank {rank} (pid {failure.pid}) lost the others: {said}{before}",
        where=f"rank {rank} of {ending.nproc}{ending.places.get(rank, '')}{_log(ending, rank)}",
        fix=again,
        code=VICTIM,
    )


def _log(ending: Ending, rank: int) -> str:
    """Return where the last words of a rank are, and the last of them; the first rank speaks on the screen."""
    for path in sorted(ending.directory.glob(f"**/{rank}/stderr.log")):
        lines = path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        if lines:
            return f"; {path}: {lines[-1][:200]}"
    return ""
