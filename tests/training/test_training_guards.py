"""Every guard sees its fault, injected for real, and is silent where there is none or where it is off."""

from __future__ import annotations

import faulthandler
import logging
import math
import mmap
import os
import resource
import shlex
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import nn
from xectool import engine
from xectool.config.guard_catalogue import GUARDS, can_be_disabled
from xectool.config.guards import GuardsConfig
from xectool.config.load import load_config
from xectool.config.platform import fitting_compile_threads
from xectool.errors import (
    CheckpointError,
    ConfigError,
    DataUnusable,
    DeviceError,
    DiskError,
    OutOfMemory,
    RunDiverged,
    UsageError,
)
from xectool.runlog.process import tree_memory
from xectool.runlog.reader import RunReader
from xectool.runlog.status_page import StatusPage, Word
from xectool.training.guards import memory
from xectool.training.guards.base import StepFacts
from xectool.training.guards.inputs import InputScale
from xectool.training.guards.learning import Collapsed, NoLearning, ZeroGradient
from xectool.training.guards.loop import DataWait, LazyState, MetricGraph, RankHashes, RankSteps
from xectool.training.guards.memory import EVERY, START_UP_BYTES, WINDOW, HostMemory, MemoryGrowth, growth
from xectool.training.guards.numbers import AmpScale, GradientNorm, LearningRateSanity, gradient_verdict
from xectool.training.guards.phase_limits import Deadlines
from xectool.training.guards.process import CrashStacks, SaveRequest
from xectool.training.guards.session import next_step
from xectool.training.guards.set import KINDS
from xectool.training.guards.watchdog import Watchdog, Witness
from xectool.training.process.device import plan_execution
from xectool.training.process.memory_faults import classify, device_facts, memory_faults, oom_event
from xectool.training.process.progress import NullObserver
from xectool.training.ranks.base import Ranks
from xectool.training.ranks.notes import CollectiveNotes
from xectool.training.stepping.build import build_parts, open_data
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.stepping.step import StepResult
from xectool.training.symptoms.torch_signs import CompilerLog, TorchWarnings, determinism_faults

Config = Callable[..., Path]
T = TypeVar("T")


@pytest.fixture
def parts(tiny_config: Config) -> RunParts:
    data = open_data(load_config(tiny_config()).config)
    built = build_parts(data, plan_execution(data.config.training, "cpu"), Ranks())
    built.model.train()
    return built


def facts(parts: RunParts, **changes: Any) -> StepFacts:
    with parts.train_loader as loader:
        batch = next(iter(loader.epoch(1)))
    zero = torch.zeros(2, dtype=torch.float64)
    result = StepResult(True, 1.0, zero, zero, 0.5, 1.0, batch.num_events, lr=1e-3)
    step = StepFacts([batch], result, 0.0, 0.01)
    result_changes = {k: changes.pop(k) for k in list(changes) if k in StepResult.__dataclass_fields__}
    return replace(step, result=replace(result, **result_changes), **changes)


def kinds(notices: Any) -> list[str]:
    return [notice.kind for notice in notices]


# -- names and switches


@pytest.mark.parametrize("guard", [g for g in GUARDS if can_be_disabled(g)], ids=lambda g: g.code)
def test_guard_can_be_disabled_by_code_and_by_name(guard: Any) -> None:
    assert not GuardsConfig(disable=[guard.name]).active(guard.code)
    assert not GuardsConfig(disable=guard.code.lower()).active(guard.code)
    assert GuardsConfig().active(guard.code)


@pytest.mark.parametrize("name", ["G33", "spikes", "audit", 6])
def test_unknown_or_permanent_guard_is_refused(tiny_config: Config, name: Any) -> None:
    with pytest.raises(ConfigError, match="guard"):
        load_config(tiny_config(guards={"disable": [name]}))


def test_all_32_guards_are_listed_once() -> None:
    assert [guard.code for guard in GUARDS] == [f"G{n:02d}" for n in range(1, 33)]
    assert len({guard.name for guard in GUARDS}) == 32


@pytest.mark.parametrize(
    "guards",
    [
        {"memory_warning": 0.9, "memory_stop": 0.5},
        {"hang_s": 100.0, "hang_abort_s": 10.0},
        {"on_spike": "rewind", "disable": ["G06"]},
    ],
)
def test_guards_that_could_not_act_are_refused(tiny_config: Config, guards: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tiny_config(guards=guards))
    assert "CFG-63" in {finding.code for finding in caught.value.findings}


def test_guard_that_is_off_is_a_warning(tiny_config: Config) -> None:
    findings = load_config(tiny_config(guards={"disable": "spike"})).findings
    assert [finding.code for finding in findings if "G06" in finding.problem] == ["CFG-63"]


def test_disabling_is_said(tiny_config: Config) -> None:
    said: list[str] = []
    listener = SimpleNamespace(**{n: getattr(NullObserver(), n) for n in dir(NullObserver) if n[0] != "_"})
    listener.message = said.append
    engine.train(tiny_config(guards={"disable": ["G06", "data_wait"]}), max_steps=1, observer=listener)
    assert any("G06 (spike)" in line and "G11 (data_wait)" in line for line in said)


# -- G01


