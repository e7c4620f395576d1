"""Each guard with its fault injected: with the guard the harm is kept off or is on record, without it neither.

The harm of faults that only cost time or memory is that nobody knows; there the control shows a record without a word.
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from xectool.config.load import load_config
from xectool.errors import DataUnusable, OutOfMemory, RunDiverged, UsageError, XecError
from xectool.training.guards.base import StepFacts
from xectool.training.guards.report import Reporter
from xectool.training.guards.session import GuardSession
from xectool.training.guards.set import GuardSet
from xectool.training.process.device import plan_execution
from xectool.training.process.memory_faults import memory_faults, oom_event
from xectool.training.process.progress import NullObserver
from xectool.training.ranks.base import Ranks
from xectool.training.record.event_audit import EventAudit
from xectool.training.stepping.build import build_parts, open_data
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.stepping.step import StepResult
from xectool.training.symptoms.nonfinite import weights_are_finite

Config = Callable[..., Path]
ENERGY = {"energy": {"enabled": True, "scale": "auto", "shift": "auto"}, "uvwFI": {"enabled": False}}


@dataclass
class Record:
    """Stands in for the run's record."""

    kinds: list[str] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def event(self, kind: str, message: str = "", /, **data: Any) -> None:
        self.kinds.append(kind)
        self.events.append((kind, data))


@dataclass
class Run:
    """A run of which only the guards' moments happen."""

    parts: RunParts
    record: Record = field(default_factory=Record)

    @property
    def guards(self) -> GuardSet:
        return GuardSet(self.parts, Reporter(self.record, NullObserver()))  # type: ignore[arg-type]

    def batch(self) -> Any:
        with self.parts.train_loader as loader:
            return next(iter(loader.epoch(1)))

    def fact(self, batch: Any, **changes: Any) -> StepFacts:
        sums = changes.pop("sums", torch.zeros(2, dtype=torch.float64))
        known = {k: changes.pop(k) for k in list(changes) if k in StepResult.__dataclass_fields__}
        result = replace(StepResult(True, 1.0, sums, torch.ones(2), 0.5, 1.0, batch.num_events, lr=1e-3), **known)
        return replace(StepFacts([batch], result, 0.0, 0.01), **changes)


@pytest.fixture
def build(tiny_config: Config) -> Callable[..., Run]:
    def make(disabled: list[str]) -> Run:
        data = open_data(load_config(tiny_config(guards={"disable": disabled})).config)
        parts = build_parts(data, plan_execution(data.config.training, "cpu"), Ranks())
        parts.model.train()
        return Run(parts)

    return make


@dataclass(frozen=True)
class TwoRanks(Ranks):
    """Rank 0 of two; the other one differs."""

    def gather(self, value: Any) -> list[Any]:
        return [value, value - 1 if isinstance(value, int) else {**value, "data": "other"}]


def out_of_scale(run: Run, _: pytest.MonkeyPatch) -> None:
    batch = run.batch()
    npho = torch.where(batch.npho < 9e9, batch.npho * 1e5, batch.npho)
    run.guards.before_step(Progress(), [replace(batch, npho=npho)])


def float16_skips(run: Run, _: pytest.MonkeyPatch) -> None:
    half = Run(replace(run.parts, execution=replace(run.parts.execution, use_scaler=True)), run.record)
    guards, batch = half.guards, run.batch()
    for step in range(200):
        guards.after_step(Progress(step=step), half.fact(batch, overflow=step % 5 == 0))


def norms_unseen(run: Run, _: pytest.MonkeyPatch) -> None:
    guards, batch = run.guards, run.batch()
    for step in range(1, 52):
        guards.after_step(Progress(step=step), run.fact(batch, grad_norm=90.0, clip_coef=0.01))


def flat_loss(run: Run, _: pytest.MonkeyPatch) -> None:
    flat = replace(run.parts, baseline=replace(run.parts.baseline, terms={"energy": 1.0}))
    Run(flat, run.record).guards.after_epoch(Progress(epoch=2, step=600), {"val/energy/loss": 1.0})


def constant_predictions(run: Run, _: pytest.MonkeyPatch) -> None:
    guards, batch = run.guards, run.batch()
    outputs = {"energy": torch.zeros(batch.num_events, 1), "uvwFI": torch.zeros(batch.num_events, 3)}
    list(guards.watch([(batch, outputs)]))
    guards.after_validation(Progress(step=1000), {})


def forgotten_module(run: Run, _: pytest.MonkeyPatch) -> None:
    run.parts.model.register_module("forgotten", nn.Linear(2, 2))
    guards, batch = run.guards, run.batch()
    for step in range(1, 4):
        result = run.parts.stepper.run([batch], 1e-3)
        guards.after_step(Progress(step=step), StepFacts([batch], result, 0.0, 0.1))


