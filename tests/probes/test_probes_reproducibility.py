"""Faults that make two runs differ are put in for real, and the first operation that differs is named."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from xectool import engine
from xectool.config.load import config_from_dict, load_config
from xectool.data.loader import EventLoader
from xectool.errors import WorldError
from xectool.probes.instruments.op_digests import Entry
from xectool.probes.repetition import reproducibility
from xectool.probes.repetition.reproducibility import WITHIN, Difference, first_difference
from xectool.probes.repetition.short_run import Request, Steps, short_run
from xectool.training.stepping import build

STEPS = 2
pytestmark = pytest.mark.usefixtures("shallow_module")


def runs(path: Path) -> Difference | None:
    config = load_config(path).config
    return first_difference(short_run(config, "cpu", STEPS), short_run(config, "cpu", STEPS), WITHIN)


def inner(model: nn.Module) -> tuple[str, nn.Module]:
    """The last layer norm that is trained, and its name; heads without a task are there and never run."""
    norms = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)]
    return [(name, module) for name, module in norms if module.weight.requires_grad][-1]


def with_hook(monkeypatch: pytest.MonkeyPatch, hook: Callable[..., Any]) -> list[str]:
    """Let every network that is built have a hook on a layer norm; return where its name will be."""
    real, names = build.build_model, []

    def built(config: Any) -> nn.Module:
        model = real(config)
        name, module = inner(model)
        names.append(name)
        module.register_forward_hook(hook)
        return model

    monkeypatch.setattr(build, "build_model", built)
    return names


@pytest.mark.parametrize("own", ["generator", "seeded anew", ""])
def test_numbers_of_a_generator_of_its_own_are_told_with_the_change_that_ends_it(
    write_config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    def dropout(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator()
        generator.seed()
        if own == "seeded anew":
            torch.seed()
        return output * (torch.rand(output.shape, generator=generator if own == "generator" else None) > 0.1)

    with_hook(monkeypatch, dropout)
    monkeypatch.setattr(reproducibility, "_ask", in_this_process)
    result = engine.diagnose.reproducibility(write_config(), steps=1, device="cpu")
    assert result.identical != bool(own)
    told = [line for found in result.findings for line in found.evidence if "without generator=" in line]
    assert ["most likely" in line and "seeded anew" in line for line in told] == [True] * bool(own)


def in_this_process(request: Request) -> tuple[list[Steps], int]:
    config = config_from_dict(request.config, "test")
    return [short_run(config, "cpu", request.steps) for _ in range(request.runs)], 1


@pytest.mark.parametrize("kind", ["regressor", "mae", "inpainter"])
def test_runs_of_every_kind_are_the_same(write_config: Callable[..., Path], kind: str) -> None:
    assert runs(write_config(kind)) is None


def test_a_module_that_is_not_deterministic_is_named(
    write_config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = with_hook(monkeypatch, lambda module, inputs, output: output + random.SystemRandom().random() * 1e-6)
    found = runs(write_config())
    assert found is not None
    assert (found.step, found.stage, found.module, found.op) == (1, "forward", names[0], "add")
    assert found.first != found.second


def test_dropout_outside_the_stream_of_the_batch_is_named(
    write_config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dropout(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        own = torch.Generator()
        own.seed()
        return output * torch.bernoulli(torch.full_like(output, 0.9), generator=own)

    names = with_hook(monkeypatch, dropout)
    found = runs(write_config())
    assert found is not None
    assert (found.stage, found.module, found.op) == ("forward", names[0], "bernoulli")


def test_a_gradient_that_differs_is_told_from_a_result(
    write_config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(lambda grad: grad * (1.0 + random.SystemRandom().random() * 1e-3))

    names = with_hook(monkeypatch, noisy)
    found = runs(write_config())
    assert found is not None
    assert (found.step, found.stage, found.op) == (1, "backward", "mul")
    assert names


def test_another_order_of_events_is_a_matter_of_the_data(
    write_config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = EventLoader.epoch, []

    def epoch(self: EventLoader, number: int, start_step: int = 0) -> Any:
        calls.append(number)
        return real(self, number + len(calls), start_step)

    monkeypatch.setattr(EventLoader, "epoch", epoch)
    found = runs(write_config())
    assert found is not None
    assert (found.step, found.stage, found.op) == (1, "data", "batch")


PATCH = """
import runpy; runpy.run_path({lean!r})
import os, random, torch, xectool.training.stepping.build as build
from torch import nn
real = build.build_model
def hook(module, inputs, output):
    {line}
