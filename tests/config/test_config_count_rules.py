"""Rules that know how many events there are."""

from __future__ import annotations

from typing import Any

import pytest
from xectool.config.load import config_from_dict
from xectool.config.root import RunConfig
from xectool.config.rules.count import COUNT_RULES, count_rules, prediction_bytes
from xectool.data.blocks import SourceFile
from xectool.data.plan import DataPlan
from xectool.findings import Severity


def config(kind: str = "regressor", **sections: Any) -> RunConfig:
    tasks = {"tasks": {"energy": {"enabled": True, "scale": "auto"}}} if kind == "regressor" else {}
    training = {"ema_decay": None, **sections.pop("training", {})}  # few events are a short run for any average
    return config_from_dict({"kind": kind, **tasks, "training": training, **sections}, "here")


def test_an_epoch_without_a_batch_is_refused() -> None:
    (found,) = count_rules(config(data={"drop_last": True, "batch_size": 64}), 100, 10, world_size=2)
    assert (found.code, found.severity) == ("CFG-35", Severity.ERROR)
    assert "0 batches" in found.problem


def test_an_epoch_of_one_batch_is_enough() -> None:
    assert len(count_rules(config(data={"drop_last": True, "batch_size": 50}), 100, 10, world_size=2)) == 0


def test_an_epoch_of_one_short_step_is_told() -> None:
    (found,) = count_rules(config(data={"batch_size": 64}), 100, 10, world_size=2)
    assert (found.code, found.severity, found.fix) == ("DAT-06", Severity.WARNING, "--set data.batch_size=50")
    assert len(count_rules(config(data={"batch_size": 50}), 100, 10, world_size=2)) == 0
    (found,) = count_rules(config(data={"batch_size": 1}), 3, 10, world_size=8)  # no batch is smaller
    assert found.fix == "--set distributed.num_gpus=3"


def test_accumulation_beyond_the_epoch_names_the_effective_batch() -> None:
    (found,) = count_rules(config(data={"batch_size": 64}, training={"grad_accum_steps": 8}), 200, 10)
    assert found.code == "CFG-25"
    assert "effective batch is 200, not 512" in found.problem
    assert found.fix == "training.grad_accum_steps: 4"


def test_accumulation_within_the_epoch_is_fine() -> None:
    assert len(count_rules(config(data={"batch_size": 64}, training={"grad_accum_steps": 4}), 256, 10)) == 0


def test_predictions_of_a_million_events_are_sized() -> None:
    (found,) = count_rules(config("inpainter", model={"freeze_encoder": False}), 10_000, 1_000_000)
    assert found.code == "CFG-23"
    assert "7.1 GB" in found.problem
    assert "validation.max_events" in found.fix


def test_fewer_predicted_events_are_fine() -> None:
    limited = config("inpainter", model={"freeze_encoder": False}, validation={"max_events": 100_000})
    assert len(count_rules(limited, 10_000, 1_000_000)) == 0


@pytest.mark.parametrize(("ratio", "rows"), [(0.05, 238), ({"inner": 0.1, "us": 0.0}, 238)])
def test_the_size_counts_hidden_sensors_once(ratio: Any, rows: int) -> None:
    assert prediction_bytes(config("inpainter", model={"mask_ratio": ratio})) == rows * 30


def test_each_rule_has_a_title() -> None:
    assert all(rule.title for rule in COUNT_RULES)


@pytest.mark.parametrize(
    ("shards", "ranks", "readers"), [(8, 3, 3), (8, 64, 8), (6, 4, 2), (8, 2, 1), (8, 1, 1), (64, 64, 1)]
)
def test_ranks_that_share_shards_read_them_twice(shards: int, ranks: int, readers: int) -> None:
    plan = DataPlan((SourceFile("a.root", "tree", 10_000),), 4, 1, num_shards=shards, world_size=ranks)
    read = sum(len(plan.shards_of_rank(rank)) for rank in range(ranks))
    assert read == readers * shards  # what the plan really does
    found = list(count_rules(config(data={"num_shards": shards}), 100_000, 10, world_size=ranks))
    assert [(one.code, f"by {readers} of the {ranks} ranks" in one.problem) for one in found] == (
        [("CFG-64", True)] if readers > 1 else []
    )
    assert not list(count_rules(config(data={"num_shards": shards, "cache": "/fast"}), 100_000, 10, world_size=ranks))


def test_the_advised_shards_are_read_once() -> None:
    (found,) = count_rules(config(data={"num_shards": 8, "chunksize": 8192}), 10_000, 10, world_size=3)
    assert found.fix.startswith("--set data.num_shards=9 --set data.chunksize=9216")
    assert not list(count_rules(config(data={"num_shards": 9, "chunksize": 9216}), 10_000, 10, world_size=3))


@pytest.mark.parametrize(
    ("events", "epochs", "accumulated", "fix"),
    [
        (400, 1, 1, "0.6"), (400, 20, 1, "0.98"),
        (400, 40, 2, "0.9808"), (90, 1, 1, "null"),
        (400, 40, 1, None), (16_000, 1, 1, None),
    ],
)  # fmt: skip
def test_an_average_over_more_steps_than_the_run_has_is_told_with_one_that_fits(
    events: int, epochs: int, accumulated: int, fix: str | None
) -> None:
    training = {"epochs": epochs, "warmup_epochs": 0, "grad_accum_steps": accumulated, "ema_decay": 0.999}
    found = list(count_rules(config(data={"batch_size": 16}, training=training), events, 10))
    told = [("CFG-65", Severity.WARNING, "--set training.ema_decay=auto")] if fix else []
    assert [(item.code, item.severity, item.fix) for item in found] == told
    resumed = count_rules(config(data={"batch_size": 16}, training=training), events, 10, resumes=True)
    fixes = [item.fix.partition("   #")[0] for item in resumed]  # a remark tells that there is no average
    assert fixes == ([f"--set training.ema_decay={fix}"] if fix else [])  # auto: as it was
    training |= {"ema_decay": "auto"}
    assert not list(count_rules(config(data={"batch_size": 16}, training=training), events, 10))
    assert not list(count_rules(config(data={"batch_size": 16}, training=training | {"ema_decay": None}), events, 10))


def test_of_a_long_run_the_fitting_average_is_below_one() -> None:
    """It was rounded to `training.ema_decay=1`, which CFG-52 refuses."""
    training = {"epochs": 400, "warmup_epochs": 0, "ema_decay": 0.999999}
    (found,) = count_rules(config(data={"batch_size": 16}, training=training), 16_000, 10, resumes=True)
    assert found.fix == "--set training.ema_decay=0.999975"
    assert "are validated and taken by predict" in found.problem
    fitting = training | {"ema_decay": float(found.fix.rpartition("=")[2])}
    assert not list(count_rules(config(data={"batch_size": 16}, training=fitting), 16_000, 10))


def test_the_share_of_the_first_weights_is_that_after_the_first_step() -> None:
    """The average begins as a copy of them; and it was said to be validated with validation.use_ema false."""
    training, off = {"epochs": 200, "warmup_epochs": 0, "ema_decay": 0.9}, {"use_ema": False}
    run = config(data={"batch_size": 16}, training=training, validation=off)
    (found,) = count_rules(run, 16_000, 10, max_steps=5)
    assert "the run has 5: 66% of the averaged weights, which are taken by predict" in found.problem
    assert "those after its first step" in found.problem
    assert not list(count_rules(run, 16_000, 10))
    assert not list(count_rules(run, 16_000, 10, max_steps=1)), "the average of one step is its weights"
