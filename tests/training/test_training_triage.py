"""Triage tells the event, the group of events, the module and the weights apart."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from xectool.config.load import load_config
from xectool.data.batch import EventBatch
from xectool.training.process.device import plan_execution
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.build import build_parts, open_data
from xectool.training.stepping.parts import RunParts
from xectool.training.triage import Reference, Trial, bisect_events, first_nonfinite_module, triage_window
from xectool.training.triage.window import has_grown, rows_of, without_rows


@pytest.fixture
def parts(tiny_config: Callable[..., Path]) -> RunParts:
    data = open_data(load_config(tiny_config()).config)
    built = build_parts(data, plan_execution(data.config.training, "cpu"), Ranks())
    built.model.train()
    return built


def one_batch(parts: RunParts) -> EventBatch:
    with parts.train_loader as loader:
        return next(iter(loader.epoch(1)))


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_bisection_finds_exactly_the_bad_events(case: tuple[int, set[int]]) -> None:
    n, bad = case
    assert bisect_events(lambda rows: bool(bad & set(rows)), n) == sorted(bad)


@given(st.integers(2, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=2))))
def test_bisection_finds_a_group_that_is_bad_only_together(case: tuple[int, set[int]]) -> None:
    n, group = case
    assert bisect_events(lambda rows: group <= set(rows), n) == sorted(group)


def test_bisection_needs_few_trials_and_gives_up_where_all_are_bad() -> None:
    calls = []

    def bad(rows: object) -> bool:
        calls.append(rows)
        return 700 in list(rows)  # type: ignore[call-overload]

    assert bisect_events(bad, 1024) == [700]
    assert len(calls) <= 25
    assert bisect_events(lambda rows: True, 1024, limit=8) == []

    needed = 0

    def together(rows: object) -> bool:
        nonlocal needed
        needed += 1
        return len(list(rows)) >= 600  # type: ignore[call-overload]

    assert bisect_events(together, 1024, limit=8) == []
    assert needed < 100
    assert len(bisect_events(together, 1024)) == 600  # without: every row of them is tried
    assert needed > 1500


def test_events_are_given_the_loss_they_have_in_the_step(parts: RunParts) -> None:
    batch, trial = one_batch(parts), Trial.of(parts)
    before = torch.get_rng_state()
    losses = trial.event_losses(batch)
    result = parts.stepper.run([batch], lr=0.0)
    assert torch.equal(before, before)
    assert float(np.mean(losses)) == pytest.approx(result.loss, rel=1e-5)


@pytest.mark.parametrize("row", [0, 3, 7])
def test_event_with_a_broken_weight_is_the_suspect(parts: RunParts, row: int) -> None:
    batch = one_batch(parts)
    weight = batch.weight.clone()
    weight[row] = float("nan")
    found = triage_window(Trial.of(parts), [replace(batch, weight=weight)], "nonfinite")
    assert found.suspects == (row,)
    assert found.confidence == "certain"


def test_a_loss_that_leaves_its_domain_for_one_event_is_not_the_events_fault(parts: RunParts) -> None:
    """Only the random numbers of the step lead there: without them all modules and the loss are finite."""
    batch, task = one_batch(parts), parts.task
    trial = Trial.of(parts)
    drawn = trial.forward(batch)[1]["energy"].detach()
    loss = task.losses["energy"]

    def narrow(prediction: torch.Tensor, target: torch.Tensor, beta: float) -> torch.Tensor:
        values = loss.pointwise(prediction, target, beta)
        return torch.where((prediction == drawn[2]).all(-1, keepdim=True), torch.log(-values.abs() - 1.0), values)

    task.losses["energy"] = replace(loss, pointwise=narrow)
    found = triage_window(trial, [batch], "nonfinite")
    assert (found.suspects, found.module, found.cause) == ((2,), None, "XT-NAN-LOSS")


def test_event_whose_gradient_alone_is_broken_is_the_suspect(parts: RunParts) -> None:
    batch = one_batch(parts)

    class Trap(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model, self.normalizer = model, model.normalizer

        def forward(self, npho: torch.Tensor, times: torch.Tensor) -> dict[str, torch.Tensor]:
            outputs = self.model(npho, times)
            hit = (npho.masked_fill(npho > 9e9, 0).sum(1) - marked).abs() < 1e-3
            energy = outputs["energy"].clone()
            # the square root of zero is finite, its derivative is not
            energy[hit] = energy[hit] + (energy[hit] * 0).abs().sqrt()
            outputs["energy"] = energy
            return outputs

    marked = batch.npho[5].masked_fill(batch.npho[5] > 9e9, 0).sum()
    trial = replace(
        Trial.of(parts),
        model=Trap(parts.model),
        training=parts.config.training.model_copy(update={"channel_dropout_rate": 0.0}),
    )
    found = triage_window(trial, [batch.take(np.arange(4)), batch.take(np.arange(4, 8))], "nonfinite")
    assert found.losses.shape == (8,)
    assert bool(np.isfinite(found.losses).all())
    assert found.suspects == (5,)
    assert found.cause == "XT-NAN-GRAD"
    assert found.module is not None
    assert found.module.phase == "backward"


def test_broken_weights_are_no_events_fault(parts: RunParts) -> None:
    with torch.no_grad():
        next(parts.model.parameters())[0] = float("nan")
    found = triage_window(Trial.of(parts), [one_batch(parts)], "nonfinite")
    assert (found.suspects, found.cause, found.weights_finite) == ((), "XT-NAN-WEIGHTS", False)


@pytest.mark.parametrize("skipped", range(6))
@pytest.mark.parametrize(("factor", "grown"), [(1.0, False), (1.5, True)])
def test_a_growing_gradient_is_seen_behind_steps_that_were_skipped(skipped: int, factor: float, grown: bool) -> None:
    norms = [1.0] * 20 + [factor**step for step in range(1, 9)] + [math.nan] * skipped
    assert has_grown(norms, math.nan) == grown
    assert not has_grown([math.nan] * skipped, 1.0)


def test_weights_that_ran_away_are_told_from_a_bad_event_by_the_earlier_ones(parts: RunParts) -> None:
    batch, sound = one_batch(parts), {k: v.clone() for k, v in parts.model.state_dict().items()}
    reference = Reference(typical=0.5, limit=5.0, weights=sound)
    with torch.no_grad():
        parts.model.heads["energy"][-1].bias.fill_(1e3)
    found = triage_window(Trial.of(parts), [batch], "spike", reference)
    assert found.suspects == ()
    assert found.finite_with_saved_weights is True
    parts.model.load_state_dict(sound)
    targets = {**batch.targets, "energy": batch.targets["energy"].clone()}
    targets["energy"][[1, 4]] *= 1000
    found = triage_window(Trial.of(parts), [replace(batch, targets=targets)], "spike", reference)
    assert (found.suspects, found.cause) == ((1, 4), "XT-SPIKE-EVENT")


def test_events_that_all_rose_are_not_to_blame_though_half_are_beyond_the_limit(parts: RunParts) -> None:
    """Weights that run away lift every event; the luck of the draw decides which of them pass the limit."""
    batch = one_batch(parts)
    with torch.no_grad():
        parts.model.heads["energy"][-1].bias.fill_(30.0)
    losses = Trial.of(parts).event_losses(batch)
    limit = float(np.median(losses))
    ran_away = triage_window(Trial.of(parts), [batch], "spike", Reference(typical=limit / 20, limit=limit))
    assert (ran_away.suspects, ran_away.cause) == ((), "XT-SPIKE-LR")
    calm = triage_window(Trial.of(parts), [batch], "spike", Reference(typical=limit, limit=limit))
    assert calm.cause == "XT-SPIKE-EVENT"


@pytest.mark.parametrize("others", [1, 2, 3, 7])
def test_an_untrained_network_is_wrong_about_some_events_by_chance(parts: RunParts, others: int) -> None:
    """With truth in its own unit all of them may be far above what a constant reaches, one of two by thousands."""
    batch = one_batch(parts).take(np.arange(1 + others))
    losses = Trial.of(parts).event_losses(batch)
    limit = float(np.sort(losses)[-2])  # the largest is beyond it, the others are not
    young = Reference(typical=limit / 10, limit=limit, trusted=False)
    found = triage_window(Trial.of(parts), [batch], "spike", young)
    assert (found.suspects, found.cause) == ((), "XT-SPIKE-LR")
    calm = replace(young, typical=limit, trusted=True)
    worst = int(np.argmax(losses))
    assert triage_window(Trial.of(parts), [batch], "spike", calm).suspects == (worst,)
    targets = {**batch.targets, "energy": batch.targets["energy"].clone()}
    targets["energy"][worst] *= 1e9
    beyond = replace(young, typical=limit, limit=10 * limit)
    poisoned = triage_window(Trial.of(parts), [replace(batch, targets=targets)], "spike", beyond)
    assert (poisoned.suspects, poisoned.cause) == ((worst,), "XT-SPIKE-EVENT")


class OwnHalf(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.half() + 65504).float() * 0 + (x.half() * 1e7).float()


def test_a_module_that_rounds_to_float16_by_itself_is_no_fault_of_the_events(parts: RunParts) -> None:
    """Automatic precision is off: only without the module's own rounding the step is finite."""
    parts.model.heads["energy"].append(OwnHalf())
    found = triage_window(Trial.of(parts), [one_batch(parts)], "nonfinite")
    assert (found.cause, found.finite_in_float32) == ("XT-AMP-OVERFLOW", True)
    parts.model.heads["energy"][-1] = Log()
    assert triage_window(Trial.of(parts), [one_batch(parts)], "nonfinite").finite_in_float32 is None


