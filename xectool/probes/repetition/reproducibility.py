"""Are two short runs the same bit for bit; where they are not: the first difference, and the setting that ends it.

A setting is named only after it was tried: the same two runs are the same with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from xectool import errors
from xectool.config.root import RunConfig
from xectool.errors import WorldError, XecError, counted, duration
from xectool.probes.instruments.op_digests import Entry
from xectool.probes.repetition.short_run import Request, Steps

TIMEOUT_S = 1800.0
_HASHES = "PYTHONHASHSEED"
WITHIN, ACROSS = "within one process", "in two processes"


@dataclass(frozen=True)
class Difference:
    """The first thing that differs.

    Attributes:
        between: ``within one process`` or ``in two processes``.
        step: Step of the run, from 1; 0 for what it began with.
        stage: ``start``, ``data``, ``forward``, ``backward`` or ``optimizer``.
        module: Dotted name of the module; ``loss`` outside of the network, empty for the network itself.
        op: The operation.
        first: Sum of its result in one run.
        second: The same in the other.
    """

    between: str
    step: int
    stage: str
    module: str
    op: str
    first: str
    second: str


@dataclass(frozen=True)
class Cure:
    """A setting that was tried.

    Attributes:
        setting: Line to paste.
        identical: Whether the runs are the same with it.
        problem: Why it could not be tried.
    """

    setting: str
    identical: bool
    problem: str = ""


@dataclass(frozen=True)
class Reproducibility:
    """What the runs show.

    Attributes:
        difference: The first one; None where all runs are the same.
        compared: Operations that were compared, over both pairs.
        steps: Steps of each run.
        threads: Threads of the two processes.
        cures: What was tried, in order; the last one helps or nothing does.
    """

    difference: Difference | None
    compared: int
    steps: int
    threads: tuple[int, int]
    cures: tuple[Cure, ...] = field(default=())


def probe(config: RunConfig, source: str, device: str | None, steps: int, threads: Sequence[int]) -> Reproducibility:
    """Run a configuration twice in one process and once in another, and compare.

    Args:
        config: The configuration.
        source: Its path, for messages.
        device: Device that goes before the configuration's.
        steps: Steps of each run.
        threads: Threads of the two processes; empty leaves the machine's choice to both.

    Raises:
        XecError: The training cannot begin.
    """
    request = Request(config.to_dict(), source, device, steps, 1)
    found = _compared(request, threads)
    if found.difference is None:
        return found
    cures: list[Cure] = []
    for setting, changed, same in _candidates(request, found, threads):
        try:
            identical, problem = _compared(changed, same).difference is None, ""
        except XecError as error:
            identical, problem = False, error.problem
        cures.append(Cure(setting, identical, problem))
        if identical:
            break
    return replace(found, cures=tuple(cures))


def first_difference(one: Steps, other: Steps, between: str) -> Difference | None:
    """Return the first entry that differs, by order of execution; None where all are the same."""
    for step, (left, right) in enumerate(zip(one, other, strict=True)):
        for a, b in zip(left, right, strict=False):
            if a[:4] != b[:4]:
                return _difference(a, b, between, step)
        if len(left) != len(right):
            longer = left if len(left) > len(right) else right
            extra = longer[min(len(left), len(right))]
            return Difference(between, step, extra[0], extra[1], extra[2], "" if longer is right else extra[4], "")
    return None


def _difference(a: Entry, b: Entry, between: str, step: int) -> Difference:
    op = a.op if a.op == b.op else f"{a.op} and {b.op}"
    return Difference(between, step, a.stage, a.module, op, a.value, b.value)


def _compared(request: Request, threads: Sequence[int]) -> Reproducibility:
    first, second = (threads[0], threads[-1]) if threads else (request.threads, request.threads)
    twice, own = _ask(replace(request, runs=2, threads=first))
    (once,), other = _ask(replace(request, threads=second))
    difference = first_difference(twice[0], twice[1], WITHIN) or first_difference(twice[0], once, ACROSS)
    count = sum(len(step) for step in twice[0])
    return Reproducibility(difference, 2 * count, len(once) - 1, (own, other))


def _candidates(
    request: Request, found: Reproducibility, threads: Sequence[int]
) -> list[tuple[str, Request, Sequence[int]]]:
    """Return settings that may end a difference, the likeliest first: line to paste, request, threads."""
    change: Callable[..., Request] = lambda section, **values: replace(  # noqa: E731
        request, config={**request.config, section: {**request.config[section], **values}}
    )
    tried: list[tuple[str, Request, Sequence[int]]] = []
    if len(set(found.threads)) > 1:
        tried.append((f"OMP_NUM_THREADS={found.threads[0]}", request, [found.threads[0]] * 2))
    difference = found.difference
    if difference is not None and difference.stage == "data" and request.config["data"]["num_workers"]:
        tried.append(("--set data.num_workers=0", change("data", num_workers=0), threads))
    if difference is not None and difference.between == ACROSS and not os.environ.get(_HASHES, "random").isdigit():
        # Each process has other hashes: sets of names come in another order.
        tried.append((f"{_HASHES}=0", replace(request, hash_seed="0"), threads))
    if not request.config["training"]["deterministic"]:
        tried.append(("--set training.deterministic=true", change("training", deterministic=True), threads))
    if max(found.threads) > 1:
        tried.append(("OMP_NUM_THREADS=1", request, [1, 1]))
    return tried


def _ask(request: Request) -> tuple[list[Steps], int]:
    """Return the runs of a request in a fresh process, and its threads."""
    try:
        process = subprocess.run(
            [sys.executable, "-m", "xectool.probes.repetition.short_run"],
            input=json.dumps(asdict(request)),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            encoding="utf-8",
            errors="replace",
            env=os.environ | ({_HASHES: request.hash_seed} if request.hash_seed else {}),
        )
    except subprocess.TimeoutExpired:
        raise WorldError(
            f"{request.runs} short runs of {counted(request.steps, 'step')} are not done after {duration(TIMEOUT_S)}",
            where="python -m xectool.probes.repetition.short_run",
            fix="--steps 1 --set data.batch_size=8",
        ) from None
    if process.returncode:
        raise WorldError(
            f"the process of a short run ended with {process.returncode}: {_last_line(process.stderr)}",
            where="python -m xectool.probes.repetition.short_run",
            fix="xectool diagnose environment",
        )
    reply: dict[str, Any] = json.loads(process.stdout)
    if "error" in reply:
        raise _error(reply["error"])
    return [[[Entry(*entry) for entry in step] for step in run] for run in reply["runs"]], int(reply["threads"])


def _error(told: dict[str, str]) -> XecError:
    """Return the error a child told of, as its own kind, so that the exit code is its own."""
    kind = getattr(errors, told["kind"], XecError)
    assert issubclass(kind, XecError)
    return kind(told["problem"], where=told["where"], fix=told["fix"], code=told["code"])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "no message"
