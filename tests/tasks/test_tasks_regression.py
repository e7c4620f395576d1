from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from xectool.config.load import config_from_dict
from xectool.config.tasks import TaskConfig
from xectool.data.batch import EventBatch
from xectool.errors import ConfigError, DataFileError
from xectool.models import build_model
from xectool.tasks import build_task
from xectool.tasks.balance import UncertaintyBalance
from xectool.tasks.regression import RegressionTask

MakeTask = Callable[..., RegressionTask]
MakeBatch = Callable[..., EventBatch]


def random_targets(count: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "angle": 90 + 10 * torch.randn(count, 2, generator=generator),
        "energy": 0.05 + 0.005 * torch.randn(count, 1, generator=generator),
    }


def settings() -> dict[str, TaskConfig]:
    return {
        "angle": TaskConfig(enabled=True, scale=10.0, shift=90.0, weight=0.7),
        "energy": TaskConfig(enabled=True, scale=0.005, shift=0.05, loss_fn="l1", weight=2.0),
    }


def slice_batch(batch: EventBatch, start: int, stop: int) -> EventBatch:
    part = slice(start, stop)
    arrays = {
        name: getattr(batch, name)[part] for name in ("npho", "time", "weight", "file_index", "entry", "run", "event")
    }
    return replace(batch, targets={name: value[part] for name, value in batch.targets.items()}, **arrays)


