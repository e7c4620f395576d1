"""All modes of ``torch.compile`` on this device, each in a process of its own, and the one that pays for a run."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import IO, Any, Final

import psutil

from xectool.config.root import RunConfig
from xectool.errors import duration
from xectool.probes.compilation.mode import MEASURED, ModeTime

_WATCH_S = 0.2
_LEAST_GAIN = 0.02  # of the time of the whole run
_LAST_LINES = 3
TIMEOUT: Final = "XT-COMPILE-TIMEOUT"


def modes_of(device_type: str) -> tuple[str, ...]:
    """Return the modes that differ on a device: without a GPU there are no CUDA graphs to use or to leave out."""
    if device_type == "cuda":
        return "none", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
    return "none", "default", "max-autotune-no-cudagraphs"


def measure_modes(  # noqa: PLR0913  what is measured, and how long
    config: RunConfig,
    modes: Sequence[str],
    device: str,
    steps: int,
    timeout_s: float,
    *,
    run_batches: int | None = None,
    begin: Callable[[str, float, float], None] = lambda mode, limit_s, compile_s: None,
) -> Iterator[ModeTime]:
    """Yield the time of each mode, one process after the other.

    Args:
        config: The configuration.
        modes: What is measured.
        device: Where it computes.
        steps: Measured steps of each.
        timeout_s: Longest time of all of them; each may take what the earlier ones left. Compilers that take longer are
            ended with all their processes, and where that is the default mode no other is begun: they do more.
        run_batches: Batches of the planned run: a mode that compiles for longer than all of them take eagerly is ended,
            as it cannot pay; comparing its outputs does not count. None sets no such limit.
        begin: Called before each mode with the seconds it has at most, and those until its steps are measured.
    """
    deadline, whole_run_s, given_up = time.monotonic() + timeout_s, math.inf, ModeTime("")
    for mode in modes:
        began = time.monotonic()
        left = max(0.0, deadline - began)
        if given_up.error or not left:
            yield replace(given_up, mode=mode, error=f"not begun: {given_up.error or 'no time was left'}", code=TIMEOUT)
            continue
        request = {"config": config.to_dict(), "mode": mode, "device": device, "steps": steps, "seconds": left / 4}
        begin(mode, left, min(left, whole_run_s))
        found = _in_process(request, left, whole_run_s)
        if mode == "none" and run_batches is not None and not found.error:
            # a process starts and reads before it compiles: as long as this one took for all it did
            whole_run_s = time.monotonic() - began + 1e-3 * found.step_ms * run_batches
        if found.code == TIMEOUT and mode == "default" and not found.steps:
            error = f"it compiles what default does and more, which was {found.error}"
            given_up = ModeTime("", error=error, cannot_pay=found.cannot_pay)
        yield found


def _in_process(request: dict[str, Any], timeout_s: float, whole_run_s: float) -> ModeTime:
    mode = str(request["mode"])
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as question,
        tempfile.TemporaryFile("w+", encoding="utf-8") as answer,
        _errors() as errors,
    ):
        json.dump(request, question)
        question.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "xectool.probes.compilation.mode"],
            stdin=question,
            stdout=answer,
            stderr=errors,
            start_new_session=True,
        )
        host_peak, late_s = _watch(process, timeout_s, whole_run_s, lambda: _measured(answer))
        answer.seek(0)
        errors.seek(0)
        text, told = answer.read(), errors.read()
    if late_s is not None:
        return replace(_late(mode, late_s, late_s < timeout_s, text), host_peak_bytes=host_peak)
    if process.returncode != 0 or not text.strip():
        return replace(_failed(mode, process.returncode, told), host_peak_bytes=host_peak)
    return replace(_mode_time(text.strip().splitlines()[-1]), host_peak_bytes=host_peak)


def _mode_time(line: str) -> ModeTime:
    known = {item.name for item in fields(ModeTime)}
    found = ModeTime(**{name: value for name, value in json.loads(line).items() if name in known})
    return replace(found, cudagraph_skips=tuple(found.cudagraph_skips))


def _measured(answer: IO[str]) -> bool:
    # where the process writes, so that it is read without a seek
    told = os.pread(answer.fileno(), os.fstat(answer.fileno()).st_size, 0).decode(errors="replace")
    return _told_times(told) is not None


def _told_times(text: str) -> str | None:
    """Return what follows `MEASURED` in a whole line; other lines may stand before it."""
    lines = text.splitlines(keepends=True)
    return next((line.partition(MEASURED)[2] for line in lines if MEASURED in line and line.endswith("\n")), None)


def _late(mode: str, spent_s: float, too_long: bool, text: str) -> ModeTime:
    times = _told_times(text)
    if times is not None:
        error = f"its steps were measured, but its outputs not compared with eager ones after {duration(spent_s)}"
        return replace(_mode_time(times), error=error, code=TIMEOUT)
    if not too_long:
        return ModeTime(mode, error=f"not done after {duration(spent_s)}", code=TIMEOUT)
    error = f"not done after {duration(spent_s)}: the whole run takes no longer without it"
    return ModeTime(mode, error=error, code=TIMEOUT, cannot_pay=True)


def _errors() -> IO[str]:
    return tempfile.TemporaryFile("w+", errors="replace", encoding="utf-8")


def _watch(
    process: subprocess.Popen[bytes], timeout_s: float, whole_run_s: float, measured: Callable[[], bool]
) -> tuple[int, float | None]:
    """Wait for a process; return the largest resident memory of it and its children, and when it was ended."""
    began, peak, spent = time.monotonic(), 0, 0.0
    try:
        while process.poll() is None:
            spent = time.monotonic() - began
            if spent >= timeout_s or (spent >= whole_run_s and not measured()):
                break
            peak = max(peak, _resident_bytes(process.pid))
            time.sleep(_WATCH_S)
        return peak, None if process.poll() is not None else spent
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _resident_bytes(pid: int) -> int:
    total = 0
    try:
        parent = psutil.Process(pid)
        for one in (parent, *parent.children(recursive=True)):
            total += int(one.memory_info().rss)
    except psutil.Error:  # it ended while we looked
        return total
    return total


def _failed(mode: str, status: int, told: str) -> ModeTime:
    if status == -signal.SIGKILL:
        error = "killed while compiling, most likely because the machine's memory ran out"
        return ModeTime(mode, error=error, code="XT-COMPILE-KILLED")
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    last = "; ".join(lines[-_LAST_LINES:]) or f"exit status {status}"
    return ModeTime(mode, error=last, code="XT-COMPILE-FAILED")


@dataclass(frozen=True)
class Recommendation:
    """The mode for a planned run.

    Attributes:
        mode: The mode.
        steps: Batches of the planned run.
        total_s: Seconds of forward and backward passes and compiling with each measured mode.
        break_even: Batches after which a mode has paid for its compilation, None where it never does.
        reason: Why this one.
    """

    mode: str
    steps: int
    total_s: dict[str, float]
    break_even: dict[str, int | None]
    reason: str


def recommend(times: Sequence[ModeTime], steps: int, usable: Sequence[str]) -> Recommendation | None:
    """Return the mode with which a run of ``steps`` batches ends first; eager where the gain is within the noise.

    Args:
        times: All measured modes.
        steps: Batches of the run.
        usable: Modes whose outputs are those of eager.

    Returns:
        None where eager itself could not be measured.
    """
    eager = next((found for found in times if found.mode == "none" and not found.error), None)
    if eager is None:
        return None
    done = [found for found in times if not found.error]
    totals = {found.mode: found.compile_s + 1e-3 * found.step_ms * steps for found in done}
    even = {found.mode: _break_even(found, eager) for found in done if found is not eager}
    faster = [found for found in done if found.mode in usable and _is_faster(found, eager)]
    best = min(faster, key=lambda found: totals[found.mode], default=eager)
    if best is not eager and totals[best.mode] < (1 - _LEAST_GAIN) * totals["none"]:
        saved = totals["none"] - totals[best.mode]
        reason = (
            f"saves {saved:.3g} s of {totals['none']:.4g} s in {steps} batches; pays after {even[best.mode]} batches"
        )
        return Recommendation(best.mode, steps, totals, even, reason)
    if best is not eager:
        reason = f"{best.mode} pays only after {even[best.mode]} batches, and the run has {steps}"
    elif len(done) > 1:
        reason = "no mode has a faster step beyond the noise"
    elif any(found.cannot_pay for found in times):
        reason = f"compiling takes longer than the {steps} batches of the run without it, {duration(totals['none'])}"
    else:
        late = any(found.code == TIMEOUT for found in times)
        reason = "no other mode was done in time: nothing is known of them" if late else "no other mode was measured"
    return Recommendation("none", steps, totals, even, reason)


def _break_even(found: ModeTime, eager: ModeTime) -> int | None:
    gain_s = 1e-3 * (eager.step_ms - found.step_ms)
    return math.ceil(found.compile_s / gain_s - 1e-6) if gain_s > 0 else None


def _is_faster(found: ModeTime, eager: ModeTime) -> bool:
    return found.step_ms * (1 + found.spread) < eager.step_ms * (1 - eager.spread)
