"""A few steps of a training with a digest of everything, in a process of its own.

Run as ``python -m xectool.probes.repetition.short_run`` it reads a request as JSON from stdin and writes the answer
to stdout.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from xectool.config.load import config_from_dict
from xectool.config.root import RunConfig
from xectool.data.batch import EventBatch
from xectool.errors import XecError
from xectool.probes.instruments.op_digests import Entry, OpDigests
from xectool.training.lr_sweep.setup import sweep_parts
from xectool.training.stepping.parts import RunParts
from xectool.training.symptoms.torch_signs import determinism_faults

Steps = list[list[Entry]]
"""What was seen, first what the run began with, then step by step."""
PHASES = {"transfer": "data", "compile": "forward", "collective": "optimizer"}


@dataclass(frozen=True)
class Request:
    """What is run.

    Attributes:
        config: The configuration as plain values.
        source: Its path, for messages.
        device: Device that goes before the configuration's, or None.
        steps: Number of steps.
        runs: How often in this process.
        threads: Threads of an operation; None leaves the machine's choice.
        hash_seed: Seed of the hashes of names in its process; empty leaves that of the environment.
    """

    config: dict[str, Any]
    source: str
    device: str | None
    steps: int
    runs: int
    threads: int | None = None
    hash_seed: str = ""


def short_run(config: RunConfig, device: str | None, steps: int) -> Steps:
    """Return the digests of the first steps of a training, from nothing.

    Raises:
        XecError: The training cannot begin.
    """
    plain = config.model_copy(update={"training": config.training.model_copy(update={"compile": "none"})})
    with sweep_parts(plain, device) as parts, determinism_faults(lambda *_, **__: None):
        parts.model.train()
        parts.task.train()
        begun = [Entry("start", name, "weight", *_told(value)) for name, value in parts.model.state_dict().items()]
        batches, size = parts.train_loader.epoch(1), config.training.grad_accum_steps
        seen: Steps = [begun]
        for _ in range(min(steps, -(-parts.train_loader.plan.num_steps // size))):
            seen.append(_step(parts, list(islice(batches, size))))
        return seen


def _step(parts: RunParts, window: list[EventBatch]) -> list[Entry]:
    digests, stepper = OpDigests(), parts.stepper
    digests.stage = "data"
    for batch in window:
        digests.note("", "batch", [batch.npho, batch.time, *batch.targets.values(), batch.weight])

    def phase(name: str) -> None:
        digests.stage = PHASES.get(name, name)

    stepper.on_phase = phase
    with digests.following(parts.model):
        stepper.run(window, parts.config.training.lr)
    digests.stage = "optimizer"
    for name, value in parts.model.state_dict().items():
        digests.note(name, "updated weight", [value])
    return digests.entries


def _told(value: torch.Tensor) -> tuple[str, str]:
    digests = OpDigests()
    digests.note("", "", [value])
    return digests.entries[0].digest, digests.entries[0].value


def answer(request: Request) -> dict[str, Any]:
    """Return the runs of a request, or the error that kept it from them."""
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    try:
        config = config_from_dict(request.config, request.source)
        runs = [short_run(config, request.device, request.steps) for _ in range(request.runs)]
    except XecError as error:
        told = {"problem": error.problem, "where": error.where, "fix": error.fix, "code": error.code}
        return {"error": {"kind": type(error).__name__, **told}}
    return {"runs": runs, "threads": torch.get_num_threads()}


def main() -> None:
    """Answer the request on stdin."""
    reply = sys.stdout
    sys.stdout = sys.stderr  # what libraries say is no part of the answer
    json.dump(answer(Request(**json.load(sys.stdin))), reply)
    reply.flush()  # the interpreter flushes what is `sys.stdout` when it ends: the last kilobytes were lost at times


if __name__ == "__main__":
    main()
