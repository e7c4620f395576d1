"""Time and memory of modules add up to those of the step, and a slow or large module is named."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from xectool import engine
from xectool.cli import app
from xectool.cli.boundary import run as run_cli
from xectool.cli.diagnose import modules as modules_command
from xectool.config.load import load_config
from xectool.probes import module_costs
from xectool.probes.module_costs import measure
from xectool.probes.nonfinite.subject import Subject, of_config

Write = Callable[..., Path]
LONG_S = 1000.0
passed_s = [0.0]


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s  # type: ignore[attr-defined]
        passed_s[0] += forward_s
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None, None]:
        passed_s[0] += ctx.backward_s  # type: ignore[attr-defined]
        return grad, None, None


class Slow(nn.Module):
    """Takes its time forward or backward, by the clock of the measurement."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.times = (forward_s, backward_s)

    def forward(self, x: Tensor) -> Tensor:
        return _Slow.apply(x, *self.times)


class Large(nn.Module):
    """Keeps ten megabytes for the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.flatten()[0].expand(2_500_000).clone()
        return x + wide.exp().mean() * 0


@pytest.fixture
def subject(write_config: Write) -> Subject:
    return of_config(load_config(write_config()).config, None, "cpu", max_events=4)


@pytest.mark.parametrize(("forward_s", "backward_s"), [(LONG_S, 0.0), (0.0, LONG_S)])
def test_slow_module_is_first_with_its_own_time(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, forward_s: float, backward_s: float
) -> None:
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + passed_s[0])
    monkeypatch.setattr("xectool.probes.module_costs.time", clock)
    head = subject.bench.model.heads["energy"]
    head[1] = nn.Sequential(head[1], Slow(forward_s, backward_s))
    report = measure(subject.bench, list(subject.batches())[:1], steps=3, warmup=1)
    first = report.modules[0]
    assert first.module == "heads.energy.1.1"
    assert first.forward_s >= forward_s
    assert first.backward_s >= backward_s
    assert first.forward_s + first.backward_s < LONG_S * 1.5
    assert sum(cost.share for cost in report.modules) == pytest.approx(1.0)


def test_clocks_are_warmed_up_too(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, clocked = [], module_costs._clocked
    monkeypatch.setattr(module_costs, "_clocked", lambda *arguments: calls.append(1) or clocked(*arguments))
    measure(subject.bench, list(subject.batches())[:1], steps=2, warmup=3)
    assert len(calls) == 5


def test_what_is_kept_for_the_backward_pass_is_counted_once(subject: Subject) -> None:
    head = subject.bench.model.heads["energy"]
    head[1] = nn.Sequential(head[1], Large())
    report = measure(subject.bench, list(subject.batches())[:1], steps=1, warmup=0)
    largest = max(report.modules, key=lambda cost: cost.activation_bytes)
    assert largest.module == "heads.energy.1.1"
    assert 10_000_000 <= largest.activation_bytes < 10_100_000


def test_times_of_modules_add_up_to_the_measured_step(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()  # between two readings of the clock passes the same; every other one is the clocks' own
    monkeypatch.setattr(
        "xectool.probes.module_costs.time", SimpleNamespace(perf_counter=lambda: 1e-3 * float(next(ticks)))
    )
    report = measure(subject.bench, list(subject.batches())[:1], steps=1, warmup=1)  # medians do not add up
    whole = sum(cost.forward_s + cost.backward_s for cost in report.modules)
    assert 0.45 * report.measured_step_s < whole <= report.measured_step_s
    parameters = sum(cost.parameters for cost in report.modules)
    assert 0 < parameters <= sum(p.numel() for p in subject.bench.model.parameters())


@pytest.mark.parametrize("kind", ["regressor", "mae", pytest.param("inpainter", marks=pytest.mark.slow)])
def test_command_line_shows_the_modules_of_every_kind(
    write_config: Write, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["diagnose", "modules", str(write_config(kind)), "--steps", "1", "--warmup", "0"]
    assert run_cli(app.app, [*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["modules"][0]["forward_s"] + result["modules"][0]["backward_s"] > 0
    assert {"events", "step_s", "overhead", "activation_bytes", "largest"} <= result.keys()
    assert run_cli(app.app, [*arguments]) == 0
    shown = capsys.readouterr().err
    assert result["largest"][0].split(".")[0] in shown
    assert "with clocks" in shown
    assert "% of forward and backward" in shown, "the update and the wait for data are not measured"


def test_clocks_that_seem_to_save_time_are_noise(
    trained: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    result = engine.diagnose.modules(trained[1].parent, steps=1, warmup=0)
    for overhead, said in ((-0.012, "1 % less, which is the noise"), (0.1, "10 % more")):
        modules_command._show(Console(stderr=True, width=120), replace(result, overhead=overhead))
        assert said in " ".join(capsys.readouterr().err.split())


def test_modules_of_a_run_are_measured_with_its_configuration(trained: tuple[Path, Path]) -> None:
    result = engine.diagnose.modules(trained[1].parent, steps=1, warmup=0)
    assert any(cost.module == "heads.energy.6" for cost in result.modules)
