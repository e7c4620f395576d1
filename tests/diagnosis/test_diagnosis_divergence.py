"""A validation loss that has run away is a fault, and stands behind whatever led to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xectool import engine
from xectool.diagnosis.cause import Diagnosis
from xectool.diagnosis.evidence.evidence import gather

Record = Callable[[Any], Diagnosis]
RAN_AWAY = {"val/loss": 90.0}
BAD_SCALE = {"channels": {"npho": {"mean": 900.0, "std": 2e3, "absmax": 1e5}}, "level": "error"}


def validated(course: Any, losses: tuple[float, ...], first: float = 0.8) -> Any:
    """Return a run whose training steps are sound, with other losses of its validations."""
    run = course(steps=40 * len(losses), config={"data": {"train_path": "a.root", "val_path": "v.root"}})
    run.at(1, loss=first)
    run.epochs = {number: {"metrics": {"val/loss": loss}} for number, loss in enumerate(losses, 1)}
    return run


@pytest.mark.parametrize(
    ("first", "losses", "said"),
    [
        (0.8, (0.5, 0.02, 90.0), "3, 4.5e+03 times the 0.02 of epoch 2; the best checkpoint is of epoch 2, 0.02"),
        (0.8, (200.0, 90.0, 95.0), "the 0.8 of step 1; the best checkpoint is of epoch 2, 90, when it had run away"),
        (0.8, (90.0, 0.5, 0.4), ""),  # it came back
        (0.8, (0.5, 0.002, 0.7), ""),  # overtrained: still below untrained weights
        (0.8, (0.5, 0.4, 30.0), ""),
        (-0.1, (-2.0, -1.0, 90.0), ""),  # a logarithm of a density has no zero to compare with
        (0.8, (0.5, math.nan, 90.0), "90 after epoch 3, 180 times the 0.5 of epoch 1"),
        (0.8, (0.5, 90.0, math.nan), ""),  # of another rule
    ],
)  # fmt: skip
def test_a_final_loss_far_above_the_first_is_a_divergence(
    record: Record, course: Any, first: float, losses: tuple[float, ...], said: str
) -> None:
    found = [cause for cause in record(validated(course, losses, first)).causes if cause.code == "XT-DIVERGED"]
    assert [said in cause.problem for cause in found] == [True] * bool(said)


def test_a_validation_that_ran_away_beside_sound_steps_is_no_healthy_run(course: Any, write_run: Any) -> None:
    """`train` said that it had diverged, `diagnose run` of the same run that it was healthy."""
    place = write_run(validated(course, (0.5, 0.02, 90.0, 95.0)))
    (place / "checkpoint_best.pt").write_bytes(b"x")
    health = engine.diagnose.run(place)
    (cause,) = health.causes
    assert (health.bad, cause.code, cause.step) == (True, "XT-DIVERGED", 120)
    assert health.verdict == f"XT-DIVERGED: {health.diverged}"
    assert f"--resume {place}/checkpoint_best.pt --run-name run-lower-lr --set training.lr=0.0001" in health.next
    assert engine.diagnose.loss(health.run_dir).since_step == 120


def test_the_first_step_is_named_by_its_number(course: Any, write_run: Any) -> None:
    run = validated(course, (200.0, 90.0, 95.0))
    run.nan(1)
    run.at(2, loss=0.7)
    found = engine.diagnose.run(write_run(run))
    assert "times the 0.7 of step 2;" in (found.diverged or "")


def test_files_that_were_never_predicted_are_looked_at(record: Record, course: Any) -> None:
    (cause,) = record(validated(course, (200.0, 90.0, 95.0))).causes
    assert cause.fix.startswith("xectool check-data v.root --config ")


def test_nothing_ran_away_in_a_sound_run(course: Any, write_run: Any) -> None:
    health = engine.diagnose.run(write_run(course()))
    assert (health.bad, health.diverged, "Diverged" in health.rules_run) == (False, None, True)


def _late_spike(run: Any) -> None:
    run.at(170, loss=60.0, grad_norm=80.0)


@pytest.mark.parametrize(
    ("losses", "trouble", "step"),
    [
        ((200.0, 90.0, 95.0, 96.0, 94.0), _late_spike, 40),
        ((0.5, 0.02, 90.0, 95.0), lambda run: run.nan(150), 120),
        ((0.5, 0.02, 90.0, 95.0), lambda run: run.nan(5), 120),
    ],
    ids=["a spike after it", "a step left out after it", "a step left out before it"],
)
def test_what_came_later_or_moved_no_weight_did_not_lead_to_it(
    course: Any, write_run: Any, losses: tuple[float, ...], trouble: Callable[[Any], None], step: int
) -> None:
    """The line to paste was that of the later event, and the look at the validation files was lost."""
    run = validated(course, losses)
    trouble(run)
    (found,) = [cause for cause in engine.diagnose.run(write_run(run)).causes if cause.code == "XT-DIVERGED"]
    assert (found.step, found.follows) == (step, "")


@pytest.mark.parametrize("code", ["XT-SPIKE-LR", "XT-NAN-LR", "XT-INPUT-SCALE", "XT-TARGET-SCALE"])
def test_what_led_to_it_stands_before_it(record: Record, course: Any, code: str) -> None:
    run = validated(course, (0.5, 0.02, 90.0, 95.0))
    if code == "XT-SPIKE-LR":
        run.scale(90, 1.2 ** np.arange(71))
    elif code == "XT-NAN-LR":
        run.scale(100, 1.4 ** np.arange(60))
        for step in range(150, 156):
            run.nan(step)
    elif code == "XT-INPUT-SCALE":
        run.event(121, "input_scale", sample="validation", **BAD_SCALE)
    else:
        run.event(1, "baseline", terms={}, target_std={"energy": 0.01}, val_target_unit={"energy": "MeV in v.root"})
    first, *others = record(run).causes
    assert first.code == code
    assert {cause.code: cause.follows for cause in others}["XT-DIVERGED"] in (code, "XT-SPIKE-LR")


def test_what_does_no_harm_did_not_lead_to_it(record: Record, course: Any) -> None:
    run = validated(course, (0.5, 0.02, 90.0))
    run.event(3, "invalid_npho", message="invalid photon number -inf: run 1 event 2, entry 3 of a.root:tree, sensor 9")
    assert [(cause.code, cause.follows) for cause in record(run).causes] == [("XT-DIVERGED", ""), ("XT-NAN-DATA", "")]


def test_the_first_step_stays_where_others_are_thinned_out(course: Any, write_run: Any) -> None:
    """Without it an overtrained run lay above a later step, and would have run away."""
    place = write_run(course(steps=4000, per_epoch=400))
    assert gather(place, 500).steps["step"][0] == 1
