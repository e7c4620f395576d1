"""Faults inside the network, put there on purpose: module and operation are named, whichever module it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from xectool.config.load import load_config
from xectool.data.batch import EventBatch, measured
from xectool.data.in_reading_order import in_reading_order
from xectool.probes.instruments.bench import Bench, build_bench
from xectool.probes.instruments.minimal import SavedBatch, load_batch, save_batch
from xectool.probes.instruments.trial import nonfinite_moments, try_step
from xectool.probes.nonfinite.culprit import find_culprit
from xectool.probes.nonfinite.locate import locate
from xectool.probes.nonfinite.ranking import MOST_RANKED, Ranking
from xectool.probes.nonfinite.scan import at_their_step, scan
from xectool.probes.nonfinite.search import search_data, search_window
from xectool.probes.nonfinite.singles import place_of
from xectool.probes.nonfinite.subject import Subject, of_config
from xectool.probes.nonfinite.verdicts import Training, judge
from xectool.training.optimization.optim import set_lr
from xectool.training.symptoms.nonfinite import nonfinite_weights

Write = Callable[..., Path]
pytestmark = pytest.mark.deep  # modules are named that only a whole network has


@pytest.fixture
def subject(write_config: Write) -> Subject:
    return of_config(load_config(write_config()).config, None, "cpu")


@pytest.fixture
def batch(subject: Subject) -> EventBatch:
    return next(iter(subject.batches()))


class RootOfZero(nn.Module):
    """Adds the root of something that is zero: finite, with an infinite derivative."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sqrt((x - x.detach()).square())


class Hidden(nn.Module):
    """Makes a NaN that `torch.where` takes out again: the loss is finite, the gradient is not."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 1e30, (x * 0).log(), x)


class Times(nn.Module):
    """Multiplies by a number that overflows."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1e38 * 1e38


def behind(bench: Bench, name: str, extra: nn.Module) -> str:
    """Put a module behind one of the network and return the name it then has."""
    parent, _, own = name.rpartition(".")
    holder = bench.model.get_submodule(parent)
    setattr(holder, own, nn.Sequential(getattr(holder, own), extra))
    return f"{name}.1"


MODULES = [
    "heads.energy.0",
    "heads.uvwFI.4",
    "backbone.backbone.stage2.0.pwconv1",
    "backbone.hex_encoder.layers.1.norm",
    "backbone.fusion_transformer.layers.0.norm1",
]


@settings(deadline=None, max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.sampled_from(MODULES), extra=st.sampled_from([RootOfZero, Hidden]))
def test_gradient_that_is_not_finite_though_the_loss_is_names_its_module(
    subject: Subject, batch: EventBatch, where: str, extra: type[nn.Module]
) -> None:
    bench = build_bench(subject.bench.config, subject.bench.execution)
    name = behind(bench, where, extra())
    one = batch.take(np.array([2]))
    trial = try_step(bench, [one])
    assert trial.stage == "gradient"
    assert np.isfinite(trial.loss)
    place = locate(bench, [one], trial)
    assert (place.stage, place.module) == ("gradient", name)
    assert ("sqrt" if extra is RootOfZero else "log") in place.op
    assert place.parameter


@settings(deadline=None, max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.sampled_from(MODULES))
def test_module_that_overflows_is_named_whichever_it_is(subject: Subject, batch: EventBatch, where: str) -> None:
    bench = build_bench(subject.bench.config, subject.bench.execution)
    name = behind(bench, where, Times())
    one = batch.take(np.array([0]))
    trial = try_step(bench, [one])
    assert trial.stage == "loss"
    place = locate(bench, [one], trial)
    assert (place.stage, place.module, place.op) == ("module", name, "mul")


