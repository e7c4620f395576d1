"""Asks a fresh process for the tapes of some steps; loads no torch here.

A process of its own, because modes without data must not meet tensors with data, and because whatever a network does
on the way must not take the caller along.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xectool.errors import BadResult, UserError, WorldError, XecError
from xectool.training.memory_estimate.cure import Need
from xectool.training.memory_estimate.recording import Recording
from xectool.training.memory_estimate.request import StepRequest
from xectool.training.memory_estimate.search import Search

TIMEOUT_S: Final = 600.0
MODULE: Final = "xectool.training.memory_estimate"
_NO_MEMORY: Final = ("MemoryError", "bad_alloc", "allocate memory")
_LITTLE_MEMORY: Final = (
    "xectool diagnose environment   # free some memory and try again: an estimate takes about 0.5 GB"
)
_SLOW: Final = "xectool diagnose environment   # what keeps this machine busy? on an idle core it takes seconds"
_DEFECT: Final = "report this line as a defect of xectool"


@dataclass(frozen=True)
class Answer:
    """What the process found.

    Attributes:
        recordings: One tape a request, in order.
        loader_bytes: Most the loader of the first request holds for the given number of events.
        cache_bytes: What its cache takes on the disk, of the validation events too where they are known.
        no_cache: Why it makes none, where it makes none.
        max_batch: Largest batch that fits, None where it was not asked for.
        device_cure: Settings with which the step fits into the GPU; None where it fits, and without a search.
        host_cure: The same for the memory of the host.
        rss_bytes: Most memory the process itself took.
    """

    recordings: tuple[Recording, ...]
    loader_bytes: int
    cache_bytes: int
    no_cache: str
    rss_bytes: int
    max_batch: int | None = None
    device_cure: Need | None = None
    host_cure: Need | None = None


def ask(
    requests: Mapping[str, StepRequest],
    events: int,
    search: Search | None = None,
    windows: Mapping[str, int] | None = None,
    validation_events: int | None = None,
    elsewhere: bool = False,
) -> Answer:
    """Tape some steps.

    Args:
        requests: The steps by name, the step itself first.
        events: Events of the data set, for the loader.
        search: What the largest batch, and settings that fit, are looked for with; None looks for none.
        windows: Batches of one optimizer step, by name of the step; None where a search is not asked for.
        validation_events: Events of validation; None where they are not known, then as many as of the data set.
        elsewhere: Whether the run is for another machine, whose disks are not known.

    Raises:
        XecError: The configuration cannot be built, or the process died.
    """
    question: dict[str, Any] = {"requests": {name: item.to_json() for name, item in requests.items()}, "events": events}
    question |= {"search": search and search.to_json(), "windows": windows or dict.fromkeys(requests, 1)}
    question["validation_events"] = validation_events or events
    question["elsewhere"] = elsewhere
    question["cached_events"] = events + (validation_events or 0)
    answer = _run("estimate", question)
    recordings = tuple(Recording.from_json(item) for item in answer["recordings"])
    cures = {name: found and Need.from_json(found) for name, found in answer["cures"].items()}
    return Answer(
        recordings,
        int(answer["loader_bytes"]),
        int(answer["cache"][0]),
        str(answer["cache"][1]),
        int(answer["rss_bytes"]),
        answer["max_batch"],
        cures.get("device_cure"),
        cures.get("host_cure"),
    )


def measure(request: StepRequest, device: str) -> dict[str, int]:
    """Run one real step in a process of its own and return what it took.

    Args:
        request: The step.
        device: ``cpu`` or a CUDA device.

    Returns:
        ``base_bytes``, the most that was resident in steps of one event, ``peak_bytes``, the most in steps of the
        whole batch, and ``allocator_bytes``, the peak of the CUDA allocator, 0 on the CPU.

    Raises:
        XecError: The step cannot be run here.
    """
    answer = _run("measure", {"request": request.to_json(), "device": device})
    return {name: int(answer[name]) for name in ("base_bytes", "peak_bytes", "allocator_bytes")}


def _run(task: str, question: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="xectool-memory-") as directory:
        given, found = Path(directory) / "question.json", Path(directory) / "answer.json"
        given.write_text(json.dumps(question), encoding="utf-8")
        # Threads would only wait for each other: nothing is computed.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        if task == "measure":
            environment = dict(os.environ)
        command = [sys.executable, "-W", "ignore", "-m", MODULE, task, str(given), str(found)]
        try:
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired as error:
            raise _failed(f"no answer within {TIMEOUT_S:g} s", _SLOW) from error
        if not found.is_file():
            raise _died(done.returncode, done.stderr)
        answer: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    if "problem" in answer:
        kind = {kind.exit_code: kind for kind in (XecError, UserError, WorldError, BadResult)}[answer["exit_code"]]
        raise kind(answer["problem"], where=answer["where"], fix=answer["fix"], code=answer["code"])
    return answer


def _died(status: int, errors: str) -> XecError:
    line = ["", *errors.strip().splitlines()][-1]
    memory = status == -signal.SIGKILL or any(sign in errors for sign in _NO_MEMORY)
    return _failed(f"status {status}: {line or 'no message'}", _LITTLE_MEMORY if memory else _DEFECT)


def _failed(reason: str, fix: str) -> XecError:
    return XecError(
        f"the process that estimates memory failed: {reason}",
        where=f"python -m {MODULE}",
        fix=fix,
        code="XT-ESTIMATE-FAILED",
    )