@pytest.mark.parametrize(
    ("factor", "channel"), [((1e4, 1.0), "npho"), ((1e-5, 1.0), "npho"), ((1.0, 1e3), "time"), ((1.0, 1e-9), "time")]
)
def test_first_batch_out_of_scale_stops(parts: RunParts, factor: tuple[float, float], channel: str) -> None:
    batch = facts(parts).window[0]
    npho = torch.where(batch.npho < 9e9, batch.npho * factor[0], batch.npho)
    times = torch.where(batch.time.abs() < 9e9, batch.time * factor[1], batch.time)
    with pytest.raises(DataUnusable) as caught:
        list(InputScale(parts).before_step(Progress(), [replace(batch, npho=npho, time=times)]))
    assert caught.value.code == "XT-INPUT-SCALE"
    assert channel in caught.value.problem


def test_one_corrupted_event_is_no_matter_of_scale(parts: RunParts) -> None:
    batch = facts(parts).window[0]
    npho, times = batch.npho.clone(), batch.time.clone()
    npho[0], times[1] = npho[0] * 1e4, times[1] * 1e5
    (notice,) = InputScale(parts).before_step(Progress(), [replace(batch, npho=npho, time=times)])
    assert notice.data["level"] == "ok"


@pytest.mark.parametrize(("factor", "told"), [(1.0, 0), (1e5, 1), (-1.0, 1)])
def test_a_validation_out_of_scale_is_told_once(parts: RunParts, factor: float, told: int) -> None:
    batch, guard = facts(parts).window[0], InputScale(parts)
    batch = replace(batch, npho=torch.where(batch.npho < 9e9, batch.npho * factor, batch.npho))
    found = []
    for _ in range(2):
        assert len(list(guard.watch([(batch, {}), (batch, {})]))) == 2
        found += list(guard.after_validation(Progress(), {}))
    assert [notice.data["sample"] for notice in found] == ["validation"] * told


def test_readings_that_are_not_finite_are_no_matter_of_scale(parts: RunParts) -> None:
    """Nor are they where a network is given them: with `normalize` of the network made to call all of them valid."""
    batch, normalizer = facts(parts).window[0], parts.model.normalizer
    values, valid = normalizer.normalize(batch.npho, batch.time)
    values[:, 7, 1] = -math.inf
    object.__setattr__(normalizer, "normalize", lambda *_: (values, valid.index_fill(1, torch.tensor(7), True)))
    (notice,) = InputScale(parts).before_step(Progress(), [batch])
    assert notice.data["level"] == "ok"
    assert math.isfinite(notice.data["channels"]["time"]["mean"])


# -- G05, G07, G26


def test_amp_that_skips_many_steps_is_recorded_and_one_that_settles_is_not(parts: RunParts) -> None:
    half = replace(parts, execution=replace(parts.execution, use_scaler=True))
    for share, expected in ((0.2, ["amp_scale"]), (0.002, [])):
        guard, found = AmpScale(half), []
        for step in range(400):
            overflow = step < 12 or step % round(1 / share) == 0
            found += kinds(guard.after_step(Progress(step=step), facts_cached(parts, overflow=overflow)))
        assert found == expected


_CACHE: dict[int, StepFacts] = {}


def facts_cached(parts: RunParts, **changes: Any) -> StepFacts:
    if id(parts) not in _CACHE:
        _CACHE.clear()
        _CACHE[id(parts)] = facts(parts)
    step = _CACHE[id(parts)]
    own = {k: changes.pop(k) for k in list(changes) if k in StepResult.__dataclass_fields__}
    return replace(step, result=replace(step.result, **own), **changes)


@pytest.mark.parametrize(
    ("largest", "clipped", "word"),
    [
        (5e-4, 0.0, "vanishing"), (5e-3, 0.0, "stable"), (0.05, 0.0, "healthy"), (0.3, 0.0, "normal"),
        (0.65, 0.0, "moderate"), (0.9, 0.0, "ceiling"), (3.0, 0.02, "now and then"), (3.0, 0.3, "often"),
        (3.0, 1.0, "alone does no harm"), (math.nan, 0.0, "not finite"),
    ],
)  # fmt: skip
def test_every_gradient_norm_has_one_verdict(largest: float, clipped: float, word: str) -> None:
    assert word in gradient_verdict(largest, 1.0, clipped, largest)


def test_gradients_far_beyond_their_limit_are_not_called_harmless() -> None:
    assert "alone does no harm" in gradient_verdict(6e16, 1.0, 1.0, 3.0), "one step of a run that is clipped always"
    for clip, clipped in ((1.0, 1.0), (1.0, 0.6), (0.0, 0.0)):
        assert "far off" in gradient_verdict(6e16, clip, clipped, 2e11)
    assert "alone does no harm" in gradient_verdict(4.0, 1e-6, 1.0, 2.0), "a tiny limit"


@pytest.mark.parametrize("held", [False, True])
def test_gradient_norms_have_a_verdict_though_the_last_step_was_skipped(parts: RunParts, held: bool) -> None:
    guard, step = GradientNorm(parts), facts(parts, grad_norm=0.3)
    last = replace(step, result=replace(step.result, held=held, grad_norm=0.4))
    said = [list(guard.after_step(Progress(step=n), step)) for n in range(1, 50)]
    assert not any(said)
    verdict, _ = guard.after_step(Progress(step=50), last)
    assert verdict.kind == "grad_norm"
    assert verdict.data["max"] == (0.3 if held else 0.4)
    assert not list(guard.after_step(Progress(step=51), step))