class MeetingOverflow(nn.Module):
    """Overflows where two events with a bright sensor 100 meet in a batch, and for neither of them alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, *args: Tensor, **kwargs: Tensor) -> Tensor:
        bright = (x[:, 100, 0] > 2.0).sum()
        return self.inner(x, *args, **kwargs) * (1.0 + (bright > 1) * x.new_tensor(3e38) * 10)


def test_events_that_fail_only_together_are_found_together(subject: Subject, batch: EventBatch) -> None:
    subject.bench.model.backbone = MeetingOverflow(subject.bench.model.backbone)
    npho = batch.npho.clone()
    npho[:, 100] = 10.0
    npho[[1, 3], 100] = 5e7  # ln(1 + 5e4) / 4.08 = 2.65
    culprit = find_culprit(subject.bench, [replace(batch, npho=npho)])
    assert culprit is not None
    assert not culprit.alone
    assert culprit.window[0].entry.tolist() == batch.entry[[1, 3]].tolist()
    assert {(reading.row, reading.sensor) for reading in culprit.readings} == {(0, 100), (1, 100)}
    assert culprit.cause == "combination"
    assert culprit.place.module == "backbone"


def test_fault_that_comes_whatever_goes_in_is_the_module_s(subject: Subject, batch: EventBatch) -> None:
    name = behind(subject.bench, "heads.energy.4", RootOfZero())
    culprit = find_culprit(subject.bench, [batch])
    assert culprit is not None
    assert (culprit.cause, culprit.place.module) == ("module", name)
    assert culprit.readings == ()


class BrokenInEvaluation(nn.Module):
    """Gives NaN where it is not trained."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else x / 0 * 0


