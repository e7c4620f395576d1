"""Sensor-level trainings have a baseline too: one constant a face and channel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import uproot
from xectool.config.load import load_config
from xectool.errors import DataUnusable
from xectool.rootio.writer import TreeWriter
from xectool.training.events.baseline import TOTAL, first_events
from xectool.training.guards.learning import NoLearning
from xectool.training.process.device import plan_execution
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.build import build_parts, open_data
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress

Write = Callable[..., Path]


def parts(config: Path) -> RunParts:
    data = open_data(load_config(config).config)
    return build_parts(data, plan_execution(data.config.training, "cpu"), Ranks())


@pytest.mark.parametrize("kind", ["mae", "inpainter"])
def test_no_constant_of_a_face_is_much_better_than_the_baseline(sensor_config: Write, kind: str) -> None:
    run = parts(sensor_config(kind))
    task: Any = run.task
    batch = task.prepare(next(iter(first_events(run.config, run.train_loader.source))))
    counts = task.counts(batch)

    def objective(constant: float) -> float:
        values = task.loss_fn.values(torch.full_like(task.loss_fn.targets(batch), constant), batch)
        sums = task.groups.sums((values * task.loss_fn.weights(batch)).sum(dim=0)).flatten()
        return float(task.combine(sums, counts))

    found = run.baseline.terms[TOTAL]
    assert 0 < found < 1.2 * min(objective(value) for value in (-1.0, 0.0, 0.01, 0.03, 0.1, 0.3, 1.0))
    assert math.isnan(run.baseline.objective)


def test_weights_that_are_learnt_have_no_baseline(sensor_config: Write) -> None:
    assert parts(sensor_config("mae", training={"auto_channel_weight": True})).baseline.terms == {}


@pytest.mark.parametrize(
    ("losses", "step", "expected"),
    [
        ((1.2, 1.19), 600, ["no_learning"]),
        ((1.2, 1.0), 600, []),  # still falling
        ((1.2, 1.19), 300, []),  # too early
        ((0.7, 0.7), 600, []),
    ],
)
def test_objective_that_stands_still_at_the_baseline_is_no_learning(
    sensor_config: Write, losses: tuple[float, float], step: int, expected: list[str]
) -> None:
    run = parts(sensor_config("mae"))
    guard = NoLearning(replace(run, baseline=replace(run.baseline, terms={TOTAL: 1.0})))
    found = [n.kind for loss in losses for n in guard.after_epoch(Progress(epoch=9, step=step), {"val/loss": loss})]
    assert found == expected


def test_one_file_in_another_unit_is_told_and_validation_has_its_own_baseline(
    tiny_config: Write, tiny_data: Path, tmp_path: Path
) -> None:
    with uproot.open(tiny_data / "train_000.root") as file:
        columns = dict(file["tree"].arrays(library="np"))
    columns["uvwTruth"] = columns["uvwTruth"] / 100
    with TreeWriter(tmp_path / "m.root", {n: (v.dtype.str[1:], v.shape[1:]) for n, v in columns.items()}) as writer:
        writer.extend(columns)
    files = [str(tiny_data / "train_001.root"), str(tmp_path / "m.root")]
    tasks = {"uvwFI": {"enabled": True, "scale": "auto", "shift": "auto"}}
    baseline = parts(tiny_config(data={"train_path": files}, tasks=tasks)).baseline
    assert baseline.units == {"uvwFI": f"m in {tmp_path / 'm.root'}:tree"}
    assert set(baseline.val_terms) == set(baseline.terms) != set()


def test_one_event_that_a_cut_leaves_is_no_constant_truth(tiny_config: Write, tiny_data: Path, tmp_path: Path) -> None:
    with uproot.open(tiny_data / "train_000.root") as file:
        columns = dict(file["tree"].arrays(library="np"))
    tasks = {"uvwFI": {"enabled": True, "scale": "auto", "shift": "auto"}}
    for events, constant, code in ((1, False, "XT-DATA-NO-EVENTS"), (3, True, "XT-DATA-CONSTANT"), (3, False, "")):
        rows = {name: values[:events].copy() for name, values in columns.items()}
        if constant:
            rows["uvwTruth"][:] = rows["uvwTruth"][0]
        path = tmp_path / f"{events}_{constant}.root"
        with TreeWriter(path, {n: (v.dtype.str[1:], v.shape[1:]) for n, v in rows.items()}) as writer:
            writer.extend(rows)
        config = load_config(tiny_config(data={"train_path": str(path)}, tasks=tasks)).config
        if not code:
            assert open_data(config).config.tasks.uvwFI.scale > 0
            continue
        with pytest.raises(DataUnusable) as refused:
            open_data(config)
        assert refused.value.code == code
