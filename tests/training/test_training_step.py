"""A window of micro-batches is the big batch; what is not finite never reaches the weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from xectool.config.load import load_config
from xectool.config.platform import COMPILE_THREADS
from xectool.config.training import TrainingConfig
from xectool.data.batch import EventBatch
from xectool.errors import RunDiverged
from xectool.training.process import device
from xectool.training.process.device import PAYS_AFTER, compiled_where_it_pays, plan_execution
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.batch_loss import seed_batch
from xectool.training.stepping.build import build_parts, open_data
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.step import Stepper
from xectool.training.symptoms.nonfinite import nonfinite_gradients, nonfinite_weights

Build = Callable[..., RunParts]


@pytest.fixture
def build(tiny_config: Callable[..., Path]) -> Build:
    def make(**sections: dict[str, object]) -> RunParts:
        model = {"dropout": 0.0, "head_dropout": 0.0, **sections.pop("model", {})}
        training = {"channel_dropout_rate": 0.0, "grad_clip": 0.0, **sections.pop("training", {})}
        config = load_config(tiny_config(model=model, training=training, **sections)).config
        data = open_data(config)
        return build_parts(data, plan_execution(data.config.training, "cpu"), Ranks())

    return make


def rows(batch: EventBatch, chosen: Sequence[int]) -> EventBatch:
    index = torch.tensor(list(chosen), dtype=torch.long)
    picked = index.numpy()
    return replace(
        batch,
        npho=batch.npho[index],
        time=batch.time[index],
        targets={name: values[index] for name, values in batch.targets.items()},
        weight=batch.weight[index],
        file_index=batch.file_index[picked],
        entry=batch.entry[picked],
        run=batch.run[picked],
        event=batch.event[picked],
    )


def gradients(parts: RunParts, window: list[EventBatch]) -> torch.Tensor:
    """Gradients before the update, found by undoing nothing: a step with rate 0 keeps them in ``.grad``."""
    parts.model.train()
    result = parts.stepper.run(window, lr=0.0)
    assert result.finite
    return torch.cat([p.grad.flatten() for p in parts.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("split", [[4, 4], [1, 7], [3, 3, 2], [1] * 8])
def test_window_of_unequal_batches_has_the_gradient_of_the_big_batch(build: Build, split: list[int]) -> None:
    parts = build(training={"weight_decay": 0.0})
    batch = next(iter(parts.train_loader.epoch(1)))
    # truth of the energy is unknown for some events, unevenly over the micro-batches
    batch.targets["energy"][[0, 1, 5]] = 1e10
    edges = [sum(split[:i]) for i in range(len(split) + 1)]
    window = [rows(batch, range(a, b)) for a, b in itertools.pairwise(edges)]
    big, small = gradients(parts, [batch]), gradients(parts, window)
    assert torch.linalg.norm(big - small) < 1e-5 * torch.linalg.norm(big)


def test_mean_of_means_would_not_do(build: Build) -> None:
    parts = build()
    batch = next(iter(parts.train_loader.epoch(1)))
    big = gradients(parts, [batch])
    naive = (gradients(parts, [rows(batch, [0])]) + gradients(parts, [rows(batch, range(1, 8))])) / 2
    assert torch.linalg.norm(big - naive) > 0.05 * torch.linalg.norm(big)


def test_empty_batch_of_a_window_changes_nothing(build: Build) -> None:
    parts = build()
    batch = next(iter(parts.train_loader.epoch(1)))
    assert torch.equal(gradients(parts, [batch]), gradients(parts, [batch, rows(batch, [])]))


def test_clipping_keeps_direction_and_reports_the_norm_before(build: Build) -> None:
    free, clipped = build(), build(training={"grad_clip": 0.01})
    batch = next(iter(free.train_loader.epoch(1)))
    for parts in (free, clipped):
        parts.model.train()
    first, second = free.stepper.run([batch], 0.0), clipped.stepper.run([batch], 0.0)
    assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-6)
    assert second.clip_coef == pytest.approx(0.01 / (first.grad_norm + 1e-6), rel=1e-6)
    applied = torch.cat([p.grad.flatten() for p in clipped.model.parameters() if p.grad is not None])
    assert float(applied.norm()) == pytest.approx(0.01, rel=1e-3)


def snapshot(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def poison_gradient(parts: RunParts, value: float) -> None:
    head = parts.model.get_submodule("heads.energy")[0]
    head.weight.register_hook(lambda grad: grad.index_fill(0, torch.tensor([0]), value))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_finite_loss_with_a_bad_gradient_leaves_everything_untouched(build: Build, value: float) -> None:
    parts = build(training={"grad_clip": 1.0})
    batch = next(iter(parts.train_loader.epoch(1)))
    parts.model.train()
    parts.stepper.run([batch], 1e-3)
    before = snapshot(parts.model), snapshot(parts.average.best_model), parts.average.num_averaged
    moments = [m.clone() for entry in parts.stepper.optimizer.state.values() for m in entry.values()]
    poison_gradient(parts, value)
    result = parts.stepper.run([batch], 1e-3)
    assert not result.finite
    assert result.loss == result.loss
    assert "heads.energy.0.weight" in result.fault
    assert same(before[0], snapshot(parts.model))
    assert same(before[1], snapshot(parts.average.best_model))
    assert parts.average.num_averaged == before[2]
    after = [m for entry in parts.stepper.optimizer.state.values() for m in entry.values()]
    assert all(torch.equal(a, b) for a, b in zip(moments, after, strict=True))


def test_without_the_guard_one_bad_gradient_ruins_the_weights(build: Build) -> None:
    parts = build()
    batch = next(iter(parts.train_loader.epoch(1)))
    poison_gradient(parts, float("nan"))
    parts.model.train()
    terms = parts.task.loss(parts.model(batch.npho, batch.time), batch, parts.task.counts(batch))
    terms.total.backward()
    nn.utils.clip_grad_norm_(parts.model.parameters(), 1.0)
    parts.stepper.optimizer.step()
    assert len(nonfinite_weights(parts.model)) > 50


def test_nan_loss_is_skipped_and_the_next_step_is_clean(build: Build) -> None:
    parts = build()
    batch = next(iter(parts.train_loader.epoch(1)))
    parts.model.train()
    before = snapshot(parts.model)
    broken = replace(batch, weight=torch.full_like(batch.weight, float("nan")))
    result = parts.stepper.run([batch, broken], 1e-3)
    assert not result.finite
    assert result.fault == "non-finite loss"
    assert same(before, snapshot(parts.model))
    assert parts.stepper.run([batch], 1e-3).finite


def test_guard_stops_after_the_tolerated_number_in_a_row(build: Build) -> None:
    guard = build(guards={"max_consecutive_bad": 2}).guard
    for _ in range(2):
        guard.observe(False, "non-finite loss")
    guard.observe(True)
    guard.observe(False, "non-finite loss")
    guard.observe(False, "non-finite loss")
    with pytest.raises(RunDiverged, match="3 steps in a row"):
        guard.observe(False, "non-finite loss")
    assert guard.total_bad == 5


def test_guard_stops_at_once_when_told_to(build: Build) -> None:
    guard = build(guards={"on_nonfinite": "stop"}).guard
    with pytest.raises(RunDiverged, match="on_nonfinite: stop"):
        guard.observe(False, "non-finite loss")


def test_non_finite_gradients_are_named_with_their_counts() -> None:
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    assert layer.weight.grad is not None
    layer.weight.grad[0, 0] = float("nan")
    layer.weight.grad[1, 1] = float("inf")
    assert nonfinite_gradients(layer) == "weight (1 NaN, 1 Inf)"


def test_batch_randomness_depends_on_its_place_alone() -> None:
    def draw(*place: int) -> float:
        seed_batch(*place)
        return float(torch.rand(1))

    assert draw(1, 2, 3, 0) == draw(1, 2, 3, 0)
    assert len({draw(1, 2, 3, 0), draw(2, 2, 3, 0), draw(1, 3, 3, 0), draw(1, 2, 4, 0), draw(1, 2, 3, 1)}) == 5


def test_decay_leaves_norms_biases_gains_and_embeddings_alone(build: Build) -> None:
    parts = build()
    decayed, kept = (group["params"] for group in parts.stepper.optimizer.param_groups)
    names = {id(p): name for name, p in parts.model.named_parameters()}
    kept_names = {names[id(p)] for p in kept if id(p) in names}
    for wanted in ("grn.gamma", "norm.weight", "pos_embed", "in_proj_bias", "stem.0.bias", "spatial_conv.bias"):
        assert any(name.endswith(wanted) for name in kept_names), wanted
    assert all(p.ndim > 1 for p in decayed)
    assert all(names[id(p)].endswith("weight") for p in decayed)


def test_learned_task_weights_take_no_decay_and_are_optimised(build: Build) -> None:
    parts = build(loss_balance="auto")
    kept = parts.stepper.optimizer.param_groups[1]["params"]
    assert {id(p) for p in parts.task.parameters()} <= {id(p) for p in kept}


@pytest.mark.parametrize(
    ("asked", "batches", "mode"),
    [("auto", PAYS_AFTER - 1, None), ("auto", PAYS_AFTER, "default"), ("default", 3, "default"), ("none", 10**6, None)],
)
def test_a_short_run_on_a_gpu_is_not_compiled_unless_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: str, batches: int, mode: str | None
) -> None:
    monkeypatch.setattr(device, "resolve_device", torch.device)
    monkeypatch.setattr(device, "missing_toolchain", lambda _: "")
    monkeypatch.setenv(COMPILE_THREADS, "1")
    section = TrainingConfig.model_validate({"compile": asked, "amp": "off"})
    planned = compiled_where_it_pays(plan_execution(section, "cuda"), batches)
    assert planned.compile_mode == mode
    (said,) = [note for note in planned.notes if "training.compile" in note or "compiled" in note]
    assert said.startswith("compiled" if mode else "eager")
    assert (f"{batches} batches" in said) is (asked == "auto" and mode is None)
    shared = compiled_where_it_pays(plan_execution(section, "cuda"), 4 * batches, 4)
    assert shared == planned


def test_the_backward_pass_of_the_first_batch_is_compiled_too(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **told: model)
    parts = build(data={"batch_size": 2})
    compiled = Stepper(
        parts.model, parts.task, parts.stepper.optimizer, parts.stepper.average,
        replace(parts.execution, compile_mode="default"), parts.config.training, parts.ranks,
    )  # fmt: skip
    with parts.train_loader as loader:
        batches = list(itertools.islice(loader.epoch(1), 4))
    for stepper, first in ((compiled, ["compile", "compile"]), (parts.stepper, ["forward", "backward"])):
        phases: list[str] = []
        stepper.on_phase = phases.append
        result = stepper.run(batches[:2], 1e-3)
        assert phases[1:5] == [*first, "forward", "backward"]
        assert {"forward", "backward"} <= result.seconds.keys()
        phases.clear()
        stepper.run(batches[2:], 1e-3)
        assert "compile" not in phases