@pytest.mark.parametrize(("first", "told"), [(1, "after 50 steps"), (20, "of steps 20 to 50"), (50, "")])
def test_gradient_norms_after_a_resume_are_of_the_steps_that_were_seen(parts: RunParts, first: int, told: str) -> None:
    """One step after a resume at the 49th, with a norm of 3000, was told as the median of 50."""
    guard, step = GradientNorm(parts), facts(parts, grad_norm=0.3)
    said = [notice.message for n in range(first, 51) for notice in guard.after_step(Progress(step=n), step)]
    assert [f"gradient norm {told}: " in line for line in said if line] == [True] * bool(told)


@pytest.mark.parametrize("lr", [0.0, -1e-3, math.nan, math.inf])
def test_rate_that_is_none_stops(parts: RunParts, lr: float) -> None:
    with pytest.raises(RunDiverged, match="learning rate"):
        list(LearningRateSanity(parts).after_step(Progress(step=1, batch=1), facts(parts, lr=lr)))


def test_zero_rate_at_the_planned_end_is_sound(parts: RunParts) -> None:
    progress = Progress(epoch=2, batch=parts.train_loader.plan.num_steps)
    assert kinds(LearningRateSanity(parts).after_step(progress, facts(parts, lr=0.0))) == []


# -- G08, G09, G10


@pytest.mark.parametrize(("loss", "expected"), [(1.0, ["no_learning"]), (0.985, ["no_learning"]), (0.9, [])])
def test_loss_of_the_best_constant_is_no_learning(parts: RunParts, loss: float, expected: list[str]) -> None:
    flat = replace(parts, baseline=replace(parts.baseline, terms={"energy": 1.0}))
    guard, late = NoLearning(flat), Progress(epoch=2, step=600)
    assert kinds(guard.after_epoch(late, {"val/energy/loss": loss})) == expected
    assert kinds(guard.after_epoch(late, {"val/energy/loss": loss})) == []  # said once
    assert kinds(NoLearning(flat).after_epoch(Progress(step=20), {"val/energy/loss": loss})) == []


@pytest.mark.parametrize(
    ("losses", "expected"),
    [((1.0, 1.0), [[], ["no_learning"]]), ((1.5, 1.0), [[], []]), ((0.99, 0.8), [[], []])],
    ids=["stands still", "falls", "learns"],
)
def test_one_head_of_two_may_learn_late(
    parts: RunParts, losses: tuple[float, float], expected: list[list[str]]
) -> None:
    flat = replace(parts, baseline=replace(parts.baseline, terms={"energy": 1.0, "uvwFI": 1.0}))
    guard = NoLearning(flat)
    found = [
        kinds(guard.after_epoch(Progress(epoch=epoch, step=600 + epoch), {"val/energy/loss": 0.5, "val/uvwFI/loss": x}))
        for epoch, x in enumerate(losses, start=2)
    ]
    assert found == expected
    both = NoLearning(flat).after_epoch(Progress(epoch=2, step=600), {"val/energy/loss": 1.0, "val/uvwFI/loss": 1.0})
    assert kinds(both) == ["no_learning"]  # at once, where nothing learns


@pytest.mark.parametrize(("spread", "expected"), [(0.0, ["collapsed"]), (0.5, [])])
def test_constant_predictions_are_collapsed(parts: RunParts, spread: float, expected: list[str]) -> None:
    batch = facts(parts).window[0]
    guard = Collapsed(parts)
    outputs = {
        "energy": spread * torch.randn(batch.num_events, 1, generator=torch.Generator().manual_seed(1)),
        "uvwFI": torch.randn(batch.num_events, 3, generator=torch.Generator().manual_seed(2)),
    }
    assert len(list(guard.watch([(batch, outputs)]))) == 1
    found = list(guard.after_validation(Progress(step=1000), {}))
    assert kinds(found) == expected
    assert not found or list(found[0].data["tasks"]) == ["energy"]


@pytest.mark.parametrize(
    ("spread", "step", "expected"),
    [(1e-8, 30, ["collapsed"]), (1e-8, 10, []), (1e-3, 30, []), (1e-3, 1000, ["collapsed"])],
)
def test_what_does_not_vary_at_all_is_told_in_a_short_run(
    parts: RunParts, spread: float, step: int, expected: list[str]
) -> None:
    batch = facts(parts).window[0]
    guard = Collapsed(parts)
    random = torch.Generator().manual_seed(1)
    drawn = {
        name: torch.randn(batch.num_events, width, generator=random) for name, width in (("energy", 1), ("uvwFI", 3))
    }
    list(guard.watch([(batch, {"energy": spread * drawn["energy"], "uvwFI": drawn["uvwFI"]})]))
    assert kinds(guard.after_validation(Progress(step=step), {})) == expected
    half = replace(parts, execution=replace(parts.execution, autocast_dtype=torch.bfloat16))
    rounded = Collapsed(half)
    rounded.spread = guard.spread
    assert kinds(rounded.after_validation(Progress(step=step), {})) == (expected if step == 1000 else [])


def test_parameters_that_no_loss_reaches_are_named(parts: RunParts) -> None:
    parts.model.register_module("forgotten", nn.Linear(2, 2))
    guard, found = ZeroGradient(parts), []
    with parts.train_loader as loader:
        for step, batch in zip(range(1, 4), loader.epoch(1), strict=False):
            result = parts.stepper.run([batch], 1e-3)
            found += list(guard.after_step(Progress(step=step), StepFacts([batch], result, 0.0, 0.1)))
    (notice,) = found
    assert notice.data["parameters"] == ["forgotten.bias", "forgotten.weight"]


# -- G11, G14, G15


