"""G17: how long the compiler takes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from xectool.training.guards.base import Guard, Notice, StepFacts
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress

_ON_CPU = (
    ". On the CPU that takes minutes, and compiled steps were measured slower: --set training.compile=none does without"
)


class CompileTime(Guard):
    """Records begin and end of the first step of a compiled model, which is when it is compiled."""

    code = "G17"

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self.done = parts.execution.compile_mode is None

    def begin(self, progress: Progress) -> Iterator[Notice]:
        """Say that the first step will take its time."""
        if not self.done:
            message = "the first step compiles the model; later runs find it in the cache on disk"
            yield Notice("compile_begin", {}, message + (_ON_CPU if self.parts.execution.device.type == "cpu" else ""))

    def after_step(self, progress: Progress, step: StepFacts) -> Iterator[Notice]:
        """Record the time of the first step and the number of graphs."""
        if self.done:
            return
        self.done = True
        graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        seconds = step.step_s - step.wait_s
        yield Notice("compile_end", {"seconds": seconds, "graphs": graphs}, f"compiled in {seconds:.0f} s")