def built(config):
    model = real(config)
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    [m for m in norms if m.weight.requires_grad][-1].register_forward_hook(hook)
    return model
build.build_model = built
"""
SETTINGS = {
    "threads": ("return output + 1e-6 * torch.get_num_threads()", (1, 2), "OMP_NUM_THREADS=1"),
    "kernels": (
        "return output if torch.are_deterministic_algorithms_enabled() else output + random.SystemRandom().random()",
        (1, 1),
        "--set training.deterministic=true",
    ),
    "hashes": ("return output + 1e-6 * (hash('inner') % 1024)", (1, 1), "PYTHONHASHSEED=0"),
    "addresses": ("return output + 1e-9 * (os.getpid() % 1024)", (1, 1), ""),
}
REAL = ("hashes", "addresses")


@pytest.mark.slow
@pytest.mark.parametrize("fault", SETTINGS)
def test_the_setting_that_is_named_was_tried_in_fresh_processes(
    write_config: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Any, fault: str
) -> None:
    """Processes that are forked have the imports behind them, and the hashes of their parent."""
    line, threads, cure = SETTINGS[fault]
    forked = SimpleNamespace(
        run=lambda argv, **told: warm.run(*argv[1:], given=told["input"]), TimeoutExpired=subprocess.TimeoutExpired
    )
    if fault not in REAL:
        monkeypatch.setattr(reproducibility, "subprocess", forked)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    lean = f"{os.environ['PYTHONPATH'].split(os.pathsep)[0]}/sitecustomize.py"
    (tmp_path / "sitecustomize.py").write_text(PATCH.format(line=line, lean=lean))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]))
    own = ["training.epochs=3"]
    result = engine.diagnose.reproducibility(write_config(), overrides=own, steps=1, threads=threads, device="cpu")
    assert not result.identical
    assert result.first_difference is not None
    assert result.first_difference.op == "add"
    assert result.cure == cure
    assert result.findings[0].code == "XT-NOT-REPRODUCIBLE"
    if not cure:
        assert "an address" in result.findings[0].evidence[-1]
        return
    assert cure in result.findings[0].fix
    assert "--set training.epochs=3" in result.findings[0].fix


def test_a_run_that_takes_too_long_is_an_error_with_a_shorter_one(
    write_config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproducibility, "TIMEOUT_S", 0.01)
    with pytest.raises(WorldError, match="not done after") as caught:
        engine.diagnose.reproducibility(write_config(), device="cpu")
    assert "--steps 1" in caught.value.fix


def test_where_no_setting_helps_all_that_were_tried_are_told(
    write_config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()

    def other_numbers_each_time(request: Request) -> tuple[list[Steps], int]:
        entries = [Entry("forward", "head", "add", str(next(numbers)), "") for _ in range(request.runs)]
        return [[[], [entry]] for entry in entries], 2

    monkeypatch.setattr(reproducibility, "_ask", other_numbers_each_time)
    result = engine.diagnose.reproducibility(write_config(), steps=1, device="cpu")
    assert result.cure == ""
    assert [tried.setting for tried in result.tried] == ["--set training.deterministic=true", "OMP_NUM_THREADS=1"]
    assert result.findings[0].fix == "xectool explain reproducibility"
