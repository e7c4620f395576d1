"""Asks a fresh process for the tapes of some steps; loads no torch here.

A process of its own, because modes without data must not meet tensors with data, and because whatever a network does
on the way must not take the caller along.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xectool.errors import XecError
from xectool.training.memory_estimate.recording import Recording
from xectool.training.memory_estimate.request import StepRequest
from xectool.training.memory_estimate.search import Search

TIMEOUT_S: Final = 600.0
MODULE: Final = "xectool.training.memory_estimate"


@dataclass(frozen=True)
class Answer:
    """What the process found.

    Attributes:
        recordings: One tape a request, in order.
        loader_bytes: Most the loader of the first request holds for the given number of events.
        cache_bytes: What its cache of these events takes on the disk.
        max_batch: Largest batch that fits, None where it was not asked for.
        rss_bytes: Most memory the process itself took.
    """

    recordings: tuple[Recording, ...]
    loader_bytes: int
    cache_bytes: int
    rss_bytes: int
    max_batch: int | None = None


def ask(
    requests: Mapping[str, StepRequest],
    events: int,
    search: Search | None = None,
    window: int = 1,
    validation_events: int | None = None,
) -> Answer:
    """Tape some steps.

    Args:
        requests: The steps by name, the step itself first.
        events: Events of the data set, for the loader.
        search: What the largest batch is looked for with; None looks for none.
        window: Batches of one optimizer step.
        validation_events: Events of validation; None where they are not known, then as many as of the data set.

    Raises:
        XecError: The configuration cannot be built, or the process died.
    """
    question: dict[str, Any] = {"requests": {name: item.to_json() for name, item in requests.items()}, "events": events}
    question |= {"search": search and search.to_json(), "window": window}
    question["validation_events"] = validation_events or events
    answer = _run("estimate", question)
    recordings = tuple(Recording.from_json(item) for item in answer["recordings"])
    sizes = {name: int(answer[name]) for name in ("loader_bytes", "cache_bytes", "rss_bytes")}
    return Answer(recordings, max_batch=answer["max_batch"], **sizes)


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
        given.write_text(json.dumps(question))
        # Threads would only wait for each other: nothing is computed.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        if task == "measure":
            environment = dict(os.environ)
        command = [sys.executable, "-W", "ignore", "-m", MODULE, task, str(given), str(found)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise _failed(f"no answer within {TIMEOUT_S:g} s") from error
        if not found.is_file():
            lines = done.stderr.strip().splitlines()
            raise _failed(f"status {done.returncode}: {lines[-1] if lines else 'no message'}")
        answer: dict[str, Any] = json.loads(found.read_text())
    if "problem" in answer:
        raise XecError(answer["problem"], where=answer["where"], fix=answer["fix"], code=answer["code"])
    return answer


def _failed(reason: str) -> XecError:
    return XecError(
        f"the process that estimates memory failed: {reason}",
        where=f"python -m {MODULE}",
        fix="free some memory (it takes about 0.5 GB) and try again; else report this as a defect of xectool",
        code="XT-ESTIMATE-FAILED",
    )
