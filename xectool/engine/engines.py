"""Which engine predicts with a checkpoint: eager PyTorch, a compiled network or ONNX Runtime, and why that one."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

import torch
from torch import Tensor

from xectool.config.platform import Platform
from xectool.config.rules.platform import CompileOnArm, Situation
from xectool.data.events import EventSource
from xectool.engine.exporting import export
from xectool.engine.exports.loading import load_exported
from xectool.engine.loading import LoadedModel, served_in_order
from xectool.errors import DeviceError, DiskError, OutputsDiffer, UsageError, XecError, unknown_choice
from xectool.export.network import ExportedRegressor, ExportedSensorModel
from xectool.findings import Finding, Severity
from xectool.training.process.device import Execution, compile_faults, plan_execution
from xectool.training.stepping.batch_loss import compiled
from xectool.training.stepping.evaluate import Forward, in_float32

AUTO, EAGER, COMPILED, ONNX = "auto", "eager", "compiled", "onnx"
ENGINES: Final = (AUTO, EAGER, COMPILED, ONNX)
RIVALS: Final = {"cuda": COMPILED}
"""What may be faster than eager, by the kind of device.

On a CPU nothing: by ``benchmarks.prediction`` ONNX Runtime has 0.9 to 1.1 of its rate in batches that fit the cache,
and getting it ready takes minutes and as much memory again.
"""
PREPARING_S: Final = {COMPILED: 300.0}
"""About what getting ready takes on two CPU cores, by ``benchmarks.prediction``; not measured on a GPU."""
LARGEST_SHARE: Final = 0.1
"""Of the eager prediction that getting another engine ready may take."""
FEWEST_BATCHES: Final = 300
"""Below, timing a trial batch costs more than 1 % of the prediction."""
_LEAST_GAIN: Final = 1.05  # what two timings of the same engine differ by
_TIMINGS: Final = 2
_LARGEST_DIFFERENCE: Final = 1e-4  # of the largest output


@dataclass(frozen=True)
class Request:
    """What is to be predicted.

    Attributes:
        model: The file of the checkpoint, as it was named.
        weights: Which of its weights.
        engine: One of :data:`ENGINES`.
        batch_size: Events in one forward pass.
    """

    model: Path
    weights: str
    engine: str
    batch_size: int


@dataclass(frozen=True)
class Engine:
    """What computes.

    Attributes:
        loaded: The model in the form that this engine takes.
        forward: Computes a batch; called as the network is.
        reason: Why this one.
    """

    loaded: LoadedModel
    forward: Forward
    reason: str


@dataclass(frozen=True)
class _Trial:
    """One batch on which engines are timed."""

    inputs: tuple[Tensor, ...]
    execution: Execution

    def seconds(self, forward: Forward) -> float:
        """Return what the batch takes once everything is warm."""
        self._run(forward)
        return min(self._timed(forward) for _ in range(_TIMINGS))

    def difference(self, first: Forward, second: Forward) -> float:
        """Return the largest difference of an output, over the largest number of that output."""
        wanted, found = in_float32(self._run(first)), in_float32(self._run(second))
        pairs = [(wanted[name], found[name]) for name in wanted if wanted[name].is_floating_point()]
        return max(float((a - b).abs().max() / a.abs().max().clamp_min(1e-30)) for a, b in pairs)

    @torch.inference_mode()
    def _run(self, forward: Forward) -> dict[str, Tensor]:
        with self.execution.autocast():
            found = forward(*self.inputs)
        if self.execution.device.type == "cuda":
            torch.cuda.synchronize(self.execution.device)
        return found

    def _timed(self, forward: Forward) -> float:
        began = time.perf_counter()
        self._run(forward)
        return time.perf_counter() - began


def check_engine(name: str) -> None:
    """Refuse an engine that does not exist.

    Raises:
        UsageError: The name is unknown.
    """
    if name not in ENGINES:
        raise unknown_choice("engine", name, ENGINES, "--engine")


def _own_engine(loaded: LoadedModel, asked: str) -> Engine:
    """Return an exported file as it is."""
    if asked != AUTO:
        raise UsageError(
            f"--engine {asked} has no effect on an exported file: its own runtime computes it",
            where=f"--engine {asked}",
            fix="leave out --engine, or predict with the checkpoint",
        )
    ran_by = ", ".join(cast(ExportedRegressor | ExportedSensorModel, loaded.network).runtime.providers)
    return Engine(loaded, loaded.network, f"the format of the file, run by {ran_by}")


def choose_engine(loaded: LoadedModel, request: Request, source: EventSource) -> Engine:
    """Return what predicts: what is asked for; under ``auto`` eager, unless the device has a rival (:data:`RIVALS`).

    A rival is only tried where getting it ready takes less than :data:`LARGEST_SHARE` of the eager prediction, as timed
    on the first batch. It is taken if it is faster on that batch.

    Args:
        loaded: A checkpoint, eager, or an exported file in its own runtime.
        request: What is asked for.
        source: The events.

    Raises:
        XecError: The engine that is asked for cannot work here, or gives other numbers.
    """
    if loaded.engine != EAGER:
        return _own_engine(loaded, request.engine)
    loaded.network.eval()
    if request.engine == EAGER:
        return Engine(loaded, loaded.network, "asked for")
    if request.engine != AUTO:
        return _prepared(request.engine, loaded, request, source)
    other = RIVALS.get(loaded.execution.device.type)
    if other is None:
        return Engine(
            loaded, loaded.network, f"on a {loaded.execution.device.type.upper()} no other is faster in batches"
        )
    num_batches = -(-source.num_events // request.batch_size)
    if num_batches < FEWEST_BATCHES:
        reason = f"{source.num_events} events are too few to get {other} ready for"
        return Engine(loaded, loaded.network, reason)
    return _raced(other, loaded, request, source)


def _raced(other: str, loaded: LoadedModel, request: Request, source: EventSource) -> Engine:
    """Return the faster of eager and another engine, where it is worth asking."""
    trial = _trial(loaded, request, source)
    num_batches = source.num_events / request.batch_size
    eager_s = trial.seconds(loaded.network)
    took = f"{source.num_events} events take about {eager_s * num_batches:.0f} s"
    if PREPARING_S[other] > LARGEST_SHARE * eager_s * num_batches:
        reason = f"{took}, and getting {other} ready about {PREPARING_S[other]:.0f} s"
        return Engine(loaded, loaded.network, reason)
    try:
        found = _prepared(other, loaded, request, source)
    except XecError as error:
        note = Finding(error.code, Severity.WARNING, f"{other}: {error.problem}", error.where, (), "--engine eager")
        noted = replace(loaded, notes=(*loaded.notes, note))
        return Engine(noted, loaded.network, f"{other} cannot be used here: {error.problem}")
    gain = eager_s / trial.seconds(found.forward)
    if gain < _LEAST_GAIN:
        return Engine(loaded, loaded.network, f"{other} has {gain:.2f} of its rate on the first batch")
    return Engine(found.loaded, found.forward, f"{gain:.2f} of the eager rate on the first batch; {took} eagerly")


def _prepared(name: str, loaded: LoadedModel, request: Request, source: EventSource) -> Engine:
    if name == ONNX:
        found = _as_onnx(loaded, request)
        return Engine(found, found.network, "asked for")
    with _told_of_the_option():
        forward = _as_compiled(loaded, min(request.batch_size, source.num_events))
        difference = _trial(loaded, request, source).difference(loaded.network, forward)
    if not difference <= _LARGEST_DIFFERENCE:  # NaN must count as different
        raise OutputsDiffer(
            f"the compiled network gives other numbers: {difference:.2g} of the largest",
            where="--engine compiled",
            fix="--engine eager",
            code="XT-COMPILE-DIFFERS",
        )
    return Engine(replace(loaded, engine=COMPILED), forward, "asked for")


def _as_onnx(loaded: LoadedModel, request: Request) -> LoadedModel:
    """Return the checkpoint in ONNX Runtime: exported, compared on ordinary and on edge events, and opened.

    Raises:
        XecError: It cannot be exported, or gives other numbers.
    """
    if loaded.execution.device.type != "cpu":
        raise UsageError(
            f"--engine {ONNX} exports a checkpoint for the CPU, and this one predicts on {loaded.execution.device}",
            where=f"--engine {ONNX}",
            fix=f"--engine {COMPILED}, or --device cpu",
        )
    with tempfile.TemporaryDirectory(prefix="xectool-") as folder:
        target = Path(folder) / "network.onnx"
        try:
            export(request.model, to=ONNX, output=target, weights=request.weights, names=loaded.told)
        except DiskError as error:
            fix = f"export TMPDIR=$HOME   # or another disk with space; or --engine {EAGER}"
            raise DiskError(error.problem, where=error.where, fix=fix, code=error.code) from error
        return load_exported(target, ONNX, "auto", "cpu")


def _as_compiled(loaded: LoadedModel, batch_size: int) -> Forward:
    """Return the network compiled for whole batches; the last, shorter one is computed eagerly, not compiled for."""
    section = loaded.config.training.model_copy(update={"compile": "default", "amp": "off"})
    wanted = loaded.config.model_copy(update={"training": section})
    for found in CompileOnArm().check(Situation(wanted, Platform.detect())):
        if found.severity is Severity.ERROR:
            problem = f"--engine {COMPILED} needs triton on ARM ({platform.machine()}), which cannot be imported"
            raise UsageError(problem, where=f"--engine {COMPILED}", fix=f"--engine {EAGER}", code=found.code)
    execution = plan_execution(section, str(loaded.execution.device))
    fast = compiled(loaded.network, execution, section)

    def forward(*inputs: Tensor) -> dict[str, Tensor]:
        if len(inputs[0]) != batch_size:
            outputs: dict[str, Tensor] = loaded.network(*inputs)
            return outputs
        with compile_faults(execution):
            return fast(*inputs)

    return forward


@contextmanager
def _told_of_the_option() -> Iterator[None]:
    """Name the option in place of the key of a training."""
    try:
        yield
    except DeviceError as error:
        where, fix = f"--engine {COMPILED}", f"--engine {EAGER}"
        raise DeviceError(error.problem, where=where, fix=fix, code=error.code) from error


def _trial(loaded: LoadedModel, request: Request, source: EventSource) -> _Trial:
    """Return the first batch, prepared as it will be predicted."""
    with served_in_order(loaded, source.first(request.batch_size), request.batch_size) as loader:
        batch = next(iter(loader.epoch(0)))
    prepared = loaded.task.prepare(batch.to(loaded.execution.device))
    return _Trial(loaded.task.inputs(prepared), loaded.execution)