@pytest.mark.parametrize("balance", ["manual", "auto"])
def test_unequal_batches_of_a_window_add_up_to_the_big_batch(
    make_task: MakeTask, make_batch: MakeBatch, balance: str
) -> None:
    task = make_task(UncertaintyBalance(2) if balance == "auto" else None, **settings())
    if isinstance(task.balance, UncertaintyBalance):
        task.balance.log_vars.data = torch.tensor([0.3, -1.2])
    batch = make_batch(random_targets(50), weight=torch.rand(50) + 0.5)
    batch.targets["energy"][3:9] = 1e10
    torch.manual_seed(1)
    raw = {"angle": torch.randn(50, 2, requires_grad=True), "energy": torch.randn(50, 1, requires_grad=True)}

    def gradients(parts: list[tuple[int, int]]) -> tuple[list[torch.Tensor], float, torch.Tensor]:
        task.zero_grad()
        for value in raw.values():
            value.grad = None
        counts = torch.stack([task.counts(slice_batch(batch, *part)) for part in parts]).sum(dim=0)
        total, sums = 0.0, torch.zeros(2, dtype=torch.float64)
        for start, stop in parts:
            outputs = {name: value[start:stop] for name, value in raw.items()}
            found = task.loss(outputs, slice_batch(batch, start, stop), counts)
            found.total.backward()
            total, sums = total + float(found.total.detach()), sums + found.sums
        leaves = [*raw.values(), *task.parameters()]
        assert float(task.combine(sums, counts)) == pytest.approx(total, rel=1e-12)
        return [leaf.grad.clone() for leaf in leaves if leaf.grad is not None], total, sums

    big, big_total, _ = gradients([(0, 50)])
    small, small_total, _ = gradients([(0, 7), (7, 30), (30, 30), (30, 49), (49, 50)])
    assert small_total == pytest.approx(big_total, rel=1e-12)
    for one, other in zip(small, big, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("unknown", [1e10, -1e10, float("nan"), float("inf")])
def test_unknown_truth_enters_neither_loss_nor_gradient_nor_counts(
    make_task: MakeTask, make_batch: MakeBatch, unknown: float
) -> None:
    task = make_task(**settings())
    batch = make_batch(random_targets(6))
    batch.targets["energy"][2] = unknown
    batch.targets["angle"][4, 1] = unknown
    outputs = {"angle": torch.randn(6, 2, requires_grad=True), "energy": torch.randn(6, 1, requires_grad=True)}
    counts = task.counts(batch)
    found = task.loss(outputs, batch, counts)
    found.total.backward()
    assert counts.tolist() == [5.0, 5.0]
    assert found.total.isfinite()
    for name, row in (("energy", 2), ("angle", 4)):
        gradient = outputs[name].grad
        assert gradient is not None
        assert gradient.isfinite().all()
        assert gradient[row].abs().sum() == 0
        assert (gradient.abs().sum(dim=1) > 0).sum() == 5


def test_a_window_without_truth_of_one_task_trains_the_other(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(UncertaintyBalance(2), **settings())
    batch = make_batch(random_targets(4))
    batch.targets["energy"][:] = 1e10
    outputs = {"angle": torch.randn(4, 2, requires_grad=True), "energy": torch.randn(4, 1, requires_grad=True)}
    found = task.loss(outputs, batch, task.counts(batch))
    found.total.backward()
    assert found.total.isfinite()
    assert task.balance.log_vars.grad is not None
    assert float(task.balance.log_vars.grad[1]) == 0.0


def test_empty_batch_adds_nothing(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(**settings())
    batch = make_batch(random_targets(0))
    outputs = {"angle": torch.zeros(0, 2, requires_grad=True), "energy": torch.zeros(0, 1, requires_grad=True)}
    found = task.loss(outputs, batch, torch.tensor([8.0, 8.0]))
    found.total.backward()
    assert float(found.total.detach()) == 0.0
    assert found.sums.tolist() == [0.0, 0.0]


def test_all_truth_unknown_gives_no_objective(make_task: MakeTask) -> None:
    assert np.isnan(make_task(**settings()).combine(torch.zeros(2), torch.zeros(2)))


def test_sample_weights_multiply_and_are_not_renormalised(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(energy=TaskConfig(enabled=True, loss_fn="l1"))
    targets = {"energy": torch.zeros(2, 1)}
    outputs = {"energy": torch.tensor([[1.0], [2.0]])}
    batch = make_batch(targets, weight=torch.tensor([3.0, 0.5]))
    assert float(task.loss(outputs, batch, task.counts(batch)).total) == pytest.approx((3.0 * 1 + 0.5 * 2) / 2)


@pytest.mark.parametrize("loss_fn", ["cosine", "relative_l1", "relative_mse"])
def test_losses_of_physical_meaning_do_not_change_with_the_shift(
    make_task: MakeTask, make_batch: MakeBatch, loss_fn: str
) -> None:
    targets = {"angle": torch.tensor([[80.0, 20.0], [100.0, -30.0]])}
    physical = torch.tensor([[81.0, 22.0], [97.0, -28.0]])
    plain = make_task(angle=TaskConfig(enabled=True, loss_fn=loss_fn))
    scaled = make_task(angle=TaskConfig(enabled=True, loss_fn=loss_fn, scale=15.0, shift=(90.0, 5.0)))
    batch = make_batch(targets)
    values = []
    for task in (plain, scaled):
        outputs = {"angle": task.transforms["angle"].encode(physical)}
        values.append(float(task.loss(outputs, batch, task.counts(batch)).total))
    assert values[1] == pytest.approx(values[0], rel=1e-4)


def test_timing_in_seconds_trains_through_its_scale(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(timing=TaskConfig(enabled=True, scale=2e-9, shift=3e-9))
    outputs = {"timing": torch.zeros(32, 1, requires_grad=True)}
    batch = make_batch({"timing": 3e-9 + 2e-9 * torch.randn(32, 1)})
    task.loss(outputs, batch, task.counts(batch)).total.backward()
    assert outputs["timing"].grad is not None
    assert float(outputs["timing"].grad.abs().mean()) > 1e-3


def test_log_transform_refuses_truth_that_is_not_positive(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(energy=TaskConfig(enabled=True, log_transform=True))
    batch = make_batch({"energy": torch.tensor([[0.05], [1e10], [-0.01]])})
    with pytest.raises(ConfigError, match=r"tasks.energy.log_transform: false") as caught:
        task.counts(batch)
    assert "run 430001 event 1002" in caught.value.where


def test_missing_truth_is_named(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(**settings())
    with pytest.raises(DataFileError, match=r"tasks.energy.enabled: false"):
        task.counts(make_batch({"angle": torch.zeros(2, 2)}))


def test_target_without_component_axis_is_refused(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(energy=TaskConfig(enabled=True))
    batch = make_batch({"energy": torch.zeros(64)})
    with pytest.raises(ConfigError, match=r"prediction \(64,1\) vs target \(64,\)"):
        task.event_losses({"energy": torch.zeros(64, 1)}, batch)


def test_sums_are_exact_where_float32_would_round(make_task: MakeTask, make_batch: MakeBatch) -> None:
    task = make_task(energy=TaskConfig(enabled=True, loss_fn="l1"))
    count = 2**12
    truth = torch.zeros(count, 1)
    truth[0] = 2.0**24
    batch = make_batch({"energy": truth})
    found = task.loss({"energy": torch.ones(count, 1)}, batch, task.counts(batch))
    assert float(found.sums[0]) == 2.0**24 - 1 + count - 1


@pytest.mark.parametrize("mean", [4.0, 1.0, 1e-12])
def test_automatic_balance_settles_where_the_variance_equals_the_loss(mean: float) -> None:
    balance = UncertaintyBalance(1)
    balance.log_vars.data.fill_(np.log(mean))
    balance.combine(torch.tensor([mean], dtype=torch.float64), torch.ones(1)).backward()
    assert balance.log_vars.grad is not None
    assert float(balance.log_vars.grad) == pytest.approx(0.0, abs=1e-5)
    assert balance.scalars(("a",))["task/a_weight"] == pytest.approx(0.5 / mean, rel=1e-5)


def test_automatic_balance_returns_from_outside_its_limits() -> None:
    balance = UncertaintyBalance(1)
    balance.log_vars.data.fill_(1000.0)
    balance.combine(torch.ones(1, dtype=torch.float64), torch.ones(1)).backward()
    assert balance.log_vars.grad is not None
    assert float(balance.log_vars.grad) == pytest.approx(0.5)


def test_only_learned_weights_are_saved(make_task: MakeTask) -> None:
    assert list(make_task(**settings()).state_dict()) == []
    assert list(make_task(UncertaintyBalance(2), **settings()).state_dict()) == ["balance.log_vars"]


def test_trivial_losses_are_in_the_units_of_the_loss(make_task: MakeTask) -> None:
    rng = np.random.default_rng(0)
    truth = rng.uniform(0.015, 0.06, (20000, 1))
    truth[0] = 1e10
    task = make_task(energy=TaskConfig(enabled=True, loss_fn="mse", scale=0.01, shift=0.03))
    assert task.trivial_losses({"energy": truth})["energy"] == pytest.approx(truth[1:].var() / 0.01**2, rel=1e-6)


def test_build_follows_the_configuration() -> None:
    values = {
        "kind": "regressor",
        "model": {"encoder_dim": 32, "hidden_dim": 8, "num_fusion_layers": 1},
        "tasks": {"angle": {"enabled": True, "weight": 3.0}, "uvwFI": {"enabled": True, "loss_fn": "gaussian_nll"}},
        "loss_balance": "auto",
    }
    cfg = config_from_dict(values, "test")
    task = build_task(cfg, build_model(cfg))
    assert task.terms == ("angle", "uvwFI")
    assert set(task.scalars()) == {f"task/{t}_{k}" for t in task.terms for k in ("log_var", "weight")}