def test_an_ordinary_event_that_fails_is_told_with_the_step_that_serves_it(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = scan(in_reading_order(subject.loader, 1), subject.bench.config, subject.bench.model, subject.bench.task)  # type: ignore[arg-type]
    extremes = {place_of(event) for event in report.extremes[:4]}
    bad = next(event for event in report.ordinary[1::-1] if place_of(event) not in extremes)
    honest = Bench.loss

    def loss(self: Bench, outputs: Any, batch: EventBatch, counts: Tensor) -> Any:
        found = honest(self, outputs, batch, counts)
        hit = (batch.file_index == bad.file_index[0]) & (batch.entry == bad.entry[0])
        return found._replace(total=found.total * math.nan) if hit.any() else found

    monkeypatch.setattr(Bench, "loss", loss)
    found = search_data(subject.bench, subject.loader)  # type: ignore[arg-type]
    assert found.source is not None
    assert (place_of(found.source), found.source.step) == (place_of(bad), bad.step)
    files, entries = subject.plan.batch_events(1, found.source.step, 0)  # type: ignore[union-attr]
    assert place_of(bad) in zip(files.tolist(), entries.tolist(), strict=True)


@pytest.mark.parametrize("search", ["window", "data"])
def test_fault_of_evaluation_alone_is_found_and_said_to_be_one(
    subject: Subject, batch: EventBatch, search: str
) -> None:
    bench = subject.bench
    named = behind(bench, "heads.energy.0", BrokenInEvaluation())
    assert not try_step(bench, [batch]).bad  # as training uses it, nothing is wrong
    found = search_window(bench, [batch]) if search == "window" else search_data(bench, subject.loader)
    assert found.culprit is not None
    assert found.culprit.cause == "module"
    assert found.culprit.facts["in_evaluation_only"]
    assert found.culprit.place.module == named
    assert "in evaluation only: yes" in judge(found, subject, Training()).why


def test_update_that_overflows_names_its_parameter_and_is_undone(subject: Subject, batch: EventBatch) -> None:
    bench = replace(subject.bench, lr=1e39)
    before = {name: value.clone() for name, value in bench.model.state_dict().items()}
    trial = try_step(bench, [batch])
    assert trial.stage == "parameter"
    assert all(torch.equal(value, before[name]) for name, value in bench.model.state_dict().items())
    assert not bench.optimizer.state
    place = locate(bench, [batch], trial)
    assert place.stage == "parameter"
    assert place.parameter in dict(bench.model.named_parameters())


@pytest.mark.parametrize("lr", [1e-3, 1e39])
def test_moments_and_rates_are_as_before_a_try(subject: Subject, batch: EventBatch, lr: float) -> None:
    """Parameter by parameter the same numbers are found broken as by the step of training over all at once."""
    bench = subject.bench
    bench.loss(bench.forward(batch), batch, bench.counts([batch])).total.backward()
    bench.optimizer.step()
    before, rates = bench.state(), [group["lr"] for group in bench.optimizer.param_groups]
    trial = try_step(replace(bench, lr=lr), [batch])
    after = bench.state()
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert [group["lr"] for group in bench.optimizer.param_groups] == rates

    bench.loss(bench.forward(batch), batch, bench.counts([batch])).total.backward()
    nn.utils.clip_grad_norm_([*bench.model.parameters(), *bench.task.parameters()], bench.config.training.grad_clip)
    set_lr(bench.optimizer, lr)
    bench.optimizer.step()
    broken = {*nonfinite_weights(bench.model), *nonfinite_moments(bench)}
    assert set(trial.parameters) == broken
    assert bool(broken) == (lr > 1)


def test_the_most_extreme_events_are_kept_whatever_the_batches(subject: Subject, batch: EventBatch) -> None:
    """By batches of any size the same events are kept as by sorting all of them, and few others are ever copied."""
    rng = np.random.default_rng(4)
    scores = rng.permutation(4000).astype(np.float32)
    event, copied = batch.take(np.array([0])), 0

    class Numbered:
        def __init__(self, start: int, size: int) -> None:
            self.start, self.scores = start, scores[start : start + size]

        def take(self, rows: np.ndarray) -> EventBatch:
            nonlocal copied
            copied += 1
            return replace(event, entry=np.array([self.start + int(rows[0])]))

    class Scored(Ranking):
        def _scores(self, batch: Numbered) -> dict[str, np.ndarray]:  # type: ignore[override]
            return {"one": batch.scores, "two": np.where(batch.scores % 2, batch.scores, 0.0)}

    ranking, start = Scored(subject.bench.model.get_submodule("normalizer"), subject.bench.task), 0  # type: ignore[arg-type]
    for size in (1, 700, 3, 256, 40, 1500, 1500):
        ranking.add(Numbered(start, size), np.zeros(size, np.int64))  # type: ignore[arg-type]
        start += size
    assert start == len(scores)
    kept = {int(found.entry[0]) for found in ranking.events({})}
    odd = np.flatnonzero(scores % 2)
    expected = {*np.argsort(scores)[-MOST_RANKED:], *odd[np.argsort(scores[odd])[-MOST_RANKED:]]}
    assert kept == {int(row) for row in expected}
    assert ranking.highest() == {"one": 3999.0, "two": 3999.0}
    assert copied < 2 * MOST_RANKED * 7


@pytest.mark.parametrize("kind", ["mae", pytest.param("inpainter", marks=pytest.mark.slow)])
def test_sensor_level_trainings_name_the_reading_behind_the_mask(write_config: Write, kind: str) -> None:
    config = write_config(kind, normalization={"npho_scheme": "linear", "npho_scale": 1.0})
    subject = of_config(load_config(config).config, None, "cpu")
    batch = next(iter(subject.batches()))
    npho = batch.npho.clone()
    npho[1, 4000] = -1e37
    culprit = find_culprit(subject.bench, [replace(batch, npho=npho)])
    assert culprit is not None
    assert culprit.window[0].entry.tolist() == [int(batch.entry[1])]
    assert [(r.channel, r.sensor) for r in culprit.readings] == [("npho", 4000)]


def test_weight_that_is_not_finite_is_the_reading_at_fault(subject: Subject, batch: EventBatch) -> None:
    weight = batch.weight.clone()
    weight[2] = float("nan")
    culprit = find_culprit(subject.bench, [replace(batch, weight=weight)])
    assert culprit is not None
    assert [r.channel for r in culprit.readings] == ["weight"]
    assert culprit.window[0].entry.tolist() == [int(batch.entry[2])]
    assert culprit.cause == "input"


def test_saved_batch_comes_back_as_it_was(batch: EventBatch, tmp_path: Path) -> None:
    window = (batch.take(np.array([0, 1])), replace(batch.take(np.array([3])), step=7))
    save_batch(tmp_path / "b.npz", SavedBatch(window, ("a.root",), {"rank": 1}))
    saved = load_batch(tmp_path / "b.npz")
    assert (saved.files, saved.facts["rank"]) == (("a.root",), 1)
    for was, now in zip(window, saved.window, strict=True):
        assert (was.epoch, was.step) == (now.epoch, now.step)
        assert torch.equal(was.npho, now.npho)
        assert all(torch.equal(was.targets[name], now.targets[name]) for name in was.targets)
        assert was.event.tolist() == now.event.tolist()


def test_scores_are_those_of_known_light_and_used_times_alone(subject: Subject, batch: EventBatch) -> None:
    """What counts is told apart from dead sensors, from 1e10 as rounding left it, and from times without light."""
    norm = subject.bench.model.get_submodule("normalizer")
    rng = np.random.default_rng(11)
    rows = np.arange(300) % batch.num_events
    many = replace(batch.take(rows), file_index=np.zeros(300, np.int32), entry=np.arange(300), extremes=None)
    npho, time = many.npho.numpy(), many.time.numpy()
    npho *= rng.uniform(0.2, 5.0, (300, 1)).astype(np.float32)
    for values in (npho, time):
        for value in (1e10, 9.6e9, 1.04e10):
            values[rng.random(values.shape) < 0.02] = value
    late = rng.random(time.shape) < 0.01
    time[late] = rng.uniform(-3e-6, 3e-6, late.sum())  # later than any used one, in sensors with and without light
    npho[7], time[8], npho[9], npho[10, 3], time[11, 4] = 1e10, 1e10, 9.5e9, math.nan, math.nan
    with np.errstate(invalid="ignore"):
        known = np.where(np.abs(npho) < 9e9, npho, 0.0)
        used = np.where((np.abs(npho) < 9e9) & (npho >= norm.npho_threshold) & (np.abs(time) < 9e9), np.abs(time), 0.0)
    wanted = {"time": used.max(axis=1), "light": known.sum(axis=1, dtype=np.float64)}
    ranking = Ranking(norm, subject.bench.task)  # type: ignore[arg-type]
    for start in range(0, 300, 40):
        rows = np.arange(start, min(start + 40, 300))
        ranking.add(measured(many.take(rows)), rows)
    highest = ranking.highest()
    assert highest["time"] == pytest.approx(wanted["time"].max() / norm.time_scale, rel=1e-6)
    assert highest["light"] == pytest.approx(wanted["light"].max(), rel=1e-5)
    light = norm.scheme(torch.from_numpy(known[[8, *range(12, 300)]]).max(dim=1).values).max()  # type: ignore[operator]
    assert highest["npho"] == pytest.approx(float(light), rel=1e-6)
    kept = {int(event.entry[0]) for event in ranking.events({"npho": 1e30, "light": 1e30, "truth energy": 1e30})}
    assert {*np.argsort(wanted["time"])[-5:]} <= kept


def test_a_scan_leaves_the_threads_of_the_process_as_they_were(subject: Subject, batch: EventBatch) -> None:
    bench, before, inside = subject.bench, torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:

        def batches() -> Iterator[EventBatch]:
            inside.append(torch.get_num_threads())
            yield batch

        scan(at_their_step(batches()), bench.config, bench.model, bench.task)
        assert (inside, torch.get_num_threads()) == ([1], 3)
    finally:
        torch.set_num_threads(before)
