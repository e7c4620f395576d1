"""One mode of ``torch.compile`` in this process: time to compile, time of a step, memory, and equality to eager.

Run as ``python -m xectool.probes.compilation.mode`` it reads a request as JSON from stdin and writes the answer to
stdout; every mode has a process of its own, so that none finds what another compiled in memory.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from xectool.config.load import config_from_dict
from xectool.config.root import RunConfig
from xectool.data.batch import EventBatch
from xectool.errors import XecError
from xectool.probes.instruments.bench import Bench
from xectool.probes.loading.events import spread
from xectool.probes.nonfinite.subject import of_config
from xectool.training.process.device import compile_faults, plan_execution
from xectool.training.process.heap import keep_freed_memory
from xectool.training.process.memory import peak_resident_bytes
from xectool.training.stepping.batch_loss import compiled
from xectool.training.symptoms.torch_signs import CompilerLog

_CAPTURED_STEPS = 3  # CUDA graphs are recorded in the second and third step
_PEAK = Path("/proc/self/clear_refs")
MEASURED: Final = "steps are measured"
"""Begins a line of the answer, with the times, before outputs are compared, for which no training takes time."""


@dataclass(frozen=True)
class ModeTime:
    """What a mode costs and gains.

    Attributes:
        mode: ``none`` or a mode of ``torch.compile``.
        error: Why it could not be measured; empty where it was.
        code: Code of that error.
        fix: Line that helps, where the error brought one.
        compile_s: Seconds of the first steps beyond those of later ones.
        step_ms: Milliseconds forward and backward, median.
        spread: Half the distance of the quartiles over the median.
        steps: Measured steps.
        peak_bytes: Largest memory in these steps: allocated on a GPU, resident on the CPU.
        host_peak_bytes: Largest resident memory of the process and its compile processes together.
        max_abs_diff: Largest difference of an output to the eager one.
        max_rel_diff: The same over the largest number of that output.
        cache_hits: Graphs found in the cache on disk.
        cache_misses: Graphs compiled.
        cache_dir: Where that cache is.
        compile_threads: Compile processes that were allowed.
        cudagraph_skips: What CUDA graphs were skipped for.
        cannot_pay: Whether it was ended because compiling takes longer than the whole run without it.
    """

    mode: str
    error: str = ""
    code: str = ""
    fix: str = ""
    compile_s: float = 0.0
    step_ms: float = 0.0
    spread: float = 0.0
    steps: int = 0
    peak_bytes: int = 0
    host_peak_bytes: int = 0
    max_abs_diff: float = 0.0
    max_rel_diff: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_dir: str = ""
    compile_threads: int = 0
    cudagraph_skips: tuple[str, ...] = ()
    cannot_pay: bool = False


def measure_mode(
    config: RunConfig,
    mode: str,
    device: str,
    steps: int,
    seconds: float,
    measured: Callable[[ModeTime], None] = lambda found: None,
) -> ModeTime:
    """Measure a mode on the first batch of a configuration.

    Args:
        config: The configuration.
        mode: ``none`` or a mode of ``torch.compile``.
        device: Where it computes.
        steps: Measured steps.
        seconds: Time after which no further step is begun; one is always measured.
        measured: Called with their times when the steps are, before outputs are compared with eager ones.

    Raises:
        XecError: The mode cannot work here.
    """
    wanted = config.model_copy(update={"training": config.training.model_copy(update={"compile": mode})})
    execution = plan_execution(wanted.training, device)
    subject = of_config(config, None, device, max_events=config.data.batch_size)
    try:
        batch = next(iter(subject.batches()))
        bench = replace(subject.bench, config=wanted, execution=execution)
        _restore_checkpointing(bench)
        skips: list[str] = []
        with CompilerLog(lambda kind, message, **data: skips.append(str(data.get("cause", message)))):
            found = _measured(bench, batch, steps, (seconds, measured))
        return replace(found, cudagraph_skips=tuple(skips))
    finally:
        subject.close()


def _restore_checkpointing(bench: Bench) -> None:
    switch = getattr(bench.model, "set_activation_checkpointing", None)
    if switch is not None:
        switch(bench.config.training.activation_checkpointing)


def _measured(bench: Bench, batch: EventBatch, steps: int, until: tuple[float, Callable[[ModeTime], None]]) -> ModeTime:
    seconds, measured = until
    bench.model.train()
    bench.task.train()
    prepared = bench.prepared([batch])[0]
    counts = bench.counts([prepared])
    training = bench.config.training
    fast = replace(bench, model=compiled(bench.model, bench.execution, training))  # type: ignore[arg-type]
    with compile_faults(bench.execution):
        early = [_step(fast, prepared, counts) for _ in range(_CAPTURED_STEPS)]
    _reset_peak(bench.execution.device)
    times: list[float] = []
    while len(times) < steps and (not times or sum(times) < seconds):
        times.append(_step(fast, prepared, counts))
    peak = _peak_bytes(bench.execution.device)
    middle = statistics.median(times)
    timed = ModeTime(
        mode=bench.execution.compile_mode or "none",
        compile_s=max(0.0, sum(early) - len(early) * middle) if bench.execution.compile_mode else 0.0,
        step_ms=1e3 * middle,
        spread=spread(times),
        steps=len(times),
        peak_bytes=peak,
    )
    measured(timed)
    absolute, relative = (0.0, 0.0) if bench.execution.compile_mode is None else _differences(bench, fast, prepared)
    found = torch._dynamo.utils.counters["inductor"]
    return replace(
        timed,
        max_abs_diff=absolute,
        max_rel_diff=relative,
        cache_hits=int(found["fxgraph_cache_hit"]),
        cache_misses=int(found["fxgraph_cache_miss"]),
        cache_dir=_cache_dir(),
        compile_threads=_compile_threads(),
    )


def _step(bench: Bench, batch: EventBatch, counts: Tensor) -> float:
    device = bench.execution.device
    bench.optimizer.zero_grad(set_to_none=True)
    _wait(device)
    began = time.perf_counter()
    torch.autograd.backward(bench.loss(bench.forward(batch), batch, counts).total)
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _differences(bench: Bench, fast: Bench, batch: EventBatch) -> tuple[float, float]:
    """Return the largest difference of the outputs to eager ones, absolute and relative to the largest number.

    A network that draws random numbers in training is compared in evaluation, which compiles it once more: compiled
    kernels draw other numbers.
    """
    with torch.no_grad():
        first = _outputs(bench, batch)
        moved = replace(batch, step=batch.step + 1)
        random = any(not torch.equal(first[name], value) for name, value in _outputs(bench, moved).items())
        bench.model.train(not random)
        pairs = zip(_outputs(bench, batch).values(), _outputs(fast, batch).values(), strict=True)
        found = [(float((slow - quick).abs().max()), float(slow.abs().max())) for slow, quick in pairs]
        bench.model.train()
    return max(absolute for absolute, _ in found), max(absolute / (size or 1.0) for absolute, size in found)


def _outputs(bench: Bench, batch: EventBatch) -> dict[str, Tensor]:
    return {name: value.double().clone() for name, value in bench.forward(batch).items()}


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif os.access(_PEAK, os.W_OK):
        _PEAK.write_text("5", encoding="utf-8")  # proc(5): resets the high-water mark of resident memory


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return peak_resident_bytes()


def _cache_dir() -> str:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return str(cache_dir())


def _compile_threads() -> int:
    from torch._inductor import config

    return int(config.compile_threads or 0)


def _tell(found: ModeTime) -> None:
    sys.stdout.write(f"{MEASURED} {json.dumps(asdict(found))}\n")
    sys.stdout.flush()


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request: ``config``, ``mode``, ``device``, ``steps`` and ``seconds``."""
    mode = str(request["mode"])
    if torch.device(request["device"]).type == "cpu":
        keep_freed_memory()
    try:
        config = config_from_dict(request["config"], "request")
        steps, seconds = int(request["steps"]), float(request["seconds"])
        result = measure_mode(config, mode, request["device"], steps, seconds, _tell)
    except XecError as error:
        result = ModeTime(mode, error=error.problem, code=error.code, fix=error.fix)
    except (torch.OutOfMemoryError, MemoryError) as error:
        result = ModeTime(mode, error=f"out of memory: {str(error).splitlines()[0]}", code="XT-OOM-GPU")
    return asdict(result)


def run() -> None:
    """Answer the request on stdin, in the last line."""
    sys.stdout.write(json.dumps(main(json.load(sys.stdin))) + "\n")


if __name__ == "__main__":
    run()