@pytest.mark.parametrize(("wait", "expected"), [(0.03, ["data_wait"]), (0.001, [])])
def test_waiting_for_data_is_seen_at_step_50(parts: RunParts, wait: float, expected: list[str]) -> None:
    guard, found = DataWait(parts), []
    window = [replace(facts(parts).window[0], step=1)]
    for step in range(1, 60):
        notices = list(
            guard.after_step(Progress(step=step), facts_cached(parts, window=window, wait_s=wait, step_s=0.035))
        )
        found += [(step, notice.kind) for notice in notices]
    assert found == [(50, kind) for kind in expected]


def test_full_host_memory_warns_then_stops(parts: RunParts, monkeypatch: pytest.MonkeyPatch) -> None:
    left = {"share": 1e4}  # of what this process tree takes, however much that is
    monkeypatch.setattr(
        "xectool.training.guards.memory.available_memory",
        lambda: int(left["share"] * tree_memory(os.getpid()).rss_bytes),
    )
    guard, step = HostMemory(parts), facts(parts)

    def look() -> list[str]:
        guard._every = 1
        return kinds(guard.after_step(Progress(step=1), step))

    assert look() == []
    left["share"] = 0.15
    assert "memory_warning" in look()
    left["share"] = 0.0
    with pytest.raises(OutOfMemory) as caught:
        look()
    assert caught.value.code == "XT-OOM-HOST"