class Log(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x)


def test_module_of_the_first_infinity_is_named_before_those_that_hold_it(parts: RunParts) -> None:
    head = parts.model.heads["energy"]
    head.append(nn.ReLU())
    head.append(Log())
    with torch.no_grad():
        head[-3].bias.fill_(-1e3)
    batch = one_batch(parts)
    fault = first_nonfinite_module(parts.model, parts.task, batch, parts.execution)
    assert fault is not None
    assert (fault.name, fault.phase, fault.kind) == (f"heads.energy.{len(head) - 1}", "forward", "Log")
    assert fault.num_inf == batch.num_events
    assert fault.input_absmax == 0.0


class Around(nn.Module):
    """Divides by zero before it calls another by keyword; first it calls one that raises, and goes on."""

    def __init__(self, divides: bool) -> None:
        super().__init__()
        self.inner, self.raising, self.divides = Keyword(), Raising(), divides

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(ArithmeticError):
            self.raising(x)
        return torch.as_tensor(self.inner(x=x / 0 if self.divides else x))


class Keyword(nn.Module):
    def forward(self, *, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0


class Raising(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError


@pytest.mark.parametrize("divides", [True, False])
def test_what_is_called_by_keyword_or_raises_leaves_the_fault_where_it_is(parts: RunParts, divides: bool) -> None:
    head = parts.model.heads["energy"]
    head.append(Around(divides))
    head.append(nn.Identity())
    fault = first_nonfinite_module(parts.model, parts.task, one_batch(parts), parts.execution)
    assert (fault.kind if fault else None) == ("Around" if divides else None)


def test_sound_batch_has_no_fault(parts: RunParts) -> None:
    assert first_nonfinite_module(parts.model, parts.task, one_batch(parts), parts.execution) is None


@given(st.integers(0, 2**31), st.sets(st.integers(0, 7)))
def test_rows_and_the_rest_are_all_events(seed: int, chosen: set[int]) -> None:
    rng = np.random.default_rng(seed)
    edges = [0, int(rng.integers(0, 9)), 8]
    whole = _numbered(8)
    window = [whole.take(np.arange(a, b)) for a, b in itertools.pairwise(edges)]
    picked = [int(e) for batch in rows_of(window, sorted(chosen)) for e in batch.entry]
    rest = [int(e) for batch in without_rows(window, sorted(chosen)) for e in batch.entry]
    assert picked == sorted(chosen)
    assert sorted(picked + rest) == list(range(8))
    assert len(without_rows(window, sorted(chosen))) == 2


def _numbered(n: int) -> EventBatch:
    numbers = np.arange(n)
    values = torch.zeros((n, 2))
    return EventBatch(values, values, {}, torch.ones(n), numbers.astype(np.int32), numbers, numbers, numbers, 1, 0)


def test_an_event_is_not_to_blame_for_a_bright_sensor_that_was_hidden(sensor_config: Callable[..., Path]) -> None:
    """The same event is as usual with other sensors hidden; one that is wrong all over is not."""
    data = open_data(load_config(sensor_config("inpainter", mask_ratio=0.05)).config)
    built = build_parts(data, plan_execution(data.config.training, "cpu"), Ranks())
    built.model.eval()
    batch = one_batch(built)
    bright = batch.npho.clone()
    bright[1, 2000] = 3e5
    trial = Trial.of(built)
    hidden = next(
        moved
        for epoch in range(1, 400)
        if bool(built.task.prepare(moved := replace(batch, npho=bright, epoch=epoch)).mask[1, 2000])
    )
    usual = trial.event_losses(batch)
    reference = Reference(typical=float(usual.mean()), limit=2 * float(usual.max()))
    assert trial.event_losses(hidden)[1] > reference.limit
    found = triage_window(trial, [hidden], "spike", reference)
    assert (found.suspects, found.by_mask, found.cause) == ((), True, "XT-SPIKE")
    wrong = batch.npho.clone()
    wrong[1] = wrong[1].roll(1700) * 30
    found = triage_window(trial, [replace(batch, npho=wrong)], "spike", reference)
    assert (found.suspects, found.by_mask) == ((1,), False)
