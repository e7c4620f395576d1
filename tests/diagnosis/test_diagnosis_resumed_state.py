"""A resume that goes on with another state than was saved is named by what differs; a sound one by nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.ranking import diagnose
from xectool.diagnosis.rules.resumed_state import changes, set_back
from xectool.runlog.records import EventRecord

Damage = Callable[[Checkpoint], object]
CUT = 4


def moments(saved: Checkpoint) -> list[dict[str, Any]]:
    return list(saved.training["optimizer"]["state"].values())


def nothing(saved: Checkpoint) -> None:
    """Leave everything as it was saved."""


def moments_begin_again(saved: Checkpoint) -> None:
    for entry in moments(saved):
        entry["exp_avg"].zero_()
        entry["exp_avg_sq"].zero_()
        entry["step"].zero_()


def second_moments_lost(saved: Checkpoint) -> None:
    for entry in moments(saved):
        entry["exp_avg_sq"].zero_()


def average_begins_again(saved: Checkpoint) -> None:
    saved.meta["num_averaged"] = 0
    for key, weight in saved.model.items():
        saved.ema[key].copy_(weight)


def matrices_change_places(saved: Checkpoint) -> None:
    shapes: dict[Any, str] = {}
    for key, weight in saved.model.items():
        other = shapes.setdefault(tuple(weight.shape), key)
        if other != key and weight.ndim > 1:
            saved.model[key], saved.model[other] = saved.model[other].clone(), weight.clone()
            return


def a_bit_flips(saved: Checkpoint) -> None:
    weight = next(weight for weight in saved.model.values() if weight.ndim > 1)
    weight.view(-1)[3] = 3e4


def schedule_begins_again(saved: Checkpoint) -> None:
    saved.meta["schedule"]["start_step"] = CUT - 1


def config(events: Path, save_dir: Path) -> Path:
    """Write a configuration of two steps an epoch."""
    task = {"enabled": True, "scale": "auto", "shift": "auto"}
    path = save_dir.with_suffix(".yaml")
    content = {
        "kind": "regressor",
        "data": {"train_path": f"{events}/train.root", "val_path": f"{events}/val.root", "batch_size": 6},
        "model": {"encoder_dim": 32, "hidden_dim": 8, "outer_fine_pool": [9, 6], "num_fusion_layers": 1},
        "tasks": {"energy": task, "uvwFI": task},
        "training": {"epochs": 3, "lr_scheduler": "cosine", "warmup_epochs": 0, "lr": 1e-3, "ema_decay": 0.9},
        "checkpoint": {"save_dir": str(save_dir), "save_artifacts": False, "save_minutes": None},
        "mlflow": {"enabled": False, "run_name": "r"},
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def resumed(tmp_path: Path) -> Callable[[Damage | None], list[str]]:
    """Train, damage what was saved (None: put an older file in its place), resume, and return what is named."""
    engine.simulate(tmp_path / "train.root", events=12, seed=3)
    engine.simulate(tmp_path / "val.root", events=4, seed=4)

    def train(name: str, steps: int, resume: str | None = "auto") -> None:
        engine.train(config(tmp_path, tmp_path / name), max_steps=steps, resume=resume)

    train("sound", CUT - 2, None)
    older = shutil.copy(tmp_path / "sound" / "r" / store.LAST_NAME, tmp_path / "older.pt")
    train("sound", CUT)
    number = 0

    def named(damage: Damage | None) -> list[str]:
        nonlocal number
        number += 1
        place = tmp_path / str(number) / "r"
        shutil.copytree(tmp_path / "sound" / "r", place)
        if damage is None:
            shutil.copy(older, place / store.LAST_NAME)
        else:
            saved = store.load(place / store.LAST_NAME)
            damage(saved)
            store.save(place / store.LAST_NAME, saved)
        train(str(number), CUT)
        return [cause.code for cause in diagnose(gather(place)).causes]

    return named


def test_what_a_resume_did_not_bring_back_is_named_before_any_loss_tells(
    resumed: Callable[[Damage | None], list[str]],
) -> None:
    assert resumed(nothing) == []
    for damage in (moments_begin_again, average_begins_again, schedule_begins_again, None):
        assert resumed(damage) == ["XT-RESTART"], damage
    for damage in (second_moments_lost, matrices_change_places, a_bit_flips):
        assert resumed(damage)[0] == "XT-NAN-RESUME", damage


MARKS = {
    "weights": {"a": [3.0, 0.4]}, "average": {"a": [2.9, 0.3]}, "exp_avg": {"a": [1e-3, 1e-4]},
    "exp_avg_sq": {"a": [1e-6, 1e-7]}, "updates": 40.0, "averaged": 40, "rate": 1e-4, "rate_of": "x",
}  # fmt: skip


@pytest.mark.parametrize("other", [
    {},
    {"weights": {"a": [3.0001, 0.4]}},
    {"weights": {"b": [9.0, 0.4]}},
    {"average": {}, "averaged": 0},
    {"rate": 1e-3, "rate_of": "y"},
    {"rate": 1e-3, "rate_of": ""},
])  # fmt: skip
def test_another_device_average_or_rate_that_was_asked_for_is_no_other_state(other: dict[str, Any]) -> None:
    assert list(changes({"marks": MARKS}, {"marks": MARKS | other})) == []
    assert list(changes({}, {"marks": MARKS | other})) == []


@pytest.mark.parametrize(("name", "step", "named"), [
    ("r/checkpoint_last.pt", 20, True), ("r/checkpoint_last.pt", 0, False), ("r/checkpoint_best.pt", 20, False),
    ("other/checkpoint_last.pt", 20, False), ("r/checkpoint_last.pt", 40, False),
])  # fmt: skip
def test_only_the_last_checkpoint_of_the_run_itself_can_be_too_old(name: str, step: int, named: bool) -> None:
    saved = EventRecord("checkpoint", 100.0, 100.0, 40)
    resume = EventRecord("resume", 200.0, 200.0, step, data={"path": f"/runs/{name}"})
    assert bool(set_back(Path("/runs/r"), resume, [saved])) is named


@pytest.mark.parametrize(("first", "damaged"), [({"a": [2.0, 0.1]}, False), ({"a": [1.0, 0.1]}, True), (None, True)])
def test_weights_that_the_run_began_with_are_forgotten_and_not_damaged(first: Any, damaged: bool) -> None:
    (found,) = changes({"marks": MARKS}, {"marks": MARKS | {"weights": {"a": [2.0, 0.1]}}}, first)
    assert found.damaged is damaged


def test_weights_that_are_not_finite_are_not_those_that_were_saved() -> None:
    (found,) = changes({"marks": MARKS}, {"marks": MARKS | {"weights": {"a": ["Infinity", 0.4]}}})
    assert found.damaged


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_moments_that_are_not_finite_are_damaged(key: str, value: str) -> None:
    """Numbers that are not finite are recorded as text."""
    (found,) = changes({"marks": {key: {"a": [1.0, 0.2]}}}, {"marks": {key: {"a": [value, value]}}})
    assert found.damaged