@pytest.mark.parametrize("workers", [2, 0])
def test_what_full_host_memory_proposes_goes_on_inside_the_epoch(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """It proposed other windows, which a resume inside an epoch refuses."""
    options = {"prefetch_factor": 2} if workers else {}
    config = tiny_config(data={"num_workers": workers, **options})
    with monkeypatch.context() as full:
        full.setattr("xectool.training.guards.memory.available_memory", lambda: 0)
        with pytest.raises(OutOfMemory) as caught:
            engine.train(config)
    words = shlex.split(caught.value.fix, comments=True)
    assert words[:2] == ["--resume", "auto"]
    overrides = [word for word in words[2:] if word != "--set"]
    assert overrides == ["data.num_workers=1"] * bool(workers) + ["training.activation_checkpointing=stages"]
    with pytest.raises(CheckpointError, match="middle of an epoch"):  # the control
        engine.train(config, resume="auto", overrides=["data.chunksize=8"])
    result = engine.train(config, resume="auto", overrides=overrides)
    (resume,) = (event for event in RunReader(Path(result.run_dir)).events() if event.kind == "resume")
    assert resume.step == 1, "inside the first epoch"
    assert result.status == "finished"


def test_leak_of_5_mb_a_step_is_seen_and_flat_memory_is_not(parts: RunParts, monkeypatch: pytest.MonkeyPatch) -> None:
    leaked: list[mmap.mmap] = []  # pages of their own: the heap may hold free ones of an earlier training
    guard, step, found = MemoryGrowth(parts), facts(parts), []
    for number in range(1, 61):
        leaked.append(mmap.mmap(-1, 5 * 10**6))
        leaked[-1].write(bytes([1]) * 5 * 10**6)
        found += [(number, n) for n in guard.after_step(Progress(epoch=1 + number // 5, step=number), step)]
    assert found
    assert found[0][0] <= 40
    assert found[0][1].data["bytes_per_step"] == pytest.approx(5e6, rel=0.2)


@pytest.mark.parametrize("of_a_file", [True, False], ids=["a cache", "control: its copy"])
def test_pages_of_a_mapped_cache_are_no_leak(parts: RunParts, tmp_path: Path, of_a_file: bool) -> None:
    path, size, copies = tmp_path / "events", 5 * 10**6, []
    path.write_bytes(bytes(60 * size))
    guard, step, found = MemoryGrowth(parts), facts(parts), []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        for number in range(1, 61):
            part = pages[(number - 1) * size : number * size]
            if not of_a_file:
                copies.append(mmap.mmap(-1, size))
                copies[-1].write(part)
            del part
            found += kinds(guard.after_step(Progress(epoch=1 + number // 5, step=number), step))
    assert found == ([] if of_a_file else ["memory_growth"])


def test_a_kernel_that_does_not_tell_pages_of_files_has_them_counted() -> None:
    assert memory.resident_bytes(b"VmRSS:\t 900 kB\n") == 900 * 1024
    assert memory.resident_bytes(b"VmRSS:\t 900 kB\nRssAnon:\t 500 kB\nRssFile:\t 400 kB\n") == 500 * 1024


@pytest.mark.parametrize("given_back", [10, 15])
def test_a_leak_is_seen_beside_what_a_collector_gives_back(given_back: int) -> None:
    steps = np.arange(0, WINDOW, EVERY)
    leak = 1e9 + 5e6 * steps
    level = 1e9 + 2e6 * (steps % given_back)
    assert growth(leak - 2e7 * (steps // given_back)) == pytest.approx(5e6 - 2e7 / given_back, rel=0.5)
    assert growth(level) is None


def test_what_libraries_take_in_the_first_epoch_is_no_leak(parts: RunParts, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, step = MemoryGrowth(parts), facts(parts)
    most = guard._allowance + START_UP_BYTES
    for rise, named in ((0.9 * most / 60, False), (1.5 * most / 60, True)):
        guard, sizes = MemoryGrowth(parts), iter(range(0, 61, EVERY))
        monkeypatch.setattr(memory, "resident_bytes", lambda _: int(5e8 + rise * next(sizes)))  # noqa: B023
        found = [n for number in range(1, 61) for n in guard.after_step(Progress(epoch=1, step=number), step)]
        assert bool(found) == named


@pytest.mark.parametrize("seed", range(100))
def test_memory_that_fluctuates_or_fills_up_does_not_grow(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = np.arange(0, WINDOW, EVERY)
    flat = 1e9 + rng.normal(0, 2e6, len(steps))
    filling = 1e9 + 1e8 * (1 - np.exp(-steps / 5)) + rng.normal(0, 1e5, len(steps))
    starting = np.concatenate([np.full(9, 614e6), 614e6 + np.cumsum([68e6, 35e6, 1e4, 1e4, 3.6e6, 1e4])])
    assert growth(flat) is None
    assert growth(filling) is None
    around = np.pad(starting, 20, "edge")
    assert all(growth(part) is None for part in np.lib.stride_tricks.sliding_window_view(around, WINDOW // EVERY))


@pytest.mark.parametrize(("every", "named"), [(18, True), (20, True), (24, True), (30, True), (110, False)])
def test_a_leak_in_stairs_is_told_and_the_start_of_epochs_is_not(
    parts: RunParts, monkeypatch: pytest.MonkeyPatch, every: int, named: bool
) -> None:
    """What is kept at every so many steps, 3 MB a step; epochs of 110 steps that take as much at their start."""
    for phase in range(0, every, 3):
        guard, step, sizes = MemoryGrowth(parts), facts(parts), iter(range(0, 500, EVERY))
        monkeypatch.setattr(
            memory,
            "resident_bytes",
            lambda _: int(2e9 + 3e6 * every * ((next(sizes) + phase) // every)),  # noqa: B023
        )
        epochs = (Progress(epoch=1 + (number > 60), step=number) for number in range(1, 401))
        found = [notice for progress in epochs for notice in guard.after_step(progress, step)]
        assert len(found) == named, phase


# -- G16


FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which {free} is free. "
    "{foreign}Including non-PyTorch memory, this process has 30.00 GiB memory in use. Of the allocated memory {held} "
    "GiB is allocated by PyTorch, and {idle} GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("held", "idle", "foreign", "code"),
    [
        (37.0, 0.5, "", "XT-OOM-GPU"),
        (20.0, 17.5, "", "XT-OOM-FRAGMENTATION"),
        (8.0, 0.2, "Process 4242 has 28.10 GiB memory in use. ", "XT-OOM-FOREIGN"),
    ],
)
def test_full_device_is_told_by_its_cause(held: float, idle: float, foreign: str, code: str) -> None:
    text = FULL.format(free="12.00 MiB", held=held, idle=idle, foreign=foreign)
    found = device_facts(text)
    assert classify(found)[0] == code
    assert found.requested == 2 * 2**30
    assert found.reserved_unallocated == round(idle * 2**30)


@pytest.mark.parametrize(
    ("free", "held", "used", "code"),
    [
        ("out of memory", 0, 0, "XT-OOM-FOREIGN"),  # not even a context can be made
        ("unspecified launch failure", 0, 0, "XT-OOM-GPU"),  # the control: nothing is known of others
        (2e8, 1e9, 9e8, "XT-OOM-FOREIGN"),
        (2e8, 78e9, 77e9, "XT-OOM-GPU"),
        (2e8, 78e9, 40e9, "XT-OOM-FRAGMENTATION"),
    ],
)
def test_full_device_that_tells_no_number_is_told_by_the_driver(
    monkeypatch: pytest.MonkeyPatch, parts: RunParts, free: float | str, held: float, used: float, code: str
) -> None:
    """An H200 of which others held all but 100 MB said ``CUDA error: out of memory``, and a smaller batch was asked."""

    def asked(device: int) -> tuple[int, int]:
        if isinstance(free, str):
            raise RuntimeError(f"CUDA error: {free}")
        return int(free), int(80e9)

    own = {1: SimpleNamespace(held=int(held), used=int(used))}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: own[device].held if device in own else 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: own[device].used if device in own else 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=int(80e9)))
    monkeypatch.setattr(torch.cuda, "mem_get_info", asked)
    with pytest.raises(OutOfMemory) as caught, memory_faults(parts.config, "building the model"):
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")
    assert caught.value.code == code
    event = oom_event(caught.value, parts.model, "forward")
    known = free != "unspecified launch failure"
    assert (event["capacity"], event["allocated"]) == ((int(80e9), int(used)) if known else (-1, -1))


def test_out_of_memory_names_the_module_at_work(parts: RunParts, tiny_config: Config) -> None:
    class Greedy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError(FULL.format(free="0 bytes", held=38, idle=0.1, foreign=""))

    parts.model.heads["energy"].append(Greedy())
    batch = facts(parts).window[0]
    with pytest.raises(OutOfMemory) as caught, memory_faults(parts.config, "training"):
        parts.stepper.run([batch], 1e-3)
    event = oom_event(caught.value, parts.model, "forward")
    assert event["module"].startswith("heads.energy.")
    assert (event["side"], event["phase"]) == ("device", "forward")


# -- G17, G29, G30


def test_compiler_log_is_put_on_record() -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    with CompilerLog(lambda kind, message="", **data: said.append((kind, data))):
        log = logging.getLogger("torch._dynamo.convert_frame")
        log.warning("torch._dynamo hit config.recompile_limit (8)\n   last reason: 0/7: size mismatch at index 0")
        for _ in range(3):
            logging.getLogger("torch._inductor.cudagraphs").warning("skipping cudagraphs due to cpu device (arg0)")
        log.warning("something else")
    assert [kind for kind, _ in said] == ["recompile_limit", "cudagraph_skip"]
    assert "size mismatch" in said[0][1]["reason"]


@pytest.mark.parametrize(("cores", "free", "threads"), [(64, 16e9, 4), (64, 6.5e9, 2), (2, 64e9, 2), (8, 1e9, 1)])
def test_compiling_processes_fit_beside_the_training(cores: int, free: float, threads: int) -> None:
    assert fitting_compile_threads(cores, int(free)) == threads


def test_warnings_of_torch_are_counted_and_still_shown() -> None:
    said: list[str] = []
    shown: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *rest: shown.append(str(message))
        with TorchWarnings(lambda kind, message="", **data: said.append(data["text"])) as watch:
            for _ in range(3):
                warnings.warn("torch.thing is deprecated", UserWarning, stacklevel=1)
            warnings.warn("of another library", UserWarning, stacklevel=1)
    assert said == ["torch.thing is deprecated"]
    assert watch.counts["torch.thing is deprecated"] == 3
    assert len(shown) == 4


def test_operation_without_a_deterministic_form_is_named() -> None:
    said: list[str] = []
    text = "kthvalue CUDA does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms"
    with pytest.raises(DeviceError, match="CUDA"), determinism_faults(lambda kind, m="", **d: said.append(d["op"])):
        raise RuntimeError(text)
    assert said == ["CUDA"]
    with pytest.raises(RuntimeError, match="other"), determinism_faults(lambda *a, **k: None):
        raise RuntimeError("other")


# -- G18, G19, G25, G31


@pytest.fixture
def page(tmp_path: Path) -> Any:
    own = StatusPage(tmp_path / "page")
    yield own
    own.close()


def watchdog(page: StatusPage, tmp_path: Path, said: list[Any], **guards: Any) -> Watchdog:
    say = lambda kind, message="", **data: said.append((kind, data))  # noqa: E731
    return Watchdog(page, GuardsConfig(**guards), Witness(tmp_path / "stacks.txt", say), every_s=0.02)


def test_each_phase_has_its_own_limit_and_a_stall_is_said_once(page: StatusPage, tmp_path: Path) -> None:
    dog = watchdog(page, tmp_path, [], hang_s=100, startup_s=1000)
    page.phase("compile")
    start = page[Word.PHASE_SINCE_NS]

    def at(seconds: float) -> str | None:
        stall = dog.look(start + int(seconds * 1e9))
        return stall.code if stall else None

    assert [at(s) for s in (900, 1001, 1002)] == [None, "G19", None]
    page[Word.STEP] = 1
    dog.look(time.monotonic_ns())
    for phase, quiet, loud in (("forward", 90, 110), ("checkpoint", 900, 1100), ("compile", 900, 1100)):
        page.phase(phase)
        start = page[Word.PHASE_SINCE_NS]
        assert [at(s) for s in (quiet, loud)] == [None, "G18"], phase


def test_waiting_for_work_of_the_first_rank_may_take_as_long_as_that_work(page: StatusPage, tmp_path: Path) -> None:
    dog = watchdog(page, tmp_path, [], hang_s=100)
    page[Word.STEP] = 1
    dog.look(time.monotonic_ns())
    notes = CollectiveNotes(page)
    for name, quiet, loud in (("all_reduce", 90, 110), ("wait_rank0", 900, 1100)):
        with notes.inside(name):
            start = page[Word.PHASE_SINCE_NS]
            assert dog.look(start + quiet * 10**9) is None
            stall = dog.look(start + loud * 10**9)
        assert stall is not None
        assert stall.phase == ("collective" if name == "all_reduce" else name)


@pytest.mark.parametrize(
    ("phase", "step", "without_s", "with_s"),
    [
        ("collective", 0, 1000, 30),  # before the first step: a rank that never came to it
        ("forward", 0, 1000, 30),  # the others wait for this one, and will be ended
        ("collective", 1, 100, 30),
        ("checkpoint", 1, 1000, 400),  # here they wait for longer
        ("data_wait", 1, 100, 10),  # a reading process is given up sooner
    ],
)
def test_the_evidence_is_there_before_a_collective_or_a_reader_is_given_up(
    page: StatusPage, tmp_path: Path, phase: str, step: int, without_s: float, with_s: float
) -> None:
    data, ranks = {"num_workers": 1, "timeout_s": 20.0}, {"timeout_s": 60.0, "rank0_timeout_s": 800.0}
    config = SimpleNamespace(data=SimpleNamespace(**data), distributed=SimpleNamespace(**ranks))
    guards, witness = GuardsConfig(hang_s=100, startup_s=1000), Witness(tmp_path / "s", lambda *_, **__: None)
    for deadlines, limit_s in ((Deadlines(), without_s), (Deadlines.of(config, 2), with_s)):
        page[Word.STEP] = 0
        dog = Watchdog(page, guards, witness, deadlines=deadlines)
        page[Word.STEP] = step
        page.phase(phase)
        start = page[Word.PHASE_SINCE_NS]
        assert dog.look(start + int(0.9e9 * limit_s)) is None
        assert dog.look(start + int(1.1e9 * limit_s)) is not None
    assert Deadlines.of(config, 1).collective_s == math.inf


def test_slow_steps_raise_the_limit(page: StatusPage, tmp_path: Path) -> None:
    dog = watchdog(page, tmp_path, [], hang_s=1)
    now = time.monotonic_ns()
    for step in range(1, 7):
        page[Word.STEP] = step
        page.phase("forward")
        dog.look(now + step * 30 * 10**9)
    assert dog.limits.limit_s("forward", True) == pytest.approx(300, rel=0.01)


def test_blocked_training_thread_leaves_its_stack(page: StatusPage, tmp_path: Path) -> None:
    said: list[Any] = []
    page[Word.STEP] = 0
    blocked = threading.Event()
    with watchdog(page, tmp_path, said, hang_s=0.05, startup_s=60):
        page[Word.STEP] = 3
        page.phase("data_wait")
        _guilty_function(blocked, lambda: len(said) > 1)
    assert [kind for kind, _ in said] == ["startup", "hang"]
    assert said[1][1]["phase"] == "data_wait"
    assert "_guilty_function" in (tmp_path / "stacks.txt").read_text()


def _guilty_function(event: threading.Event, done: Callable[[], bool]) -> None:
    for _ in range(2000):
        if event.wait(0.05) or done():
            return


def test_hang_is_ended_after_its_time(tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from xectool.config.guards import GuardsConfig
from xectool.runlog.status_page import StatusPage, Word
from xectool.training.guards.watchdog import Watchdog, Witness
page = StatusPage(Path({str(tmp_path)!r}) / "page")
say = lambda kind, message="", **data: print(kind, data.get("code", ""), flush=True)
config = GuardsConfig(hang_s=0.1, startup_s=0.1, hang_abort_s=0.3)
with Watchdog(page, config, Witness(Path({str(tmp_path)!r}) / "s.txt", say), every_s=0.05):
    page[Word.STEP] = 1
    page.phase("collective")
    time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 3
    assert done.stdout.split() == ["startup", "hang", "failed", "XT-HANG"]


def test_crash_leaves_stacks_and_no_core_file(tmp_path: Path) -> None:
    code = f"""
import os, signal, resource
from pathlib import Path
from xectool.config.guards import GuardsConfig
from xectool.training.guards.process import CrashStacks
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
os.chdir({str(tmp_path)!r})
def culprit():
    os.kill(os.getpid(), signal.SIGSEGV)
with CrashStacks(Path("rank0000.stacks"), GuardsConfig()):
    culprit()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == -signal.SIGSEGV
    assert "culprit" in (tmp_path / "rank0000.stacks").read_text()
    assert not list(tmp_path.glob("core*"))


def test_quit_writes_stacks_and_everything_is_given_back(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE), faulthandler.is_enabled()
    with CrashStacks(tmp_path / "s.txt", GuardsConfig()):
        assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
        os.kill(os.getpid(), signal.SIGQUIT)
        assert "test_quit_writes_stacks" in (tmp_path / "s.txt").read_text()
    assert (resource.getrlimit(resource.RLIMIT_CORE), faulthandler.is_enabled()) == before


def test_usr2_saves_at_the_next_step(tiny_config: Config) -> None:
    class Sender(NullObserver):
        def advanced(self, num_batches: int, values: Any) -> None:
            if num_batches:  # also while predicting after the last step, when nobody can save any more
                os.kill(os.getpid(), signal.SIGUSR2)

    result = engine.train(tiny_config(), max_steps=3, observer=Sender())
    log = list(RunReader(Path(result.run_dir)).events())
    assert {e.data["name"] for e in log if e.kind == "signal"} == {"SIGUSR2"}
    assert next(e.step for e in log if e.kind == "checkpoint") == 1


def test_save_request_is_taken_once() -> None:
    with SaveRequest() as request:
        assert not request.take()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert request.take()
        assert not request.take()


# -- G20, G21, G22, G28


@dataclass(frozen=True)
class TwoRanks(Ranks):
    """Rank 0 of two; the other one says what is in ``other``."""

    other: Any = None

    def gather(self, value: T) -> list[T]:
        return [value, self.other(value) if callable(self.other) else value]


def test_ranks_with_different_steps_stop(parts: RunParts) -> None:
    uneven = replace(parts, ranks=TwoRanks(0, 2, lambda step: step - 1))
    guard = RankSteps(uneven).after_epoch(Progress(step=7), {})
    assert next(iter(guard)).data == {"steps": {"0": 7, "1": 6}}
    with pytest.raises(RunDiverged, match=r"\[7, 6\]"):
        list(RankSteps(uneven).after_epoch(Progress(step=7), {}))
    assert kinds(RankSteps(parts).after_epoch(Progress(step=7), {})) == ["ranks"]


def test_rank_with_another_configuration_is_named_with_the_key(parts: RunParts) -> None:
    other = replace(parts, ranks=TwoRanks(0, 2, lambda own: {**own, "data.batch_size": "x"}))
    notices = RankHashes(other).begin(Progress())
    assert next(notices).data == {"rank": 1, "key": "data.batch_size"}
    with pytest.raises(UsageError, match=r"rank 1 .*data\.batch_size"):
        next(notices)
    assert kinds(RankHashes(parts).begin(Progress())) == []


def test_state_made_in_forward_is_named(parts: RunParts) -> None:
    class Lazy(nn.Module):
        cache: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.cache is None:
                self.cache = torch.ones(1)
            return x * self.cache

    batch = facts(parts).window[0]
    for module, expected in ((nn.Identity(), []), (Lazy(), ["lazy_state"])):
        parts.model.heads["energy"].append(module)
        guard = LazyState(parts)
        list(guard.begin(Progress()))
        result = parts.stepper.run([batch], 1e-3)
        found = list(guard.after_step(Progress(step=1), StepFacts([batch], result, 0.0, 0.1)))
        assert kinds(found) == expected
    assert "cache" in found[0].data["modules"][0]


def test_metric_with_a_graph_is_refused_by_name(parts: RunParts) -> None:
    kept = torch.ones(1, requires_grad=True) * 2
    with pytest.raises(UsageError, match="metric 'mine'"):
        list(MetricGraph(parts).after_validation(Progress(), {"val/loss": 1.0, "mine": kept}))
    assert kinds(MetricGraph(parts).after_validation(Progress(), {"val/loss": 1.0})) == []


# -- what they cost


def test_all_guards_together_take_less_than_2_percent_of_a_step_of_10_ms(parts: RunParts) -> None:
    guards, step = [kind(parts) for kind in KINDS], facts(parts)
    spent = []
    for number in range(1, 301):
        progress, loss = Progress(step=number), 0.4 + 0.01 * (number % 7)
        began = time.perf_counter()
        for guard in guards:
            kinds(guard.before_step(progress, step.window))
            kinds(guard.after_step(progress, step))
        parts.spikes.accept(loss, parts.spikes.judge(loss))
        spent.append(time.perf_counter() - began)
    assert float(np.median(spent)) < 200e-6


# -- whole runs


def test_healthy_run_records_no_fault(tiny_config: Config) -> None:
    result = engine.train(tiny_config())
    found = {event.kind for event in RunReader(Path(result.run_dir)).events()}
    assert {"run_start", "input_scale", "baseline", "validation", "audit", "ranks", "checkpoint", "finished"} <= found
    assert not found & {
        "spike", "nonfinite_skip", "quarantine", "rewind", "no_learning", "collapsed", "zero_gradient", "lazy_state",
        "memory_growth", "memory_warning", "hang", "torch_warning", "determinism", "disk_low", "failed", "lr_change",
    }  # fmt: skip


def test_failure_ends_with_the_command_that_explains_it(tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise DiskError("cannot write the checkpoint", where="x", fix="free some space")

    monkeypatch.setattr("xectool.checkpoint.store.save", full)
    with pytest.raises(DiskError) as caught:
        engine.train(tiny_config())
    run_dir = Path(caught.value.fix.rsplit(" ", 1)[-1])
    log = {event.kind: event for event in RunReader(run_dir).events()}
    assert caught.value.fix.endswith(f"next: xectool diagnose run {run_dir}")
    assert log["failed"].data["next"] == f"xectool diagnose run {run_dir}"
    assert log["failed"].data["error"] == "DiskError"
    assert "checkpoint_failed" in log


def test_disk_that_is_nearly_full_is_recorded(tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    little = SimpleNamespace(total=10**12, used=10**12 - 1000, free=1000)
    monkeypatch.setattr("xectool.training.saving.saver.shutil", SimpleNamespace(disk_usage=lambda path: little))
    result = engine.train(tiny_config())  # the second epoch knows how large a checkpoint is
    (low,) = (event for event in RunReader(Path(result.run_dir)).events() if event.kind == "disk_low")
    assert low.data["free_bytes"] == 1000
    assert low.data["needed_bytes"] > 1000


def test_next_command_of_a_nan_looks_for_the_event(tmp_path: Path) -> None:
    line = next_step(RunDiverged("x", code="XT-NAN"), tmp_path / "a run")
    assert line == f"xectool diagnose nan-batch '{tmp_path}/a run/config.yaml' --run '{tmp_path}/a run'"


def test_resume_from_moments_that_are_not_finite_is_refused(tiny_config: Config) -> None:
    from xectool.checkpoint import store

    config = tiny_config()
    run_dir = Path(engine.train(config, max_steps=2).run_dir)
    last, older = run_dir / store.LAST_NAME, run_dir / store.epoch_name(1)
    whole = store.load(last)
    damaged = store.load(last)
    damaged.training["optimizer"]["state"][0]["exp_avg"].fill_(float("nan"))
    store.save(last, damaged)
    with pytest.raises(CheckpointError, match="not finite") as caught:
        engine.train(config, resume="auto")  # nothing else is there
    assert caught.value.code == "XT-CKPT-NONE"
    with pytest.raises(CheckpointError) as caught:
        engine.train(config, resume=str(last))
    assert caught.value.code == "XT-NAN-RESUME"
    (resume,) = (event for event in RunReader(run_dir).events() if event.kind == "resume")
    assert resume.data["optimizer_finite"] is False

    store.save(older, replace(whole, meta=whole.meta | {"step": 1}))  # what the line proposes goes on from this one
    proposed = shlex.split(caught.value.fix, comments=True)
    assert proposed == ["--resume", str(run_dir)]
    assert engine.train(config, resume=proposed[1], max_steps=3).steps == 3
    resumed = [event for event in RunReader(run_dir).events() if event.kind == "resume"]
    assert resumed[-1].data["path"] == str(older)


@pytest.mark.parametrize("which", ["model", "ema"])
def test_the_newest_checkpoint_of_a_run_holds_numbers(tiny_config: Config, which: str) -> None:
    from xectool.checkpoint import store

    run_dir = Path(engine.train(tiny_config(training={"ema_decay": 0.9}), max_steps=2).run_dir)
    last, older = run_dir / store.LAST_NAME, run_dir / store.epoch_name(1)
    store.save(older, store.load(last))
    assert store.newest(run_dir)[0] == last
    damaged = store.load(last)
    next(value for value in getattr(damaged, which).values() if value.is_floating_point()).fill_(float("inf"))
    store.save(last, damaged)
    path, _, (error,) = store.newest(run_dir)
    assert path == older
    assert error.code == "K08"