def starving_loop(run: Run, _: pytest.MonkeyPatch) -> None:
    guards, batch = run.guards, replace(run.batch(), step=1)
    for step in range(1, 60):
        guards.after_step(Progress(step=step), run.fact(batch, wait_s=0.03, step_s=0.04))


def full_host(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xectool.training.guards.memory.available_memory", lambda: 0)
    run.guards.after_step(Progress(step=1), run.fact(run.batch()))


def leak(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter(range(10**9, 10**12, 10**7))
    monkeypatch.setattr("xectool.training.guards.memory.resident_bytes", lambda status: next(sizes))
    guards, batch = run.guards, run.batch()
    for step in range(1, 61):
        guards.after_step(Progress(epoch=1 + step // 5, step=step), run.fact(batch))


def slow_compiler(run: Run, _: pytest.MonkeyPatch) -> None:
    compiled = Run(replace(run.parts, execution=replace(run.parts.execution, compile_mode="default")), run.record)
    guards, batch = compiled.guards, run.batch()
    guards.begin(Progress())
    for step in (1, 2):
        guards.after_step(Progress(step=step), run.fact(batch, wait_s=1.0, step_s=61.0))


def uneven_ranks(run: Run, _: pytest.MonkeyPatch) -> None:
    Run(replace(run.parts, ranks=TwoRanks(0, 2)), run.record).guards.after_epoch(Progress(step=7), {})


def other_data_on_a_rank(run: Run, _: pytest.MonkeyPatch) -> None:
    Run(replace(run.parts, ranks=TwoRanks(0, 2)), run.record).guards.begin(Progress())


def lazy_module(run: Run, _: pytest.MonkeyPatch) -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.ones(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.table = torch.ones(x.shape[0], 1)  # the same name, another size
            return x * self.table

    run.parts.model.heads["energy"].append(Lazy())
    guards, batch = run.guards, run.batch()
    guards.begin(Progress())
    result = run.parts.stepper.run([batch], 1e-3)
    guards.after_step(Progress(step=1), StepFacts([batch], result, 0.0, 0.1))


def no_rate(run: Run, _: pytest.MonkeyPatch) -> None:
    run.guards.after_step(Progress(step=1, batch=1), run.fact(run.batch(), lr=0.0))


def metric_with_graph(run: Run, _: pytest.MonkeyPatch) -> None:
    sums = torch.ones(2, requires_grad=True) * 2
    run.guards.after_step(Progress(step=1), run.fact(run.batch(), sums=sums))


def test_growth_names_what_keeps_the_graphs_of_earlier_steps(
    build: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, losses = build([]), list[torch.Tensor]()
    gc.unfreeze()  # what a test before left to the collector is left out of its answers
    losses += [next(run.parts.model.parameters()).square().sum() for _ in range(30)]
    leak(run, monkeypatch)
    told = next(event for event in run.record.events if event[0] == "memory_growth")
    assert told[1]["kept_graphs"] == 30
    assert told[1]["holder"].startswith("losses of test_growth_names_what_keeps")
    losses.clear()
    control = build([])
    leak(control, monkeypatch)
    told = next(event for event in control.record.events if event[0] == "memory_growth")
    assert (told[1]["kept_graphs"], told[1]["holder"]) == (0, "")


Fault = Callable[[Run, pytest.MonkeyPatch], None]
CASES: dict[str, tuple[Fault, str, type[XecError] | None]] = {
    "G01": (out_of_scale, "input_scale", DataUnusable),
    "G05": (float16_skips, "amp_scale", None),
    "G07": (norms_unseen, "grad_norm", None),
    "G08": (flat_loss, "no_learning", None),
    "G09": (constant_predictions, "collapsed", None),
    "G10": (forgotten_module, "zero_gradient", None),
    "G11": (starving_loop, "data_wait", None),
    "G14": (full_host, "memory_warning", OutOfMemory),
    "G15": (leak, "memory_growth", None),
    "G17": (slow_compiler, "compile_end", None),
    "G20": (uneven_ranks, "ranks", RunDiverged),
    "G21": (other_data_on_a_rank, "hash_mismatch", UsageError),
    "G22": (lazy_module, "lazy_state", None),
    "G26": (no_rate, "", RunDiverged),
    "G28": (metric_with_graph, "metric_graph", UsageError),
}


@pytest.mark.parametrize("code", CASES)
def test_fault_is_seen_with_its_guard_and_passes_without(
    build: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    fault, kind, error = CASES[code]
    noise = [other for other in ("G11", "G14", "G15") if other != code]
    guarded, bare = build(noise), build([*noise, code])
    if error is None:
        fault(guarded, monkeypatch)
    else:
        with pytest.raises(error):
            fault(guarded, monkeypatch)
    assert not kind or kind in guarded.record.kinds
    fault(bare, monkeypatch)
    assert kind not in bare.record.kinds


def poisoned(run: Run, where: str) -> bool:
    """Take a step whose loss, or whose gradient alone, is not finite; return whether the weights are still sound."""
    batch = run.batch()
    if where == "loss":
        batch.weight[0] = math.nan
    else:
        run.parts.model.heads["energy"][-1].weight.register_hook(lambda grad: grad * math.nan)
    run.parts.stepper.run([batch], 1e-3)
    return weights_are_finite(run.parts.model)


@pytest.mark.parametrize(("where", "needed"), [("loss", ["G02", "G03"]), ("gradient", ["G03"])])
def test_without_its_guard_a_step_that_is_not_finite_ruins_the_weights(
    build: Callable[..., Run], where: str, needed: list[str]
) -> None:
    assert poisoned(build([]), where)
    assert not poisoned(build(needed), where)


def test_rate_that_is_no_number_ruins_the_weights(build: Callable[..., Run]) -> None:
    run = build(["G26"])
    run.parts.stepper.run([run.batch()], math.nan)
    assert not weights_are_finite(run.parts.model)


def test_event_served_twice_shows_in_the_audit_and_not_in_the_number_of_events(build: Callable[..., Run]) -> None:
    run = build([])
    plan = run.parts.train_loader.plan
    with run.parts.train_loader as loader:
        batches = list(loader.epoch(1))
    twice = [batches[0], batches[0].take(np.arange(batches[0].num_events)), *batches[2:]]
    twice[1] = replace(twice[1], step=1)
    for served, expected in ((batches, 0), (twice, batches[0].num_events)):
        audit = EventAudit(run.parts.train_loader)
        for batch in served:
            audit.add([batch])
        assert audit.duplicates == expected
        assert sum(batch.num_events for batch in served) == plan.num_events


def test_without_the_classifier_a_full_device_names_no_setting(build: Callable[..., Run]) -> None:
    config = build([]).parts.config
    text = "CUDA out of memory. Tried to allocate 2.00 GiB."
    with pytest.raises(torch.OutOfMemoryError) as bare:
        raise torch.OutOfMemoryError(text)
    assert "--set" not in str(bare.value)
    with pytest.raises(OutOfMemory) as told, memory_faults(config, "training"):
        raise torch.OutOfMemoryError(text)
    assert "--set data.batch_size=" in told.value.fix


@pytest.mark.parametrize("text", [
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
    "HIP out of memory. Tried to allocate 1.12 GiB",
])  # fmt: skip
def test_a_library_beside_torch_that_finds_no_memory_has_filled_the_device_too(
    build: Callable[..., Run], text: str
) -> None:
    parts = build([]).parts
    with pytest.raises(OutOfMemory) as told, memory_faults(parts.config, "training"):
        raise RuntimeError(text)
    assert told.value.code == "XT-OOM-GPU"
    assert oom_event(told.value, parts.model, "forward")["side"] == "device"
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_EXECUTION_FAILED"), memory_faults(parts.config, "training"):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED")


@pytest.mark.parametrize("disabled", [[], ["G29"]])
def test_warnings_of_torch_are_on_record_only_with_their_guard(
    build: Callable[..., Run], tmp_path: Path, disabled: list[str]
) -> None:
    run = build(disabled)
    with session(run, tmp_path), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("torch.thing is deprecated", UserWarning, stacklevel=1)
    assert ("torch_warning" in run.record.kinds) == (not disabled)


@pytest.mark.parametrize("disabled", [[], ["G31"]])
def test_core_files_are_forbidden_only_with_their_guard(
    build: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disabled: list[str]
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.setrlimit", lambda which, values: limits.append(values))
    with session(build(disabled), tmp_path):
        assert bool(limits) == (not disabled)
    assert not limits or limits[0][0] == 0


@pytest.mark.parametrize("disabled", [[], ["G18", "G19"]])
def test_stall_is_looked_for_only_with_its_guard(
    build: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disabled: list[str]
) -> None:
    started: list[str] = []
    monkeypatch.setattr("xectool.training.guards.watchdog.Watchdog._run", lambda dog: started.append("watch"))
    with session(build(disabled), tmp_path):
        assert bool(started) == (not disabled)


def session(run: Run, tmp_path: Path) -> Any:
    """Return the guards around a whole training, with a record of their own."""
    from xectool.runlog.writer import RunWriter

    writer = RunWriter(tmp_path / "run")
    own = SimpleNamespace(run_dir=writer.run_dir, attempt=writer.attempt, status=writer.status, event=run.record.event)
    return _closing(GuardSession(run.parts, own, NullObserver()), writer)  # type: ignore[arg-type]


class _closing:  # noqa: N801
    def __init__(self, inner: Any, writer: Any) -> None:
        self.inner, self.writer = inner, writer

    def __enter__(self) -> Any:
        return self.inner.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self.inner.__exit__(*exception)
        self.writer.close()
