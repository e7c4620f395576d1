"""Each fault is named first, whatever its magnitude, place and seed; two at once are both named."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from xectool.diagnosis.cases.memory_fault import from_text
from xectool.diagnosis.cases.memory_growth import Growth
from xectool.diagnosis.cases.nan import nan_cases
from xectool.diagnosis.cases.plateau import TermLevel
from xectool.diagnosis.cases.spike import spike_cases
from xectool.diagnosis.cause import Cause, Diagnosis, DiagnosisRule
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.ranking import RULES, diagnose, rank
from xectool.diagnosis.rules.nan_state import moment_limit, state_damage
from xectool.diagnosis.signatures.details import detail_of
from xectool.findings import Severity
from xectool.runlog.json_lines import DISK, LIMIT
from xectool.runlog.process import start_ticks
from xectool.runlog.reader import RunReader
from xectool.runlog.status_page import PHASES, StatusPage, Word

Record = Callable[[Any], Diagnosis]
few = settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.generate],  # a failing run says enough; a smaller one is not worth the minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
seeds = st.integers(0, 10**6)
EVENTS = [[0, entry, 1, 100 + entry] for entry in range(8)]


def roots(found: Diagnosis) -> list[str]:
    return [cause.code for cause in found.causes if not cause.follows]


def poison(course: Any, step: int, **said: Any) -> None:
    """A NaN that single events bring, as the guard records it without a triage."""
    course.nan(step, stage="loss", events=EVENTS, columns=["file_index", "entry", "run", "event"], **said)


def keep(run_dir: Path, content: dict[str, Any]) -> Path:
    """Keep an incident as a guard does, with the result of the automatic look at it."""
    folder = run_dir / "incidents" / "0001"
    folder.mkdir(parents=True)
    (folder / "incident.json").write_text(json.dumps({"events": EVENTS, **content}))
    return folder


def explode(course: Any, first: int, steps: int = 40, rate: float = 1.25, terms: bool = True) -> None:
    """Losses and gradients grow until nothing is finite."""
    growth = rate ** np.arange(1, steps + 1)
    course.scale(first, growth, growth)
    for step in range(first + steps, min(first + steps + 6, course.steps) + 1):
        course.nan(step)
    course.rows = course.rows[: first + steps + 5]
    course.steps = len(course.rows)
    course.end, course.end_data = "failed", {"message": "RunDiverged: training stopped", "code": "XT-NAN"}


@few
@given(seed=seeds, step=st.integers(5, 190), suspects=st.booleans())
def test_a_nan_of_single_events_at_a_sound_rate_is_data(
    record: Record, course: Any, seed: int, step: int, suspects: bool
) -> None:
    run = course(seed=seed)
    poison(run, step, **({"suspects": EVENTS[:1]} if suspects else {}))
    found = record(run)
    assert found.causes[0].code == "XT-NAN-DATA"
    assert found.causes[0].step == step
    assert any("XT-NAN-LR" in line for line in found.causes[0].ruled_out)


@few
@given(seed=seeds, first=st.integers(30, 120), rate=st.floats(1.12, 2.0))
@example(seed=762, first=43, rate=1.132046170670563)
@example(seed=3969, first=117, rate=1.12)  # the slow rise looks like another set of weights as well, and is named after
def test_a_nan_after_growing_gradients_is_the_rate_and_not_the_data(
    record: Record, course: Any, seed: int, first: int, rate: float
) -> None:
    run = course(seed=seed)
    explode(run, first, rate=rate)
    found = record(run)
    slowly = (["XT-SPIKE-LR"], ["XT-NAN-LR", "XT-RESTART"]) if rate < 1.2 else ()
    assert roots(found) in (["XT-NAN-LR"], *slowly)
    assert "training.lr=0.0001" in found.causes[0].fix


def of_one_order(seed: int, count: int) -> list[list[list[int]]]:
    """Batches of 5 of 60 events in the random order of an epoch."""
    order = np.random.default_rng(seed).permutation(60)
    return [batch_of(*order[5 * i : 5 * i + 5]) for i in range(count)]


def batch_of(*entries: int) -> list[list[int]]:
    return [[0, int(entry), 1, 100 + int(entry)] for entry in entries]


@few
@given(seed=seeds)
def test_events_that_meet_in_bad_batches_by_chance_are_not_to_blame(record: Record, course: Any, seed: int) -> None:
    """Of 7 skipped batches in an epoch of 12, more than half of any batch of the next epoch has been in one."""

    def diagnosed(first: list[list[list[int]]], second: list[list[list[int]]]) -> Diagnosis:
        run = course(seed=seed, steps=13 + len(second), per_epoch=12)
        for step, events in [*zip(range(13 - len(first), 13), first, strict=True), *enumerate(second, start=13)]:
            run.nan(step, (), stage="gradient", events=events, columns=["file_index", "entry", "run", "event"])
        return record(run)

    by_chance = diagnosed(of_one_order(seed, 7), of_one_order(seed + 1, 1))
    assert not any("of every epoch" in line for cause in by_chance.causes for line in cause.evidence)
    same = diagnosed([batch_of(17, 0, 1, 2, 3)], [batch_of(20, 21, 17, 22, 23)])
    assert any("entry 17 " in line for cause in same.causes for line in cause.evidence if "of every epoch" in line)


@few
@given(seed=seeds, size=st.floats(11, 1e6))
def test_the_rate_is_not_blamed_where_inputs_are_far_out_of_scale(
    record: Record, course: Any, seed: int, size: float
) -> None:
    run = course(seed=seed, input_scale={"npho": {"mean": size, "std": size, "absmax": 10 * size},
                                         "time": {"mean": 0.0, "std": 0.5, "absmax": 2.0}})  # fmt: skip
    explode(run, 60)
    assert roots(record(run))[0] == "XT-INPUT-SCALE"


@few
@given(seed=seeds, step=st.integers(3, 60), factor=st.floats(2, 50))
def test_inputs_out_of_scale_come_before_the_plateau_they_lead_to(
    record: Record, course: Any, seed: int, step: int, factor: float
) -> None:
    run = course(
        seed=seed, floor=1.02, noise=0.05, input_scale={"npho": {"mean": 0.2, "std": 25 * factor, "absmax": 1e4}}
    )
    assert roots(record(run)) == ["XT-INPUT-SCALE"]


@few
@given(seed=seeds, first=st.integers(2, 150), term=st.sampled_from(["energy", "uvwFI"]))
def test_one_term_that_leaves_its_domain_again_and_again_is_the_loss(
    record: Record, course: Any, seed: int, first: int, term: str
) -> None:
    run = course(seed=seed)
    for step in range(first, 200, 9):
        events = [[0, 1000 * step + entry, 1, step] for entry in range(8)]
        run.nan(step, (term,), stage="loss", events=events)
    assert record(run).causes[0].code == "XT-NAN-LOSS"


@pytest.mark.parametrize(
    ("logarithm", "value", "code"),
    [
        (True, -1.0, "XT-NAN-LOSS"),  # far from all others, but it is the logarithm that cannot take it
        (True, math.inf, "XT-NAN-DATA"),
        (False, -1e8, "XT-NAN-DATA"),
    ],
)
def test_a_target_outside_the_logarithm_is_the_loss_and_one_out_of_all_proportion_is_data(
    write_run: Callable[[Any], Path], course: Any, logarithm: bool, value: float, code: str
) -> None:
    run = course(seed=3, config={"tasks": {"energy": {"log_transform": logarithm}}})
    poison(run, 30, suspects=EVENTS[:1], terms=["energy"])
    run_dir = write_run(run)
    triage = {"cause": "XT-NAN-LOSS", "confidence": "certain", "module": {"phase": "loss"}}
    folder = keep(run_dir, {"kind": "nonfinite", "step": 30, "suspects": EVENTS[:1], "triage": triage})
    targets = np.linspace(0.03, 0.05, 8)
    targets[0] = value
    names = ("file_index", "entry", "run", "event")
    identity = dict(zip(names, np.array(EVENTS).T, strict=True))
    np.savez(folder / "batch.npz", targets_energy=targets[:, None], **identity)
    assert diagnose(gather(run_dir)).causes[0].code == code


@few
@given(seed=seeds, start=st.integers(60, 120), every=st.integers(4, 12))
def test_scaled_gradients_that_go_on_overflowing_are_the_precision(
    record: Record, course: Any, seed: int, start: int, every: int
) -> None:
    run = course(seed=seed, config={"training": {"amp": "fp16"}})
    scale = 65536.0
    for step, row in enumerate(run.rows, start=1):
        bad = step >= start and step % every == 0
        scale = scale / 2 if bad else scale
        row |= {"amp_scale": scale, **({"grad_norm": math.inf, "nonfinite": True, "skipped": True} if bad else {})}
    assert record(run).causes[0].code == "XT-AMP-OVERFLOW"


@pytest.mark.parametrize(("after", "named", "cases"), [(1.0, False, []), (0.5, False, [120]), (1.0, True, [120])])
def test_a_gradient_that_is_not_finite_without_scaling_is_no_overflow(
    course: Any, write_run: Callable[[Any], Path], after: float, named: bool, cases: list[int]
) -> None:
    run = course(config={"training": {"amp": "fp16"}})
    for step, row in enumerate(run.rows, start=1):
        row["amp_scale"] = 2 * after if step < 120 else after  # recorded after the step, which halved it
    if named:
        run.nan(120, (), stage="gradient")
    run.at(120, grad_norm=math.inf, nonfinite=True, skipped=True)
    assert [case.step for case in nan_cases(gather(write_run(run)))] == cases


@few
@given(seed=seeds, step=st.integers(5, 150))
def test_a_finite_loss_with_a_non_finite_gradient_is_the_gradient(
    record: Record, course: Any, seed: int, step: int
) -> None:
    run = course(seed=seed)
    run.nan(step, (), stage="gradient", parameters=["backbone.norm.weight"])
    assert record(run).causes[0].code == "XT-NAN-GRAD"


@few
@given(seed=seeds, step=st.integers(20, 190), known=st.booleans())
def test_weights_that_are_not_finite_are_told_from_data(
    record: Record, course: Any, seed: int, step: int, known: bool
) -> None:
    run = course(seed=seed)
    for later in range(step, step + 6):
        run.nan(later, **({"stage": "weights"} if known else {}))
    run.rows, run.steps, run.end = run.rows[: step + 5], step + 5, "failed"
    run.end_data = {"message": "RunDiverged: training stopped"}
    assert roots(record(run)) == ["XT-NAN-WEIGHTS"]


@few
@given(seed=seeds, at=st.integers(30, 120), delay=st.integers(1, 3), said=st.booleans())
def test_a_nan_right_after_a_resume_is_the_state_it_brought_back(
    record: Record, course: Any, seed: int, at: int, delay: int, said: bool
) -> None:
    run = course(seed=seed, resume_at=at, resume_data={"weights_finite": True, "optimizer_finite": not said})
    for step in range(at + delay, at + delay + 6):
        run.nan(step)
    run.rows, run.steps, run.end = run.rows[: at + delay + 5], at + delay + 5, "failed"
    assert roots(record(run)) == ["XT-NAN-RESUME"]


def test_averaged_weights_that_are_not_finite_are_no_data(record: Record, course: Any) -> None:
    run = course(seed=3, epochs={2: {"metrics": {"val/loss": math.nan}}})
    run.event(80, "validation", finite=False, weights=["encoder.norm.weight"])
    found = record(run)
    assert roots(found) == ["XT-NAN-WEIGHTS"]
    assert "encoder.norm.weight" in found.causes[0].problem
    run.events.clear()
    run.event(80, "validation", finite=False, module="encoder.norm", module_class="LayerNorm")
    found = record(run)
    assert roots(found) == ["XT-NAN-LOSS"]
    assert "nan-batch" not in found.causes[0].fix, "it tries events as training does, and finds nothing"
    run.events.clear()
    assert roots(record(run)) == ["XT-NAN-DATA"]


@pytest.mark.parametrize(("reason", "own"), [("XT-NAN-LOSS", False), ("XT-NAN-GRAD", False), ("XT-SPIKE-EVENT", True)])
def test_a_validation_that_meets_what_events_of_training_were_left_out_for_is_no_data(
    record: Record, course: Any, reason: str, own: bool
) -> None:
    run = course(seed=3, epochs={2: {"metrics": {"val/loss": math.nan}}})
    run.event(30, "quarantine", reason=reason, events=EVENTS, columns=["file_index", "entry", "run", "event"])
    found = record(run)
    assert set(roots(found)) == {reason, "XT-NAN-DATA"} if own else {reason}
    told = [cause.problem for cause in found.causes if cause.symptom == "validation"]
    assert [
        problem.endswith("all steps are finite without the events that were left out of them") for problem in told
    ] == [True] * own


@pytest.mark.parametrize(
    ("seen", "code"),
    [({"weights": ["encoder.norm.weight"]}, "XT-NAN-WEIGHTS"), ({"module": "encoder.norm"}, "XT-NAN-LOSS")],
)
def test_an_event_left_out_of_training_hides_nothing_that_a_validation_saw(
    record: Record, course: Any, seen: dict[str, Any], code: str
) -> None:
    run = course(seed=3, epochs={2: {"metrics": {"val/loss": math.nan}}})
    run.event(30, "quarantine", reason="XT-NAN-GRAD", events=EVENTS, columns=["file_index", "entry", "run", "event"])
    run.event(80, "validation", finite=False, **seen)
    told = [cause.code for cause in record(run).causes if cause.symptom == "validation"]
    assert told == [code]


@few
@given(seed=seeds, at=st.integers(30, 120), factor=st.floats(30, 1e5))
@example(seed=1300, at=113, factor=30.0)  # the running median lags behind a loss that falls
def test_a_loss_that_explodes_after_a_resume_is_the_state_it_brought_back(
    record: Record, course: Any, seed: int, at: int, factor: float
) -> None:
    run = course(seed=seed, resume_at=at)
    run.scale(at + 2, factor * np.exp(-np.arange(60) / 30))
    assert record(run).causes[0].code == "XT-NAN-RESUME"


@few
@given(seed=seeds, step=st.integers(25, 190), factor=st.floats(40, 1e8))
def test_one_wild_batch_is_an_event(record: Record, course: Any, seed: int, step: int, factor: float) -> None:
    run = course(seed=seed)
    run.scale(step, np.array([factor, 1.5, 1.2]), np.array([factor, 1.2, 1.1]))
    found = record(run)
    assert found.causes[0].code == "XT-SPIKE-EVENT"
    assert found.causes[0].step == step


@pytest.mark.parametrize(
    ("left_out", "line"),
    [
        ([[3, 7]], "check-data 7.root 'my data.root' --config "),
        ([[3], [7]], "check-data 3.root 7.root 'my data.root' --config "),
        ([[3]], "diagnose replay "),
    ],
)
def test_events_that_were_left_out_since_are_said_to_be(
    record: Record, course: Any, left_out: list[list[int]], line: str
) -> None:
    """A healed run was told to replay the step, and not that nothing is left to do but to mend the file."""
    run = course()
    run.scale(90, np.array([500.0]), np.array([3.0]))
    run.event(90, "spike", loss=500.0, median=1.0, suspects=[[0, 3, 1, 4], [0, 7, 1, 8]], action="rewind")
    for step, entries in enumerate(left_out, start=90):
        events, files = [[0, entry, 1, entry + 1] for entry in entries], ["my data.root", f"{entries[-1]}.root"]
        run.event(step, "quarantine", events=events, files=files, reason="XT-SPIKE-EVENT", total=1)
    cause = record(run).causes[0]
    assert cause.code == "XT-SPIKE-EVENT"
    assert cause.fix.startswith(f"xectool {line}")
    said = f"left out of the run since step {89 + len(left_out)}"
    assert (said in cause.evidence) == line.startswith("check-data")


def test_a_note_hides_no_fault_of_its_code_and_the_rest_is_counted() -> None:
    """A tail that is no fault took a truth that no event can have with it: "healthy"."""
    tail = Cause("XT-SPIKE-EVENT", 0.92, "a tail", (), "x", severity=Severity.INFO, step=9, symptom="spike@9")
    truth = Cause("XT-SPIKE-EVENT", 0.8, "a truth of 7.7 GeV", (), "x", severity=Severity.WARNING, symptom="truth")
    (told,) = rank([tail, truth], [])
    assert (told.severity, told.problem, told.evidence) == (Severity.WARNING, truth.problem, ("also: a tail",))
    memory = [Cause("XT-OOM-GPU", 0.9, f"rank {n}", (), f"x{n}", step=3 * n, symptom="memory") for n in range(9)]
    (told,) = rank(memory, [])
    assert told.evidence[:2] == ("also: rank 1 (x1)", "also: rank 2 (x2)")
    assert told.evidence[-1] == "also: rank 8 (x8)"
    twice = [Cause("XT-OOM-GPU", 0.9, "no room", (), "x", step=step, symptom="memory") for step in (5, 9)]
    assert rank(twice, [])[0].evidence == ("again at step 9",)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_what_else_shows_a_cause_is_told_beside_its_step(confidence: float) -> None:
    """A truth of 7.7 GeV was "again at step 1" of the jump it made, or every jump one more line beside it."""
    jumps = [
        Cause("XT-SPIKE-EVENT", 0.9 - step / 1e4, f"step {step}: rose", (), "x", step=step, symptom=f"spike@{step}")
        for step in range(17, 57)
    ]
    truth = Cause("XT-SPIKE-EVENT", confidence, "a truth of 7.7 GeV", (), "x", step=1, symptom="impossible truth")
    (told,) = rank([*jumps, truth], [])
    again = ("again at steps 18, 19, 20, 21, 22, 23, 24, 25 …", "also: a truth of 7.7 GeV")
    assert told.evidence == (again if confidence < 0.9 else ("also: step 17: rose",))


@few
@given(seed=seeds, lr=st.floats(0.05, 10), rise=st.floats(12, 1e6))
def test_a_start_that_explodes_is_the_rate(record: Record, course: Any, seed: int, lr: float, rise: float) -> None:
    run = course(seed=seed, lr=lr)
    rows = rise ** (np.minimum(np.arange(200), 4) / 4)
    run.scale(1, rows, rows**1.5)
    found = record(run)
    assert roots(found)[0] == "XT-SPIKE-LR"
    assert "training.lr=0.0003" in found.causes[0].fix or "training.lr=0.00" in found.causes[0].fix


@few
@given(seed=seeds, first=st.integers(60, 140), rate=st.floats(1.15, 1.5))
def test_a_loss_that_climbs_with_its_gradient_is_the_rate(
    record: Record, course: Any, seed: int, first: int, rate: float
) -> None:
    run = course(seed=seed)
    growth = np.minimum(rate ** np.arange(1, 61), 1e4)
    run.scale(first, growth)
    assert record(run).causes[0].code == "XT-SPIKE-LR"


@few
@given(seed=seeds, at=st.integers(80, 180), delay=st.integers(0, 6), factor=st.floats(40, 1e4), told=st.booleans())
def test_a_jump_after_the_schedule_went_back_up_is_the_restart(
    record: Record, course: Any, seed: int, at: int, delay: int, factor: float, told: bool
) -> None:
    run = course(seed=seed, config={"training": {"lr_scheduler": "cosine_restarts"}})
    for step, row in enumerate(run.rows, start=1):
        place = (step - 1) / at if step <= at else (step - at - 1) / at
        row["lr"] = 1e-7 + (1e-3 - 1e-7) * 0.5 * (1 + math.cos(math.pi * min(1.0, place)))
    run.scale(at + 1 + delay, factor * np.exp(-np.arange(30) / 5) + 1)
    if told:
        run.event(at, "schedule_restart", lr_before=1e-7, lr_after=1e-3)
    assert record(run).causes[0].code == "XT-SPIKE-RESTART"


@few
@given(seed=seeds, delay=st.integers(0, 30), steps=st.integers(1, 12), lr=st.floats(0.05, 0.5), told=st.booleans())
def test_a_jump_soon_after_the_rate_went_beyond_all_is_no_event(
    record: Record, course: Any, seed: int, delay: int, steps: int, lr: float, told: bool
) -> None:
    """A resume at a hundred times the rate: three steps later an event was blamed, as the guard saw it over at once."""
    run = course(seed=seed)
    for row in run.rows[100:]:
        row["lr"] = lr
    run.scale(101 + delay, np.full(steps, 300.0))
    if told:
        run.event(101 + delay, "spike", loss=200.0, median=0.7)
        run.event(103 + delay, "spike_recovered")
    assert record(run).causes[0].code in ("XT-SPIKE-LR", "XT-SPIKE-RESTART", "XT-CONFIG-LR")


def test_a_look_that_blames_the_rate_does_not_hide_the_restart_that_raised_it(
    write_run: Callable[[Any], Path], course: Any
) -> None:
    run = course(seed=4, config={"training": {"lr_scheduler": "cosine_restarts"}})
    run.event(100, "schedule_restart", lr_before=1e-7, lr_after=1e-3)
    run.scale(103, 100 * np.exp(-np.arange(30) / 5) + 1)
    run_dir = write_run(run)
    keep(run_dir, {"kind": "spike", "step": 103, "triage": {"cause": "XT-SPIKE-LR", "confidence": "certain"}})
    assert diagnose(gather(run_dir)).causes[0].code == "XT-SPIKE-RESTART"


@few
@given(seed=seeds, lr=st.sampled_from([0.0, 1e-12, 1e-9]), steps=st.integers(20, 200))
def test_a_rate_of_nothing_is_no_learning(record: Record, course: Any, seed: int, lr: float, steps: int) -> None:
    assert record(course(seed=seed, lr=lr, steps=steps, floor=1.0)).causes[0].code == "XT-NO-LEARNING"


@few
@given(seed=seeds, told=st.booleans(), noise=st.floats(0.01, 0.03))  # beyond, one run in a few hundred seems to fall
def test_a_plateau_at_the_constant_prediction_is_no_learning(
    record: Record, course: Any, seed: int, told: bool, noise: float
) -> None:
    run = course(seed=seed, steps=200, start=1.04, floor=1.04, noise=noise, baseline=0.9)
    run.scale(1, 1 + np.exp(-np.arange(200) / 10))
    if told:
        run.event(120, "no_learning", terms={"energy": {"loss": 0.5, "trivial": 0.45, "ratio": 1.1}}, after_steps=120)
    assert record(run).causes[0].code == "XT-NO-LEARNING"


@few
@example(seed=11, spread=1e-3)  # losses of all epochs that fall by chance
@given(seed=seeds, spread=st.floats(0, 1e-2))
def test_collapsed_predictions_come_before_the_plateau(record: Record, course: Any, seed: int, spread: float) -> None:
    run = course(seed=seed, start=1.02, floor=1.02, noise=0.05)
    run.event(80, "no_learning", terms={"energy": {"loss": 0.5, "trivial": 0.5, "ratio": 1.0}}, after_steps=80)
    run.event(80, "collapsed", tasks={"energy": {"pred_std": spread, "target_std": 1.0}})
    found = record(run)
    assert roots(found) == ["XT-COLLAPSED"]
    assert [cause.code for cause in found.causes] == ["XT-COLLAPSED", "XT-NO-LEARNING"]


@pytest.mark.parametrize(("early", "later", "named"), [(True, True, False), (True, False, True), (False, True, True)])
def test_what_did_not_vary_in_an_early_validation_may_in_a_later_one(
    record: Record, course: Any, early: bool, later: bool, named: bool
) -> None:
    run = course(seed=3)
    run.event(20, "validation")
    run.event(20, "collapsed", tasks={"energy": {"pred_std": 0.0, "target_std": 1.0}}, early=early)
    if later:
        run.event(40, "validation")
    assert ("XT-COLLAPSED" in [cause.code for cause in record(run).causes]) is named


@pytest.mark.parametrize(
    ("trivial", "events", "named"),
    [(0.3804, 30, False), (0.379, 30, True), (0.37921, 30, True), (0.3804, 100_000, True), (0.3881, 100_000, False)],
)
def test_a_task_that_falls_below_every_constant_is_learned_beside_one_that_cannot_be(
    record: Record, course: Any, trivial: float, events: int, named: bool
) -> None:
    """Position and time of 100 events of one energy, as recorded: the sum of both fell by 0.6 % in five epochs."""
    position = (0.3949, 0.3875, 0.3852, 0.3828, 0.3807, 0.3797, 0.3795, 0.3794, 0.3793, 0.3792)
    metrics = [{"val/loss": 0.52 + loss, "val/uvwFI/loss": loss, "val/energy/loss": 0.52} for loss in position]
    run = course(steps=100, per_epoch=10, start=1.02, floor=1.02, noise=0.05, baseline=None)
    run.epochs = {number: {"metrics": known} for number, known in enumerate(metrics, 1)}
    terms = {"energy": 0.5, "uvwFI": 0.377}
    run.event(1, "run_start", num_val=events)
    run.event(1, "baseline", terms=terms, val_terms={"energy": 0.52, "uvwFI": trivial})
    run.event(80, "no_learning", terms={name: {"loss": loss, "trivial": loss} for name, loss in terms.items()})
    run.event(80, "collapsed", tasks={"energy": {"pred_std": 0.0024, "target_std": 1.0}})
    assert [cause.code for cause in record(run).causes] == ["XT-COLLAPSED", "XT-NO-LEARNING"] * named


@pytest.mark.parametrize(("level", "spread", "named"), [(0.5, 0.0024, True), (0.1, 0.0024, False), (0.1, 1e-6, True)])
def test_a_task_at_its_constant_beside_one_that_learned_has_collapsed_only_if_it_does_not_vary_at_all(
    record: Record, course: Any, level: float, spread: float, named: bool
) -> None:
    config = {"data": {"train_path": "t.root"}}
    run = course(steps=200, start=1.02, floor=1.02, noise=0.02, baseline=None, config=config)
    for row in run.rows:
        row["losses"] = {"energy": 0.52, "uvwFI": level}
    run.epochs = {number: {"metrics": {"val/energy/loss": 0.52, "val/uvwFI/loss": level}} for number in range(1, 6)}
    run.event(1, "baseline", terms={"energy": 0.5, "uvwFI": 0.5})
    run.event(160, "collapsed", tasks={"energy": {"pred_std": spread, "target_std": 1.0}})
    found = record(run)
    (cause,) = [cause for cause in (*found.causes, *found.notes) if cause.code == "XT-COLLAPSED"]
    assert (cause.severity is Severity.ERROR) == named
    told = "beside uvwFI, learned: its truth may not depend on what is measured" in cause.problem
    assert told == cause.fix.startswith("xectool check-data t.root") == (not named)


def test_a_term_of_which_no_loss_is_known_hides_no_collapse(record: Record, course: Any) -> None:
    run = course(steps=200, start=1.02, floor=1.02, noise=0.02, baseline=None)
    for row in run.rows:
        row["losses"] = {"energy": 0.52}
    run.epochs = {number: {"metrics": {"val/energy/loss": 0.52}} for number in range(1, 6)}
    run.event(1, "baseline", terms={"energy": 0.5, "timing": 0.5})
    run.event(160, "collapsed", tasks={"energy": {"pred_std": 0.0024, "target_std": 1.0}})
    assert roots(record(run)) == ["XT-COLLAPSED"]


@pytest.mark.parametrize("kind", ["mae", "inpainter"])
def test_a_reconstruction_at_the_constant_is_no_learning_only_where_the_guard_has_judged(
    record: Record, course: Any, kind: str
) -> None:
    def run(level: float, *, judged: bool) -> Diagnosis:
        made = course(kind=kind, start=level, floor=level, noise=0.03, baseline=None)
        made.event(1, "baseline", terms={"total": 1.0})
        if judged:
            made.event(160, "no_learning", terms={"total": {"loss": level, "trivial": 1.0}}, after_steps=160)
        made.event(160, "collapsed", tasks={"npho": {"pred_std": 0.005, "target_std": 1.0}})
        return record(made)

    assert [cause.code for cause in run(1.05, judged=True).causes] == ["XT-COLLAPSED", "XT-NO-LEARNING"]
    assert "total: loss 1.05" in str(run(1.05, judged=True).causes[1].evidence)
    assert not run(8.0, judged=False).causes  # as far above the constant as a young network begins
    assert not run(0.5, judged=True).causes  # the run has learned since


@few
@given(seed=seeds, way=st.sampled_from(["event", "blocks", "absent"]), weight=st.sampled_from([0, 0.0, 1.0]))
def test_a_head_without_gradient_is_an_untrained_head(
    record: Record, course: Any, seed: int, way: str, weight: float
) -> None:
    run = course(seed=seed, config={"tasks": {"energy": {"enabled": True, "weight": weight}}})
    if way == "event":
        run.event(3, "zero_gradient", parameters=["heads.energy.4.weight", "heads.energy.4.bias"], after_steps=3)
    for row in run.rows if way != "event" else ():
        row["block_norms"] = {"backbone.inner": row["grad_norm"]} | ({"heads.energy": 0.0} if way == "blocks" else {})
    found = record(run).causes[0]
    assert found.code == "XT-UNTRAINED-HEAD"
    assert ("tasks.energy.weight is 0" in found.problem) is (weight == 0)
    assert found.fix.endswith("--set tasks.energy.weight=1.0" if weight == 0 else "config.yaml")
    assert found.evidence[0].count("heads.energy") == (2 if way == "event" else 1)


@pytest.mark.parametrize("gradient", ["none", "zero", "now and then"])
def test_a_part_that_no_step_trains_is_named_and_one_that_rests_now_and_then_is_not(
    record: Record, course: Any, gradient: str
) -> None:
    run = course(steps=60)
    for number, row in enumerate(run.rows):
        inner = {} if gradient == "none" else {"backbone.inner": 0.0 if gradient == "zero" or number % 19 else 0.1}
        row["block_norms"] = {"backbone.outer": 1.0, "heads.energy": 0.5} | inner
    found = [cause.code for cause in record(run).causes]
    assert found == ([] if gradient == "now and then" else ["XT-ZERO-GRADIENT"])


def test_a_parameter_without_gradient_explains_no_collapse(record: Record, course: Any) -> None:
    """One mask token that nothing uses was the root of everything that does not learn."""
    run = course(steps=120, floor=1.0)
    for row in run.rows:
        row["block_norms"] = {"backbone.inner": 0.7, "heads.energy": 0.5}
    run.event(3, "zero_gradient", parameters=["backbone.token"], after_steps=3)
    run.event(80, "collapsed", tasks={"energy": {"pred_std": 1e-9, "target_std": 1.0}})
    found = record(run)
    assert "XT-ZERO-GRADIENT" in [note.code for note in found.notes]
    assert [(cause.code, cause.follows) for cause in found.causes] == [("XT-COLLAPSED", "")]


@pytest.mark.parametrize("dead", ["all", "one of two"])
def test_an_encoder_without_gradient_leads_to_collapsed_predictions_and_a_part_of_it_does_not(
    record: Record, course: Any, dead: str
) -> None:
    """A dead layer before the heads was `lr-sweep` first: the predictions had collapsed, at any rate."""
    run = course(steps=120, floor=1.0)
    for row in run.rows:
        row["block_norms"] = {"backbone.inner": 0.0, "heads.energy": 0.5}
        row["block_norms"] |= {"backbone.outer": 0.0 if dead == "all" else 0.7}
    run.event(80, "collapsed", tasks={"energy": {"pred_std": 1e-9, "target_std": 1.0}})
    causes = record(run).causes
    assert [cause.code for cause in causes if not cause.follows] == (
        ["XT-ZERO-GRADIENT"] if dead == "all" else ["XT-COLLAPSED", "XT-ZERO-GRADIENT"]
    )
    assert [cause.follows for cause in causes if cause.code == "XT-COLLAPSED"] == ["XT-ZERO-GRADIENT" * (dead == "all")]
    (named,) = [cause for cause in causes if cause.code == "XT-ZERO-GRADIENT"]
    assert ("only the heads are" in named.problem) == (dead == "all")
    assert named.fix.startswith("xectool diagnose gradients ")


@pytest.mark.parametrize(("model", "named"), [
    ({"mask_ratio": 0.05}, True),
    ({"mask_ratio": {"inner": 0.05}}, False),
    ({"mask_ratio": 0.05, "mask_patterns": {"origins": ["dead.txt"]}}, False),
])  # fmt: skip
def test_the_head_of_a_face_in_which_nothing_is_hidden_on_purpose_is_no_fault(
    record: Record, course: Any, model: dict[str, Any], named: bool
) -> None:
    run = course(steps=60, config={"kind": "inpainter", "model": model})
    for row in run.rows:
        row["block_norms"] |= {"head_inner": 0.5, "head_top": 0.0}
    assert [cause.code for cause in record(run).causes] == ["XT-ZERO-GRADIENT"] * named


@pytest.mark.parametrize(("scale", "std", "log_transform", "named"), [
    (1e-12, 0.013, False, True), (1e6, 0.013, False, True), (0.02, 0.013, False, False), (None, 0.013, False, False),
    (1e-12, 0.013, True, False), (None, 2e-9, False, True), (None, 0.0, False, False), (1.0, 7e-18, False, False),
])  # fmt: skip
def test_a_target_far_from_the_scale_of_its_loss_is_named_before_what_follows_from_it(
    record: Record, course: Any, scale: float | None, std: float, log_transform: bool, named: bool
) -> None:
    task = {"enabled": True, "scale": scale, "log_transform": log_transform}
    run = course(steps=60, config={"tasks": {"energy": task}})
    run.event(1, "baseline", terms={}, target_std={"energy": std})
    run.scale(40, np.array([500.0]), np.array([500.0]))
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-TARGET-SCALE"] * named + ["XT-SPIKE-EVENT"]
    assert causes[-1].follows == ("XT-TARGET-SCALE" if named else "")
    assert not named or causes[0].fix.endswith("--set tasks.energy.scale=auto --set tasks.energy.shift=auto")


@pytest.mark.parametrize(("kind", "named"), [("nonfinite", "XT-SPIKE-LR"), ("spike", "XT-SPIKE-EVENT")])
def test_events_that_are_no_numbers_do_not_explain_the_jump_they_lie_in(
    course: Any, write_run: Callable[[Any], Path], kind: str, named: str
) -> None:
    run = course(steps=60, lr=5.0, start=1.0)
    run.scale(2, np.geomspace(100.0, 1.0, 40), np.geomspace(100.0, 1.0, 40))
    poison(run, 11, suspects=EVENTS[:1])
    path = write_run(run)
    keep(path, {"kind": kind, "step": 11 if kind == "nonfinite" else 10, "attempt": 1, "suspects": EVENTS[:1]})
    assert [code for code in roots(diagnose(gather(path))) if "SPIKE" in code] == [named]


@pytest.mark.parametrize(("rate", "named"), [(0.2, True), (0.012, False)])
def test_a_few_steps_at_a_rate_that_erases_all_weights_are_named_before_the_plateau(
    record: Record, course: Any, rate: float, named: bool
) -> None:
    run = course(steps=150, start=1.0, floor=1.0, noise=0.05)
    for row in run.rows[55:62]:
        row["lr"] = rate
    run.scale(1, np.full(55, 0.7), np.full(55, 1.0))
    assert (record(run).causes[0].code == "XT-CONFIG-LR") is named


@pytest.mark.parametrize("won_back", [True, False])
def test_a_rate_that_was_too_high_for_a_while_is_named_where_the_loss_does_not_come_back(
    record: Record, course: Any, won_back: bool
) -> None:
    run = course(steps=90, start=0.6, floor=0.6, noise=0.05)
    for number, row in enumerate(run.rows[45:], start=1):
        row["lr"] = 0.07 * 0.93**number
    run.scale(46, np.concatenate([np.full(8, 2.5), np.full(37, 1.0 if won_back else 1.4)]), np.ones(45))
    assert [cause.code for cause in record(run).causes] == ([] if won_back else ["XT-CONFIG-LR"])


@pytest.mark.parametrize("average", [0.99, None])
def test_an_average_that_leaves_its_start_behind_does_not_excuse_a_rate_at_which_nothing_is_learned(
    record: Record, course: Any, average: float | None
) -> None:
    """Its validations fell from each to the next in a run at 0.1, while the loss of its steps stood still."""
    run = course(steps=80, per_epoch=8, lr=0.1, start=1.0, floor=1.0, config={"training": {"ema_decay": average}})
    for epoch in range(1, 11):
        run.epochs[epoch] = {"metrics": {"val/loss": 1.0 - 0.01 * epoch}}
    assert [cause.code for cause in record(run).causes] == (["XT-CONFIG-LR"] if average else []), "the control"


@pytest.mark.parametrize(("clip", "norm", "named"), [(1e-12, 1.0, True), (1e-3, 1.0, False), (1.0, 1e-10, False)])
def test_a_gradient_that_is_clipped_away_names_the_clip(
    record: Record, course: Any, clip: float, norm: float, named: bool
) -> None:
    run = course(steps=60, start=1.0, floor=1.0, noise=0.02, config={"training": {"grad_clip": clip}})
    for row in run.rows:
        row["grad_norm"] *= norm
        row["clip_coef"] = min(1.0, clip / row["grad_norm"])
    causes = record(run).causes
    assert [cause.fix.endswith("--set training.grad_clip=1.0") for cause in causes] == [True] * named


@pytest.mark.parametrize("num_repeated", [0, 35])
def test_events_that_stand_in_the_files_twice_are_duplicates(record: Record, course: Any, num_repeated: int) -> None:
    run = course(steps=40)
    run.event(1, "run_start", num_train=140, num_repeated=num_repeated)
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-DUPLICATE-EVENTS"] * (num_repeated > 0)
    assert not causes or "35 of 140 training events" in causes[0].problem


@pytest.mark.parametrize(("line", "named"), [
    ("invalid photon number -420.5: run 1 event 2, entry 3 of a.root:tree, sensor 9", False),
    ("invalid photon number -inf: run 1 event 2, entry 3 of a.root:tree, sensor 9", True),
    ("invalid photon number 1e+30: run 1 event 2, entry 3 of a.root:tree, sensor 9", True),
    ("invalid time nan: run 1 event 2, entry 3 of a.root:tree, sensor 9", True),
    ("invalid truth of uvwFI -3.4e+38: run 1 event 2, entry 3 of a.root:tree", True),
])  # fmt: skip
def test_numbers_that_no_event_can_have_are_named_and_noise_below_the_domain_is_not(
    record: Record, course: Any, line: str, named: bool
) -> None:
    run = course(steps=40)
    run.event(3, "invalid_npho", message=line)
    assert [cause.code for cause in record(run).causes] == (["XT-NAN-DATA"] if named else [])


@pytest.mark.parametrize(("back", "first"), [(True, "XT-NAN-GRAD"), (False, "XT-NAN-LR")])
def test_a_gradient_norm_that_came_back_did_not_grow(record: Record, course: Any, back: bool, first: str) -> None:
    run = course(steps=60, lr=2e-4)
    run.at(24, grad_norm=375.0)
    if not back:
        run.at(25, grad_norm=1200.0)
    run.nan(26, terms=(), stage="gradient", suspects=[], finite_batches=True)
    assert record(run).causes[0].code == first


@pytest.mark.parametrize(("rate", "rise", "first"), [
    (0.05, 20.0, "XT-NAN-LR"), (4.0, 1.0, "XT-NAN-LR"), (1e-3, 20.0, "XT-AMP-OVERFLOW"), (0.05, 1.0, "XT-AMP-OVERFLOW"),
])  # fmt: skip
def test_float16_that_ends_behind_a_rate_beyond_all_reason_is_the_rates_fault(
    course: Any, write_run: Callable[[Any], Path], rate: float, rise: float, first: str
) -> None:
    run = course(steps=30, lr=rate, floor=1.0, noise=0.05)
    run.scale(5, np.full(26, rise), np.ones(26))
    for step in range(1, 31):
        run.at(
            step,
            amp_scale=1024.0,
            **({"grad_norm": math.nan, "nonfinite": True, "skipped": True} if step >= 20 else {}),
        )
    run.event(20, "nonfinite_skip", suspects=[], stage="gradient", events=EVENTS)
    run.event(20, "triage", cause="XT-AMP-OVERFLOW", confidence="certain")
    assert roots(diagnose(gather(write_run(run))))[0] == first


@pytest.mark.parametrize("objective", [[], ["tasks.energy.weight"]])
def test_a_loss_that_is_another_number_after_a_resume_is_no_damage(
    record: Record, course: Any, objective: list[str]
) -> None:
    run = course(seed=4, resume_at=100, resume_data={"objective": objective})
    run.scale(101, np.full(100, 60.0), np.full(100, 1.0))
    run.event(100, "baseline", terms={"energy": 60.0, "uvwFI": 60.0})  # that of the other objective
    assert roots(record(run)) == ([] if objective else ["XT-NAN-RESUME"])


@few
@given(seed=seeds, at=st.integers(60, 160))
def test_a_resume_that_forgot_what_was_learned_is_a_silent_restart(
    record: Record, course: Any, seed: int, at: int
) -> None:
    run, fresh = course(seed=seed, resume_at=at, floor=0.05, noise=0.08), course(seed=seed + 1, floor=0.05, noise=0.08)
    for row, new in zip(run.rows[at:], fresh.rows, strict=False):
        row |= {key: new[key] for key in ("loss", "losses", "grad_norm")}
    assert record(run).causes[0].code == "XT-RESTART"


@pytest.mark.parametrize(("loaded", "named"), [("a5" * 16, False), ("0f" * 16, True), (None, False)])
def test_a_resume_with_other_weights_than_were_saved_is_named_before_the_loss_tells(
    record: Record, course: Any, loaded: str | None, named: bool
) -> None:
    run = course(seed=3, resume_at=100, resume_data={"signs": loaded})
    run.event(100, "checkpoint", path="checkpoint_last.pt", seconds=0.1, bytes=5_000_000, signs="a5" * 16)
    assert roots(record(run)) == ["XT-RESTART"] * named


@few
@given(seed=seeds, rate=st.floats(0.7, 0.95))
def test_a_forgotten_state_that_is_learned_again_in_a_few_steps_is_a_silent_restart(
    record: Record, course: Any, seed: int, rate: float
) -> None:
    run = course(seed=seed, resume_at=60, noise=0.1)
    for place, row in enumerate(run.rows):
        level = 0.05 + 8.0 * rate ** (place if place < 60 else place - 60)
        row["losses"] = {name: value * level / row["loss"] for name, value in row["losses"].items()}
        row["loss"] = level * float(np.random.default_rng([seed, place]).lognormal(0, 0.1))
    assert record(run).causes[0].code == "XT-RESTART"


@pytest.mark.parametrize("share", [0.25, 0.6, 0.9])
@few
@given(seed=seeds, steps=st.integers(60, 300))
def test_waiting_for_data_is_a_slow_loader(record: Record, course: Any, share: float, seed: int, steps: int) -> None:
    run = course(seed=seed, steps=steps)
    for row in run.rows:
        row |= {"step_s": 0.05, "data_wait_s": 0.05 * share}
    found = record(run)
    assert found.causes[0].code == "XT-LOADER-SLOW"
    assert f"{share:.0%}" in found.causes[0].problem


@few
@given(seed=seeds, per_step=st.floats(1.5e6, 5e8), column=st.sampled_from(["rss_bytes", "device_bytes"]))
def test_memory_that_rises_with_every_step_is_growth(
    record: Record, course: Any, seed: int, per_step: float, column: str
) -> None:
    run, rng = course(seed=seed), np.random.default_rng(seed)
    for step, row in enumerate(run.rows):
        row[column] = int(5e8 + per_step * (step // 5 * 5) + rng.normal(0, 1e5))
    assert record(run).causes[0].code == "XT-MEM-GROWTH"


@pytest.mark.parametrize(
    ("slope", "settled", "alarming"),
    [(1.3e6, False, False), (3.1e6, False, False), (4.0e6, False, True), (1.3e6, True, True)],
)
def test_libraries_that_start_late_in_the_first_epoch_are_no_growth(
    slope: float, settled: bool, alarming: bool
) -> None:
    """Sound runs took 50 MB in 39 steps of their only epoch, and 123 MB in 74 steps of two."""
    found = Growth("host", 39, "step", slope, 496e6, 496e6 + 39 * slope, 2, 39, steady=True, settled=settled)
    assert found.alarming == alarming


@pytest.mark.parametrize(
    ("epochs", "rise", "named"), [(4, 1.5e8, True), (4, 6e7, False), (6, 6e7, True), (6, 2e7, False)]
)
def test_memory_that_is_lost_while_files_are_read_comes_in_stairs(
    record: Record, course: Any, epochs: int, rise: float, named: bool
) -> None:
    run = course(seed=4, steps=40 * epochs)
    for step, row in enumerate(run.rows):
        row["rss_bytes"] = int(5e8 + rise * (step // 40 + min(1.0, step % 40 / 6)))
    assert roots(record(run)) == ["XT-MEM-GROWTH"] * named


@pytest.mark.parametrize(("per_step", "num_epochs", "named"), [(7e5, 8, True), (7e5, 2, False), (1e5, 8, False)])
def test_memory_that_is_lost_little_by_little_is_growth_once_it_is_much(
    record: Record, course: Any, per_step: float, num_epochs: int, named: bool
) -> None:
    """All below 1 MB a step and 50 MB an epoch of 40 steps."""
    run = course(seed=5, steps=40 * num_epochs)
    for step, row in enumerate(run.rows):
        row["rss_bytes"] = int(5e8 + per_step * step)
    assert roots(record(run)) == ["XT-MEM-GROWTH"] * named


@few
@given(seed=seeds, per_step=st.floats(3e5, 8e5))
def test_an_early_look_at_memory_is_overruled_by_the_rest_of_the_run(
    record: Record, course: Any, seed: int, per_step: float
) -> None:
    """A compiler and caches take 2 MB a step for a while; what the guard then said does not hold for the whole run."""

    def told(steady: float) -> list[str]:
        run, rng = course(seed=seed), np.random.default_rng(seed)
        run.event(30, "memory_growth", message="memory grows by 2.1 MB a step: 500 to 563 MB")
        for step, row in enumerate(run.rows):
            row["rss_bytes"] = int(5e8 + 2.1e6 * min(step, 30) + steady * (step // 5 * 5) + rng.normal(0, 1e5))
        return [cause.code for cause in record(run).causes]

    assert "XT-MEM-GROWTH" not in told(per_step)
    assert "XT-MEM-GROWTH" in told(4 * per_step)


GB = 1e9
OOM = {
    "XT-OOM-GPU": {"side": "device", "requested": 2 * GB, "capacity": 40 * GB, "allocated": 38 * GB,
                   "reserved_unallocated": 0.5 * GB, "foreign": 0.3 * GB},
    "XT-OOM-FRAGMENTATION": {"side": "device", "requested": 2 * GB, "capacity": 40 * GB, "allocated": 28 * GB,
                             "reserved_unallocated": 10 * GB, "foreign": 0.3 * GB},
    "XT-OOM-FOREIGN": {"side": "device", "requested": 2 * GB, "capacity": 40 * GB, "allocated": 10 * GB,
                       "reserved_unallocated": 0.5 * GB, "foreign": 28 * GB},
    "XT-OOM-HOST": {"side": "host", "text": "Cannot allocate memory"},
}  # fmt: skip


@pytest.mark.parametrize("code", OOM)
@few
@given(seed=seeds, size=st.floats(0.2, 5))
def test_each_kind_of_lack_of_memory_has_its_name(
    record: Record, course: Any, code: str, seed: int, size: float
) -> None:
    run = course(seed=seed, end="failed", end_data={"message": "OutOfMemory: out of memory", "code": "XT-OOM-GPU"})
    sizes = {key: value * size if isinstance(value, float) else value for key, value in OOM[code].items()}
    run.event(200, "oom", phase="forward", module="backbone.inner", **sizes)
    assert roots(record(run)) == [code]


@pytest.mark.parametrize(("resume_at", "found"), [(100, []), (0, ["XT-OOM-HOST", "XT-HANG"])])
def test_what_ended_an_attempt_that_another_one_took_up_is_history(
    record: Record, course: Any, resume_at: int, found: list[str]
) -> None:
    run = course(resume_at=resume_at)
    run.event(100, "oom", **OOM["XT-OOM-HOST"])
    run.event(100, "hang", phase="forward", age_s=300.0)
    said = record(run)
    assert [cause.code for cause in said.causes] == found
    assert {note.code for note in said.notes} >= {"XT-OOM-HOST"} - set(found)


def test_growth_comes_before_the_lack_of_memory_it_leads_to(record: Record, course: Any) -> None:
    run = course(end="failed", end_data={"message": "OutOfMemory", "code": "XT-OOM-HOST"})
    for step, row in enumerate(run.rows):
        row["rss_bytes"] = int(5e8 + 2e7 * step)
    run.event(200, "oom", **OOM["XT-OOM-HOST"])
    found = record(run)
    assert roots(found) == ["XT-MEM-GROWTH"]
    assert found.causes[1].follows == "XT-MEM-GROWTH"


def test_growth_gets_a_run_killed_only_where_memory_was_nearly_used_up(record: Record, course: Any) -> None:
    run = course(end="killed")
    for step, row in enumerate(run.rows):
        row["rss_bytes"] = int(5e8 + 7e6 * step)
    found = record(run)
    assert roots(found) == ["XT-MEM-GROWTH", "XT-KILLED"]
    run.event(190, "memory_warning", used_bytes=15e9, budget_bytes=16e9)
    assert [cause.follows for cause in record(run).causes if cause.code == "XT-KILLED"] == ["XT-OOM-HOST"]


def events_of_the_run() -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        "XT-RECOMPILE": ("recompile_limit", {"reason": "tensor 'x' size mismatch at index 0"}),
        "XT-UNEVEN-RANKS": ("ranks", {"steps": {"0": 41, "1": 40}}),
        "XT-TRACKER-DOWN": ("tracker", {"message": "tracking is paused: connection refused", "status": "paused"}),
        "XT-DB-LOCKED": ("tracker", {"message": "tracking is paused: (sqlite3.OperationalError) database is locked"}),
        "XT-DISK-FULL": ("checkpoint_failed", {"reason": "No space left on device", "path": "checkpoint_last.pt"}),
        "XT-HANG": ("hang", {"phase": "data_wait", "age_s": 300.0, "stacks": "rank0000.stacks"}),
        "XT-RANK-MISMATCH": ("hash_mismatch", {"rank": 1, "key": "data.batch_size"}),
    }


@pytest.mark.parametrize("code", events_of_the_run())
def test_what_the_guards_saw_is_named(record: Record, course: Any, code: str) -> None:
    kind, data = events_of_the_run()[code]
    run = course()
    run.event(120, kind, **data)
    assert record(run).causes[0].code == code


@pytest.mark.parametrize(("reason", "named"), [(LIMIT, []), (DISK, ["XT-DISK-FULL"])])
def test_a_record_that_has_taken_its_share_is_no_full_disk(
    record: Record, course: Any, reason: str, named: list[str]
) -> None:
    run = course()
    run.event(120, "recorder_gap", lost=7, reason=reason)
    assert roots(record(run)) == named


def test_events_that_came_twice_or_never_are_named(record: Record, course: Any) -> None:
    assert record(course(epochs={2: {"events_seen": 640, "duplicates": 320}})).causes[0].code == "XT-DUPLICATE-EVENTS"
    assert record(course(epochs={2: {"events_seen": 311}})).causes[0].code == "XT-EVENTS-MISSING"


@pytest.mark.parametrize(
    ("reason", "look"),
    [("XT-NAN-DATA", "diagnose nan-batch "), ("XT-SPIKE-EVENT", "check-data 'my data.root' --config ")],
)
def test_events_in_quarantine_are_not_missing(record: Record, course: Any, reason: str, look: str) -> None:
    run = course(epochs={number: {"events_seen": 319} for number in range(2, 6)})
    run.event(30, "quarantine", events=[[0, 3, 1, 4]], files=["my data.root"], reason=reason, total=1, budget=16)
    found = record(run)
    assert roots(found) == [reason]
    assert found.causes[0].fix.startswith(f"xectool {look}")  # what is finite, nan-batch does not find


@pytest.mark.parametrize("reason", ["XT-SPIKE-EVENT", "XT-NAN-DATA", "XT-NAN-LOSS", "XT-NAN-GRAD"])
def test_all_events_that_another_rank_left_out_are_counted_and_the_cause_has_words(
    record: Record, course: Any, reason: str
) -> None:
    """Its words are in the record of the other rank: "1 event was left out of the run: XT-SPIKE-EVENT", of five."""
    run = course()
    for step, entries in ((1, [3]), (30, [4, 5]), (52, [5, 6, 7])):
        events = [[0, entry, 1, entry] for entry in entries]
        run.event(step, "quarantine", events=events, files=["a.root"], reason=reason, total=5)
    (cause,) = [cause for cause in record(run).causes if cause.symptom.startswith("quarantine")]
    assert cause.problem.startswith("steps 1 to 52: 5 events were left out of the run: ")
    assert "XT-" not in cause.problem


def test_events_left_out_at_several_steps_are_all_named(record: Record, course: Any) -> None:
    run = course()
    for step, entry in ((30, 17), (44, 60), (46, 61), (48, 62), (50, 63), (52, 64)):
        run.event(step, "implausible_event", message=f"the time of sensor {entry} is 1e+12 in network units")
        run.event(step, "quarantine", events=[[0, entry, 1, entry]], files=["a.root"], reason="XT-SPIKE-EVENT", total=1)
    (cause,) = [cause for cause in record(run).causes if cause.code == "XT-SPIKE-EVENT"]
    assert "entry 17" in cause.evidence[0]
    assert (cause.evidence[1], cause.evidence[-1]) == ("6 such steps in the record", "and at 2 more")
    assert any("step 44" in line and "entry 60" in line and "sensor 60" in line for line in cause.evidence)


@pytest.mark.parametrize(
    ("counts", "named"),
    [
        ({40: 40, 80: 80}, []),
        ({40: 37, 80: 77}, []),  # refused steps
        ({40: 80, 80: 160}, ["XT-DUPLICATE-STEPS"]),
        ({40: 40, 80: 81}, ["XT-DUPLICATE-STEPS"]),
    ],
)
def test_updates_beyond_the_steps_are_steps_taken_twice(
    record: Record, course: Any, counts: dict[int, float], named: list[str]
) -> None:
    run = course()
    for step, updates in counts.items():
        run.event(step, "checkpoint", path="checkpoint_last.pt", marks={"updates": updates})
    assert roots(record(run)) == named


def test_an_optimizer_that_goes_on_counting_after_a_resume_or_a_rewind_repeats_nothing(
    record: Record, course: Any
) -> None:
    run = course(resume_at=100, resume_data={"marks": {"updates": 250.0}})
    run.event(40, "rewind", from_step=40, to_step=20)
    for step, updates in {60: 99.0, 80: 119.0, 140: 290.0}.items():
        run.event(step, "checkpoint", path="checkpoint_last.pt", marks={"updates": updates})
    assert roots(record(run)) == []


@pytest.mark.parametrize("way", ["step", "batch"])
def test_steps_taken_twice_are_named(record: Record, course: Any, way: str) -> None:
    run = course()
    for step in range(100, 110):
        run.at(step, **({"step": step - 10} if way == "step" else {"batch_start": 5, "batch_stop": 6}))
    assert record(run).causes[0].code == "XT-DUPLICATE-STEPS"


@few
@given(seed=seeds, seconds=st.floats(8, 600), size=st.floats(1e6, 1e8))
def test_a_slow_checkpoint_file_system_is_named(
    record: Record, course: Any, seed: int, seconds: float, size: float
) -> None:
    run = course(seed=seed)
    for step in range(20, 200, 20):
        run.event(step, "checkpoint", path="checkpoint_last.pt", bytes=int(size), seconds=seconds)
    assert record(run).causes[0].code == "XT-CKPT-SLOW"
    for saves in run.events.values():
        saves[:] = [(kind, {**data, "core_wait_s": 0.999 * data.get("seconds", 0.0)}) for kind, data in saves]
    assert not record(run).causes  # the machine was busy, the disk was not
    once = course(seed=seed, per_epoch=200)
    once.event(100, "checkpoint", path="checkpoint_last.pt", bytes=int(size), seconds=seconds)
    assert record(once).causes == ()


def test_what_only_costs_time_comes_after_what_ended_the_run(record: Record, course: Any) -> None:
    run = course(end="killed")
    slow(run)
    for step in range(20, 200, 20):
        run.event(step, "checkpoint", path="checkpoint_last.pt", bytes=10**6, seconds=60.0)
    assert roots(record(run))[0] == "XT-KILLED"
    assert set(roots(record(run))[1:]) == {"XT-LOADER-SLOW", "XT-CKPT-SLOW"}


def test_a_killed_run_is_named_by_what_it_was_doing(record: Record, course: Any) -> None:
    assert roots(record(course(end="killed"))) == ["XT-KILLED"]
    compiling = course(end="killed", steps=0)
    compiling.rows = []
    run = course(end="killed", steps=3)
    run.event(3, "compile_begin")
    assert roots(record(run)) == ["XT-COMPILE-KILLED"]
    full = course(end="killed")
    full.event(190, "memory_warning", used_bytes=23.9e9, budget_bytes=24e9, source="cgroup")
    assert roots(record(full)) == ["XT-OOM-HOST"]
    for step, codes in ((150, ["XT-DISK-FULL", "XT-KILLED"]), (200, ["XT-DISK-FULL"])):  # or an end was not written
        disk = course(end="killed")
        disk.event(step, "checkpoint_failed", reason="No space left on device", path="checkpoint_last.pt")
        assert [cause.code for cause in record(disk).causes] == codes


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("DataFileError: a worker was killed by signal 9 [XT-LOADER-KILLED]", "XT-WORKER-DEAD"),
        ("DiskError: cannot write the checkpoint: No space left on device", "XT-DISK-FULL"),
        ("OutOfMemory: the host ran out of memory: MemoryError", "XT-OOM-HOST"),
        ("OutOfMemory: the device ran out of memory: CUDA out of memory. Tried to allocate 2.00 GiB.", "XT-OOM-GPU"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "XT-OOM-GPU"),
        ("DataFileError: basket is damaged [XT-DATA-DAMAGED]", "XT-DATA-DAMAGED"),
    ],
)
def test_a_failure_without_other_records_is_named_by_its_words(
    record: Record, course: Any, message: str, code: str
) -> None:
    assert roots(record(course(end="failed", end_data={"message": message}))) == [code]
    seen = course(end="failed", end_data={"message": message})
    seen.event(200, "hang", phase="data_wait", age_s=4.0)  # the watchdog saw it stand before it failed
    assert roots(record(seen)) == ["XT-HANG" if code == "XT-DATA-DAMAGED" else code]


def slow(run: Any) -> None:
    for row in run.rows:
        row |= {"step_s": 0.05, "data_wait_s": 0.02}


def leak(run: Any) -> None:
    for step, row in enumerate(run.rows):
        row["rss_bytes"] = int(5e8 + 5e6 * step)


PAIRS: dict[str, Callable[[Any], None]] = {
    "XT-NAN-DATA": lambda run: poison(run, 57, suspects=EVENTS[:1]),
    "XT-SPIKE-EVENT": lambda run: run.scale(131, np.array([500.0]), np.array([500.0])),
    "XT-LOADER-SLOW": slow,
    "XT-MEM-GROWTH": leak,
    "XT-DUPLICATE-EVENTS": lambda run: run.epochs.update({3: {"events_seen": 400, "duplicates": 80}}),
    "XT-DB-LOCKED": lambda run: run.event(60, "tracker", message="database is locked", status="paused"),
    "XT-UNTRAINED-HEAD": lambda run: run.event(3, "zero_gradient", parameters=["heads.energy.0.weight"], after_steps=3),
    "XT-RECOMPILE": lambda run: run.event(20, "recompile_limit", reason="size"),
}


@settings(few, max_examples=20)
@given(pair=st.lists(st.sampled_from(sorted(PAIRS)), min_size=2, max_size=2, unique=True), seed=seeds)
def test_two_independent_faults_are_both_named(record: Record, course: Any, pair: list[str], seed: int) -> None:
    run = course(seed=seed)
    for code in pair:
        PAIRS[code](run)
    assert sorted(roots(record(run))) == sorted(pair)


@pytest.mark.parametrize(("clip_coef", "named"), [(1.0, ""), (0.01, "optimizer moments up to 5e+03")])
def test_moments_are_judged_by_the_gradients_that_made_them(
    course: Any, write_run: Callable[[Any], Path], clip_coef: float, named: str
) -> None:
    run = course(steps=100, resume_at=60)
    for number in range(1, 61):
        run.at(number, grad_norm=100.0, clip_coef=clip_coef)
    limit = moment_limit(gather(write_run(run)), 60)
    assert state_damage({"optimizer_absmax": 5e3}, limit) == named


@pytest.mark.parametrize(("width", "code"), [(1, "XT-SPIKE-EVENT"), (3, "XT-SPIKE-EVENT"), (60, "XT-NAN-RESUME")])
def test_a_jump_soon_after_a_resume_that_is_over_at_once_is_no_damaged_state(
    record: Record, course: Any, width: int, code: str
) -> None:
    run = course(steps=160, resume_at=100)
    run.scale(106, np.full(width, 60.0))
    assert record(run).causes[0].code == code


@pytest.mark.parametrize(
    ("high", "told"),
    [
        ({100: 60.0}, "over 1 step, came back;"),
        ({100: 60.0, 108: 60.0}, "in 2 of 9 steps, came back;"),
        ({152: 60.0, 160: 60.0}, "in 2 of 9 steps, and the record ends there;"),
        (dict.fromkeys(range(100, 161), 60.0) | {150: 900.0}, "did not come back, "),
    ],
)
def test_a_jump_is_told_by_its_high_steps_and_by_what_came_after(
    course: Any, write_run: Callable[[Any], Path], high: dict[int, float], told: str
) -> None:
    """Two steps eight apart were "9 steps, did not come back", and a run that went on to rise kept its first peak."""
    run = course(steps=160)
    for step, factor in high.items():
        run.scale(step, np.array([factor]))
    assert told in spike_cases(gather(write_run(run)))[0].text()


@pytest.mark.parametrize(("epochs", "in_a_row"), [((2, 3, 4), 3), ((2, 4, 5), 0)])
def test_what_comes_once_an_epoch_comes_in_every_epoch(
    course: Any, write_run: Callable[[Any], Path], epochs: tuple[int, ...], in_a_row: int
) -> None:
    run = course()
    for epoch in epochs:
        run.scale(40 * (epoch - 1) + 20, np.array([60.0]))
    assert [case.epochs_with_one for case in spike_cases(gather(write_run(run)))] == [in_a_row] * 3


@pytest.mark.parametrize(("weight", "norm", "named"), [(1e-12, 1e-12, True), (1e9, 1e-9, True), (1e-2, 1e-2, False)])
def test_a_head_with_less_gradient_than_adamw_adds_to_it_names_the_weight(
    record: Record, course: Any, weight: float, norm: float, named: bool
) -> None:
    other = "energy" if weight < 1 else "uvwFI"
    run = course(steps=60, config={"tasks": {other: {"enabled": True, "weight": weight}}})
    run.event(1, "run_start", tasks=["energy", "uvwFI"], blocks=["heads.energy", "heads.uvwFI"])
    for row in run.rows:
        row["block_norms"] = {"heads.energy": norm, "heads.uvwFI": 1.0}
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-UNTRAINED-HEAD"] * named
    assert not named or causes[0].fix.endswith(f"--set tasks.{other}.weight=1.0")


@pytest.mark.parametrize(
    ("decay", "validated", "named"), [(0.9998, 0.5, True), (0.999, 0.5, False), (0.9998, 0.2, False)]
)
def test_an_average_that_is_mostly_the_first_weights_is_named_where_the_trained_ones_have_learned(
    record: Record, course: Any, decay: float, validated: float, named: bool
) -> None:
    """A network that overfits validates as badly with an average that has taken in the run."""
    run = course(steps=160, floor=0.1, config={"training": {"ema_decay": decay}})
    for epoch in range(1, 5):
        level = validated - 0.002 * epoch + 0.01
        run.epochs[epoch] = {"metrics": {"val/energy/loss": level, "val/uvwFI/loss": level, "val/loss": 2 * level}}
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-NO-LEARNING"] * named
    assert not named or causes[0].fix.endswith("--set training.ema_decay=auto")


@pytest.mark.parametrize(("decay", "named"), [(0.999, True), (0.99, False)])
def test_an_average_that_is_mostly_the_first_weights_is_named_in_a_run_of_few_steps_too(
    record: Record, course: Any, decay: float, named: bool
) -> None:
    """The loss of the last steps tells that the weights have learned, however few they are."""
    run = course(steps=25, per_epoch=25, start=0.1, floor=0.1, config={"training": {"ema_decay": decay}})
    run.epochs = {1: {"metrics": {"val/energy/loss": 0.5, "val/uvwFI/loss": 0.5, "val/loss": 1.0}}}
    assert [cause.code for cause in record(run).causes] == ["XT-NO-LEARNING"] * named


@pytest.mark.parametrize(
    ("decay", "end", "named"),
    [
        (0.999, "finished", True),
        (0.99, "finished", False),
        (None, "finished", False),
        (0.999, "interrupted", False),
        (0.999, "max_steps", False),
    ],
)
def test_an_average_that_is_longer_than_a_run_that_ended_is_a_note_on_a_healthy_one(
    record: Record, course: Any, decay: float | None, end: str, named: bool
) -> None:
    """It was told before the first step alone; a run that was interrupted, or a trial, may go on."""
    ends = {"end": "finished", "end_data": {"status": end}} if end == "max_steps" else {"end": end}
    found = record(course(steps=160, floor=0.1, config={"training": {"ema_decay": decay}}, **ends))
    notes = [note for note in found.notes if note.code == "XT-EMA-LONG"]
    assert not [cause.code for cause in found.causes if cause.code == "XT-EMA-LONG"]
    assert ("averaged weights" in found.verdict, len(notes)) == (named, named)
    for note in notes:
        assert "the run has 160: 85% of the averaged weights, which are validated and taken by predict" in note.problem
        assert note.fix.endswith("--set training.ema_decay=auto")


@pytest.mark.parametrize(("learned", "named"), [(True, True), (False, False)])
def test_an_average_of_the_weights_a_run_started_with_is_named_below_zero_too(
    record: Record, course: Any, learned: bool, named: bool
) -> None:
    """A likelihood is negative: 0.98 of it lies above it. After init_from none is untrained."""
    settings = {"training": {"ema_decay": 0.9998}, "checkpoint": {"init_from": "a.pt"}}
    run = course(steps=160, floor=0.1 if learned else 0.9, config=settings, baseline=None)
    run.event(1, "baseline", loss=-2.0, terms={"energy": -1.0, "uvwFI": -1.0})
    for row in run.rows:
        row["losses"] = {name: value - 1.5 for name, value in row["losses"].items()}
        row["loss"] -= 3.0
    for epoch in range(1, 5):
        level = -1.0 - 0.002 * epoch + 0.01
        run.epochs[epoch] = {"metrics": {"val/energy/loss": level, "val/uvwFI/loss": level, "val/loss": 2 * level}}
    told = [cause.problem for cause in record(run).causes if "training.ema_decay 0.9998 has let" in cause.problem]
    assert bool(told) is named
    assert not told or told[0].endswith("the rest are those it started with")


@pytest.mark.parametrize(("decay", "fix"), [(None, "lr-sweep"), (0.9999999, "--set training.ema_decay=auto")])
def test_validations_that_all_give_the_same_say_that_no_weight_moves(
    record: Record, course: Any, decay: float | None, fix: str
) -> None:
    def codes(noise: float) -> list[Any]:
        training = {"ema_decay": decay, "lr": 3e-4}
        run = course(steps=90, start=0.5, floor=0.5, noise=noise, lr=3e-4, config={"training": training})
        return list(record(run).causes)

    (found,) = codes(0.0)
    assert found.code == "XT-NO-LEARNING"
    assert fix in found.fix
    assert not codes(0.05)


@pytest.mark.parametrize(
    ("trained", "validated", "change", "decay", "named"),
    [
        (7.85, 7.85, 5e-4, 0.9, True), (7.85, 7.85, 5e-3, 0.9, False), (7.85, 7.85, 5e-4, 0.9998, False),
        (0.9, 0.9, 5e-4, 0.9, False), (0.1, 1000.0, 5e-4, 0.9, False),
    ],
)  # fmt: skip
def test_weights_that_hardly_move_are_told_from_those_that_have_learned_all_they_can(
    record: Record, course: Any, trained: float, validated: float, change: float, decay: float, named: bool
) -> None:
    """Far above the best constant (1) the first steps of any training take off much; a late epoch may take per mille.

    The rate of 1e-3 is above the default: that one is no cure.
    """
    settings = {"training": {"lr": 1e-3, "ema_decay": decay}}
    run = course(steps=90, start=trained / 2, floor=trained / 2, noise=0.05, lr=1e-3, config=settings)
    for epoch in range(1, 4):
        loss = validated * (1 - change * epoch / 2)
        run.epochs[epoch] = {"metrics": {"val/energy/loss": loss / 2, "val/uvwFI/loss": loss / 2, "val/loss": loss}}
    causes = [cause for cause in record(run).causes if "hardly move" in cause.problem]
    assert [cause.code for cause in causes] == ["XT-NO-LEARNING"] * named
    assert all("lr-sweep" in cause.fix for cause in causes)


def test_a_validation_out_of_scale_leads_to_its_files(record: Record, course: Any) -> None:
    run = course(steps=60, config={"data": {"val_path": "other.root"}})
    wrong = {"npho": {"mean": 2.5, "std": 0.7, "absmax": 4.0}}
    run.event(
        30, "input_scale", channels=wrong, level="error", reason="an event has 2e+09 photons", sample="validation"
    )
    (found,) = record(run).causes
    assert (found.code, "first validation batch" in found.problem) == ("XT-INPUT-SCALE", True)
    assert found.fix.startswith("xectool check-data other.root")


@pytest.mark.parametrize(("task", "std", "named"), [
    ("energy", 13.0, True), ("energy", 0.013, False), ("timing", 2.0, True),
    ("uvwFI", 240.0, True), ("uvwFI", 24.0, False), ("angle", 350.0, True),
])  # fmt: skip
def test_a_truth_that_spreads_as_none_can_is_in_another_unit(
    record: Record, course: Any, task: str, std: float, named: bool
) -> None:
    run = course(steps=40, config={"tasks": {task: {"enabled": True, "scale": std}}, "data": {"train_path": "t.root"}})
    run.event(1, "baseline", terms={}, target_std={task: std})
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-TARGET-SCALE"] * named
    assert not named or causes[0].fix.startswith("xectool check-data t.root")


def test_a_truth_that_seems_to_be_in_another_unit_is_named(record: Record, course: Any) -> None:
    run = course(steps=40, config={"data": {"train_path": "t.root"}})
    run.event(1, "baseline", terms={}, target_std={"angle": 0.35}, target_unit={"angle": "radians"})
    (found,) = record(run).causes
    assert (found.code, "radians" in found.problem) == ("XT-TARGET-SCALE", True)


@pytest.mark.parametrize(("far", "named"), [(0.33, True), (0.02, False)])
def test_files_whose_truth_is_in_another_unit_come_before_the_spikes_they_make(
    record: Record, course: Any, far: float, named: bool
) -> None:
    run = course(steps=90, start=1.0, floor=1.0, config={"data": {"train_path": "t.root"}})
    run.event(1, "baseline", terms={}, target_std={"energy": 0.01}, target_far={"energy": far})
    run.scale(5, np.full(40, 1e3), np.full(40, 10.0))
    run.event(5, "spike", suspects=EVENTS[:1])
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-TARGET-SCALE"] * named + ["XT-SPIKE-EVENT"]


@pytest.mark.parametrize(("count", "code"), [(32, "XT-INPUT-SCALE"), (9, "XT-SPIKE-EVENT")])
def test_more_events_that_cannot_be_than_may_be_left_out_are_a_file(
    record: Record, course: Any, count: int, code: str
) -> None:
    run = course(steps=40)
    run.event(3, "implausible_event", events=EVENTS[:1] * count, files=["b.root"], action="record")
    (found,) = record(run).causes
    assert found.code == code
    assert found.fix.startswith("xectool check-data b.root" if count > 16 else "xectool train ")


def test_files_of_different_gains_are_named(record: Record, course: Any) -> None:
    run = course(steps=40)
    run.event(20, "files_differ", files=["b.root", "a.root"], ratio=61.0)
    (found,) = record(run).causes
    assert (found.code, found.fix.startswith("xectool check-data a.root b.root")) == ("XT-INPUT-SCALE", True)
    run.events.clear()
    run.event(20, "files_differ", message="a.root: its light falls", files=["a.root"], meaning="its gain drifts")
    assert [cause.problem for cause in record(run).causes] == ["a.root: its light falls: its gain drifts"]


@pytest.mark.parametrize(("zero", "named"), [(40, True), (20, False)])
def test_a_rate_of_0_for_most_of_the_run_is_named(record: Record, course: Any, zero: int, named: bool) -> None:
    run = course(steps=60, lr=1e-3)
    for row in run.rows[60 - zero :]:
        row |= {"lr": 1e-9}
    assert [cause.code for cause in record(run).causes] == ["XT-NO-LEARNING"] * named


@pytest.mark.parametrize(("stall", "every", "named"), [
    (4.0, 9, True), (0.4, 9, False), (6.0, 27, True), (6.0, 50, False), (4.0, 27, False), (0.4, 4, True),
    (0.06, 4, False),
])  # fmt: skip
def test_a_file_server_that_stalls_now_and_then_is_named(
    record: Record, course: Any, stall: float, every: int, named: bool
) -> None:
    run = course(steps=60)
    for number, row in enumerate(run.rows):
        waits = stall if number % every == every - 1 else 0.0
        row |= {"step_s": 0.05 + waits, "data_wait_s": waits}
    assert [cause.code for cause in record(run).causes] == ["XT-LOADER-SLOW"] * named


@pytest.mark.parametrize(("decay", "named"), [(9.0, True), (0.5, False)])
def test_a_decay_that_takes_the_weights_is_named_where_nothing_is_learned(
    record: Record, course: Any, decay: float, named: bool
) -> None:
    training = {"weight_decay": decay, "lr": 3e-3}
    run = course(steps=60, start=1.0, floor=1.0, noise=0.02, lr=3e-3, baseline=1.0, config={"training": training})
    causes = record(run).causes
    assert [cause.fix.endswith("--set training.weight_decay=0.0001") for cause in causes] == [True] * named
    run.config["training"] = training
    run.event(50, "collapsed", tasks={"energy": {"pred_std": 1e-7, "target_std": 1.0}})
    first = record(run).causes[0]  # constant predictions follow from weights that are gone
    assert first.code == ("XT-NO-LEARNING" if named else "XT-COLLAPSED")


@pytest.mark.parametrize(("mean", "named"), [(0.15, False), (0.01, True)])
def test_events_of_a_truth_with_a_tail_are_no_damage(record: Record, course: Any, mean: float, named: bool) -> None:
    run = course(steps=90, start=0.01, floor=0.01, noise=0.2, baseline=None)
    run.event(1, "baseline", terms={"energy": mean})
    for number, step in enumerate((30, 50, 70)):
        run.scale(step, np.array([160.0]), np.array([10.0]))
        run.event(step, "spike", suspects=EVENTS[number : number + 1])
    assert [cause.code for cause in record(run).causes] == ["XT-SPIKE-EVENT"] * named


@pytest.mark.parametrize("silent", [1.0, 60.0])
def test_a_process_that_is_held_is_told_once_it_has_been_silent(
    course: Any, write_run: Callable[[Any], Path], silent: float
) -> None:
    evidence = gather(write_run(course(steps=40, end="killed")))
    running = replace(evidence, status=replace(evidence.status, state="running"), held="stopped")
    causes = diagnose(replace(running, now=evidence.status.updated + silent)).causes
    assert [cause.code for cause in causes] == ["XT-HANG-STOPPED"] * (silent > 5)
    assert not causes or causes[0].fix == f"kill -CONT {evidence.status.pid}"


@pytest.mark.parametrize(("stopped", "silent", "named"), [(True, 60.0, True), (True, 1.0, False), (False, 60.0, False)])
def test_another_rank_that_is_held_is_told_while_the_first_one_waits(
    course: Any,
    write_run: Callable[[Any], Path],
    monkeypatch: pytest.MonkeyPatch,
    stopped: bool,
    silent: float,
    named: bool,
) -> None:
    """With rank 1 stopped a running job was healthy: its first rank only waited."""
    evidence = gather(write_run(course(steps=40, end="killed")))
    (page,) = RunReader(evidence.run_dir).live()
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            if stopped:
                os.kill(process.pid, signal.SIGSTOP)
                os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            own = {"rank": 1, "pid": process.pid, "pid_start": start_ticks(process.pid), "heartbeat_age_s": silent}
            other = replace(page, **own, same_boot=True)
            monkeypatch.setattr(RunReader, "live", lambda reader: [page, other])
            running = replace(evidence, status=replace(evidence.status, state="running"))
            causes = diagnose(replace(running, now=evidence.status.updated + 1.0)).causes
        finally:
            process.kill()
    assert [cause.code for cause in causes] == ["XT-HANG-STOPPED"] * named
    assert not named or f"process {process.pid} (rank 1) is stopped" in causes[0].problem


@pytest.mark.parametrize(("norm", "lr", "named"), [(1e6, 1e-3, True), (200.0, 1e-3, False), (1e5, 1.0, False)])
def test_weights_that_no_step_can_have_made_are_named_before_the_jump_they_make(
    record: Record, course: Any, norm: float, lr: float, named: bool
) -> None:
    run = course(steps=60, lr=lr)
    run.event(1, "run_start", parameters=100_000, blocks=["backbone.inner", "heads.energy"])
    run.at(50, weight_norm=norm)
    run.scale(40, np.full(21, 1e8), np.full(21, 3.0))
    causes = record(run).causes
    assert ([cause.code for cause in causes if not cause.follows] == ["XT-NAN-WEIGHTS"]) is named
    assert not named or "between steps 0 and 50" in causes[0].problem


@pytest.mark.parametrize(("same", "marked"), [(12, True), (1, False)])
def test_one_impossible_truth_in_many_events_is_a_mark_and_no_other_unit(
    record: Record, course: Any, same: int, marked: bool
) -> None:
    """-9999 in a tenth of the positions was "as a file in another unit makes them"."""
    run = course(steps=40, config={"data": {"train_path": "t.root"}}, baseline=None)
    run.event(1, "run_start", num_train=120)
    told = {"count": 12, "file": 0, "entry": 4, "value": -9999.0, "same": same}
    run.event(
        1,
        "baseline",
        loss=1.0,
        target_std={"uvwFI": 3000.0},
        target_far={"uvwFI": 0.1},
        target_impossible={"uvwFI": told},
    )
    causes = record(run).causes
    assert causes[0].code == ("XT-SPIKE-EVENT" if marked else "XT-TARGET-SCALE")
    assert ("XT-TARGET-SCALE" in [cause.code for cause in causes]) == (not marked)
    assert ("-9999 cm" in causes[0].problem and "11 others: a mark of unknown truth" in causes[0].problem) == marked


def test_the_spread_that_one_event_makes_is_no_other_unit(record: Record, course: Any) -> None:
    """A true position 2054 cm away in one of 265 events spread all of them by 126 cm."""
    run = course(steps=40, baseline=None)
    run.event(1, "run_start", num_train=265)
    told = {"count": 1, "file": 0, "entry": 12, "value": 2053.9, "same": 0}
    run.event(1, "baseline", loss=1.0, target_std={"uvwFI": 126.4}, target_impossible={"uvwFI": told})
    assert [cause.code for cause in record(run).causes] == ["XT-SPIKE-EVENT"]


def test_impossible_truths_of_two_tasks_are_both_named(record: Record, course: Any) -> None:
    """The first was, and whoever mended it met the other."""
    run = course(steps=40, baseline=None)
    run.event(1, "run_start", num_train=265)
    told = {
        "uvwFI": {"count": 1, "file": 0, "entry": 12, "value": 2053.0, "same": 0},
        "energy": {"count": 1, "file": 0, "entry": 71, "value": 7.7, "same": 0},
    }
    run.event(1, "baseline", loss=1.0, target_std={"uvwFI": 126.4, "energy": 0.47}, target_impossible=told)
    (cause,) = record(run).causes
    assert cause.code == "XT-SPIKE-EVENT"
    shown = " ".join((cause.problem, *cause.evidence))
    assert [value in shown for value in ("2053 cm", "7.7 GeV", "entry 12", "entry 71")] == [True] * 4


@pytest.mark.parametrize(
    ("losses", "height"), [((40.0, 90.0), "to 40, and to 90 at step 101"), ((90.0, 40.0), "to 90")]
)
def test_a_jump_that_goes_on_rising_says_where_it_was_highest(
    record: Record, course: Any, losses: tuple[float, float], height: str
) -> None:
    run = course()
    for step, loss in enumerate(losses, 100):
        run.at(step, loss=loss, grad_norm=50.0)
    problem = record(run).causes[0].problem
    assert problem.startswith("step 100: the loss rose from 0.")
    assert f" {height}: " in problem


def test_marks_and_truths_that_were_never_filled_are_both_named(record: Record, course: Any) -> None:
    """Beside zeros, which were "a truth of 0 cm", -999 in as many events was no mark."""
    run = course(steps=40, config={"data": {"train_path": "t.root"}}, baseline=None)
    run.event(1, "run_start", num_train=120)
    mark = {"count": 12, "file": 0, "entry": 4, "value": -999.0, "same": 12}
    zero = {"count": 10, "file": 0, "entry": 7, "value": 0.0, "same": 10}
    facts = {"target_std": {"uvwFI": 300.0}, "target_far": {"uvwFI": 0.1, "energy": 10 / 120}}
    found = {"target_impossible": {"uvwFI": mark}, "target_never_filled": {"uvwFI": zero, "energy": zero}}
    run.event(1, "baseline", loss=1.0, **facts, **found)
    causes = record(run).causes
    assert {cause.code for cause in causes} == {"XT-SPIKE-EVENT"}
    told = " ".join(cause.problem for cause in causes)
    assert "-999 cm" in told
    assert "11 others: a mark of unknown truth" in told
    assert "the truth of task uvwFI is exactly 0 in 10 of 120 events: it was never filled" in told
    assert "the truth of task energy is exactly 0 in 10 of 120 events" in told
    assert " 0 cm" not in told
    shown = [line for cause in causes for line in cause.evidence]  # their number stands in the problem
    assert [line for line in shown if "10 of 120" in line] == []
    assert "energy is 0 first in entry 7 of file 0" in shown


@pytest.mark.parametrize(
    ("count", "same", "value"),
    [(1000, 500, 52.83), (1000, 4, 61.2), (300, 300, 52.83), (1000, 1000, -9999.0)],
    ids=["half a line", "few digits", "a file of a line", "all events"],
)
def test_energies_in_mev_that_are_alike_are_no_mark(
    record: Record, course: Any, count: int, same: int, value: float
) -> None:
    """A line of 52.83 MeV, or energies of few digits, were "a mark of unknown truth", and the unit was not told."""
    run = course(steps=40, config={"data": {"train_path": "t.root"}}, baseline=None)
    run.event(1, "run_start", num_train=1000)
    told = {"count": count, "file": 0, "entry": 4, "value": value, "same": same}
    facts = {"target_std": {"energy": 12.0}, "target_far": {"energy": count / 1000}}
    run.event(1, "baseline", loss=1.0, **facts, target_impossible={"energy": told})
    causes = record(run).causes
    assert "XT-TARGET-SCALE" in [cause.code for cause in causes]
    assert not any("mark of unknown truth" in cause.problem for cause in causes)


@pytest.mark.parametrize("ranks", [1, 2])
def test_state_made_in_forward_is_no_fault_of_a_single_process(record: Record, course: Any, ranks: int) -> None:
    """A counter of calls came before the error that ended the run, and before recompilations."""
    run = course(steps=40, end="failed", end_data={"message": "ValueError: 3 and 7"})
    run.event(1, "run_start", world_size=ranks)
    run.event(1, "lazy_state", modules=["model.calls"])
    codes = [cause.code for cause in record(run).causes]
    assert ("XT-LAZY-STATE" in codes) == (ranks == 2)
    assert "XT-FAILED" in codes


@pytest.mark.parametrize(
    ("kind", "code"), [("sensor_order", "XT-SENSOR-ORDER"), ("truth_elsewhere", "XT-TRUTH-ELSEWHERE")]
)
def test_light_at_another_place_is_named(record: Record, course: Any, kind: str, code: str) -> None:
    run = course(steps=40, config={"data": {"train_path": "t.root", "truth_branches": {"uvwFI": "xyzVTX"}}})
    run.event(20, kind, files=["b.root"])
    (found,) = record(run).causes
    assert found.code == code
    assert ("check-data b.root" in found.fix) == (kind == "sensor_order")
    assert ("data.truth_branches.uvwFI=uvwTruth" in found.fix) == (kind == "truth_elsewhere")


def test_an_energy_of_other_events_leads_to_the_files_unless_its_branch_is_another(record: Record, course: Any) -> None:
    for branches, fix in (({}, "check-data t.root"), ({"energy": "mine"}, "data.truth_branches.energy=energyTruth")):
        run = course(steps=40, config={"data": {"train_path": "t.root", "truth_branches": branches}})
        run.event(20, "truth_elsewhere", task="energy", sample="train", message="does not follow the light")
        (found,) = record(run).causes
        assert (found.code, found.problem.partition(":")[0]) == ("XT-TRUTH-ELSEWHERE", "energy")
        assert fix in found.fix
        assert found.problem.endswith("it is of other events, or something else")


def test_a_truth_with_another_zero_in_a_file_says_so(record: Record, course: Any) -> None:
    run = course(steps=40, config={"data": {"train_path": "t.root"}})
    run.event(
        20, "truth_elsewhere", task="timing", message="b.root: 3e-08 s later", meaning="it has another zero there"
    )
    (found,) = record(run).causes
    assert (found.code, found.problem) == (
        "XT-TRUTH-ELSEWHERE", "timing: b.root: 3e-08 s later: it has another zero there",
    )  # fmt: skip


def test_each_truth_that_is_elsewhere_has_its_own_meaning_and_files(record: Record, course: Any) -> None:
    """One meaning stood behind all tasks, and a time of other events gave way to one with another zero."""
    run = course(steps=40, config={"data": {"train_path": "t.root"}})
    zero = {"files": ["b.root", "a.root"], "meaning": "it has another zero there"}
    run.event(18, "truth_elsewhere", task="energy", files=["c.root"], message="no light in it")
    run.event(19, "truth_elsewhere", task="timing", files=["d.root"], message="none of it")
    run.event(20, "truth_elsewhere", task="timing", message="b.root: 3e-08 s later", **zero)
    (found,) = record(run).causes
    other = "it is of other events, or something else"
    told = ("timing: b.root: 3e-08 s later: it has another zero there", f"timing: none of it: {other}",
            f"energy: no light in it: {other}")  # fmt: skip
    assert found.problem == "; ".join(told)
    assert "check-data a.root b.root c.root d.root --config" in found.fix


def test_another_zero_of_the_time_hides_no_other_unit(record: Record, course: Any) -> None:
    run = course(steps=40)
    run.event(1, "baseline", terms={}, target_std={"timing": 3e-9}, target_unit={"timing": "ns"})
    run.event(20, "truth_elsewhere", task="timing", message="b.root: later", meaning="it has another zero there")
    assert {cause.code for cause in record(run).causes} == {"XT-TRUTH-ELSEWHERE", "XT-TARGET-SCALE"}


@pytest.mark.parametrize(("risen", "named"), [(1.0, True), (4.0, False)])
def test_weights_lost_in_mid_run_are_a_restart_unless_the_rate_rose(
    record: Record, course: Any, risen: float, named: bool
) -> None:
    run, fresh = course(steps=150, floor=0.3), course(steps=150, seed=2, floor=0.3)
    run.rows[90:] = fresh.rows[:60]
    for row in run.rows[90:]:
        row["lr"] *= risen
    causes = record(run).causes
    assert ["XT-RESTART"] * named == [cause.code for cause in causes if cause.code == "XT-RESTART"]
    assert not named or 85 <= causes[0].step <= 95


def test_a_loss_that_goes_with_the_order_of_events_is_no_loss_of_weights(record: Record, course: Any) -> None:
    """Sorted by energy and not shuffled, the loss falls and rises in every epoch."""
    for shuffle, named in ((True, True), (False, False)):
        run, fresh = course(steps=150, floor=0.3), course(steps=150, seed=2, floor=0.3)
        run.rows[90:] = fresh.rows[:60]
        run.config["data"] = {"shuffle": shuffle}
        assert [cause.code for cause in record(run).causes if cause.code == "XT-RESTART"] == ["XT-RESTART"] * named


@pytest.mark.parametrize("seconds", [0.06, 0.9])
def test_waits_of_a_step_now_and_then_are_told_where_they_cost_long(
    record: Record, course: Any, seconds: float
) -> None:
    run = course(steps=72)
    for number, row in enumerate(run.rows):
        waits = seconds if number % 3 == 2 else 0.0
        row |= {"step_s": 0.95 * seconds + waits, "data_wait_s": waits}
    assert [cause.code for cause in record(run).causes] == ["XT-LOADER-SLOW"] * (seconds > 0.5)


@pytest.mark.parametrize(("every", "named"), [(10, True), (40, False)])
def test_a_few_long_waits_are_told_where_they_take_a_third_of_the_time(
    record: Record, course: Any, every: int, named: bool
) -> None:
    run = course(steps=80)
    for number, row in enumerate(run.rows):
        waits = 2.5 if number % every == every - 3 else 0.0
        row |= {"step_s": 0.3 + waits, "data_wait_s": waits}
    assert [cause.code for cause in record(run).causes] == ["XT-LOADER-SLOW"] * named


@pytest.mark.parametrize(("steps", "named"), [(200, False), (140, True)])
def test_waits_that_a_resume_has_cured_are_history(record: Record, course: Any, steps: int, named: bool) -> None:
    run = course(steps=steps, resume_at=120)
    for row in run.rows[:120]:
        row |= {"step_s": 0.5, "data_wait_s": 0.4}
    assert [cause.code for cause in record(run).causes] == ["XT-LOADER-SLOW"] * named


def test_every_file_that_holds_one_event_is_named(record: Record, course: Any) -> None:
    run = course()
    for path in ("a.root:tree", "b.root:tree", "c.root:tree"):
        run.event(5, "copied_light", message=f"{path}: the light is that of one event", files=[path], sample="train")
    (cause,) = record(run).causes
    assert cause.problem.endswith("; and so in 2 files more")
    assert [path for path in "abc" if f"{path}.root:tree" not in " ".join((cause.problem, *cause.evidence))] == []
    assert all(f"{path}.root:tree" in cause.fix for path in "abc")


@pytest.mark.parametrize(("step", "steps", "named"), [(20, 100, False), (70, 100, True), (20, 51, True)])
def test_recompilations_that_a_resume_has_cured_are_history(
    record: Record, course: Any, step: int, steps: int, named: bool
) -> None:
    run = course(steps=steps, resume_at=50)
    run.event(step, "recompile_limit", reason="sizes", count=8)
    assert [cause.code for cause in record(run).causes] == ["XT-RECOMPILE"] * named


@pytest.mark.parametrize(("wait", "named"), [(0.9, True), (0.05, False)])
def test_half_of_fifty_steps_tell_of_waits_that_are_long(record: Record, course: Any, wait: float, named: bool) -> None:
    run = course(steps=36)
    for row in run.rows:
        row |= {"step_s": 2 * wait, "data_wait_s": wait}
    assert [cause.code for cause in record(run).causes] == ["XT-LOADER-SLOW"] * named


def test_a_truth_that_few_events_have_is_no_spike_and_a_wild_event_among_them_is(record: Record, course: Any) -> None:
    run = course(steps=120, start=0.01, floor=0.002, baseline=0.1)
    for step in (1, 4, 9, 14, 17, 21, 23, 25, 40, 46, 55, 58, 71, 80, 83, 99):
        run.at(step, loss=0.55, losses={"energy": 0.275, "uvwFI": 0.275})
    run.at(88, loss=1.1, losses={"energy": 0.55, "uvwFI": 0.55})
    assert not record(run).causes
    run.at(60, loss=900.0, losses={"energy": 450.0, "uvwFI": 450.0})
    assert record(run).causes[0].code == "XT-SPIKE-EVENT"


@pytest.mark.parametrize(("norm", "named"), [(2e10, True), (90.0, True), (50.0, False)])
def test_weights_that_no_step_can_make_after_a_resume_are_what_it_brought_back(
    record: Record, course: Any, norm: float, named: bool
) -> None:
    """A hundred steps at a rate of 1e-3 move a weight by 0.32 at most, and the norm of 10 000 by 32."""
    run = course(
        steps=100, resume_at=60, resume_data={"weights_finite": True, "optimizer_finite": True, "weight_norm": 41.0}
    )
    run.event(1, "run_start", parameters=10_000)
    run.at(50, weight_norm=40.0)
    run.at(100, weight_norm=norm)
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-NAN-RESUME"] * named
    assert all("between steps 60 and 100" in cause.problem and cause.step == 61 for cause in causes)
    assert all("in its optimizer state or in a step since" in cause.problem for cause in causes)


@pytest.mark.parametrize("at", [50, 60])
def test_a_resume_whose_own_weights_no_step_can_make_is_named(record: Record, course: Any, at: int) -> None:
    brought = {"weights_finite": True, "optimizer_finite": True, "weight_norm": 2e10}
    run = course(steps=100, resume_at=60, resume_data=brought)
    run.event(1, "run_start", parameters=10_000)
    run.at(at, weight_norm=40.0)
    run.at(100, weight_norm=2e10)
    (cause,) = record(run).causes
    assert (cause.code, cause.step) == ("XT-NAN-RESUME", 61)
    assert "resume at step 60 brought back weights that no step can make: norm 2e+10" in cause.problem
    assert f"was 40 at step {at}" in cause.evidence[0]


@pytest.mark.parametrize(("repeated", "said"), [(12, "12 of 140"), (35, "about 35 of 140")])
def test_a_count_that_is_an_estimate_says_so(record: Record, course: Any, repeated: int, said: str) -> None:
    run = course(config={"data": {"train_path": "t.root"}})
    run.event(1, "run_start", num_train=140, num_repeated=repeated)
    assert record(run).causes[0].problem.startswith(said)


@pytest.mark.parametrize(("easier", "reached"), [(0.4, True), (math.inf, False)])
def test_validation_is_measured_by_what_a_constant_reaches_on_it(easier: float, reached: bool) -> None:
    assert TermLevel("energy", 0.5, validation=0.42, trivial=0.5, val_trivial=easier).trivial_reached is reached


@pytest.mark.parametrize(("reserved", "code"), [(14.9, "XT-OOM-FRAGMENTATION"), (6.4, "XT-OOM-GPU")])
def test_words_of_an_older_pytorch_are_understood(reserved: float, code: str) -> None:
    text = (
        "CUDA out of memory. Tried to allocate 900.00 MiB (GPU 0; 15.78 GiB total capacity; 6.20 GiB already "
        f"allocated; 300.00 MiB free; {reserved:.2f} GiB reserved in total by PyTorch)"
    )
    assert from_text(text).code == code
    assert ("fragmentation" in detail_of("XT-OOM-GPU", [text]).text) == (code == "XT-OOM-FRAGMENTATION")


@pytest.mark.parametrize(("norm", "lr", "root"), [(1e6, 1e-3, "XT-NAN-WEIGHTS"), (1e5, 1.0, "XT-NAN-LR")])
def test_no_rate_is_blamed_for_weights_that_it_cannot_have_made(
    record: Record, course: Any, norm: float, lr: float, root: str
) -> None:
    """Such weights run away as those of a high rate do, up to the same NaN."""
    run = course(lr=lr)
    run.event(1, "run_start", parameters=100_000, blocks=["backbone.inner", "heads.energy"])
    run.at(50, weight_norm=norm)
    explode(run, 40)
    found = record(run)
    assert roots(found) == [root]
    assert "XT-NAN-LR" in [cause.code for cause in found.causes]


@pytest.mark.parametrize(("norm", "named"), [(900.0, True), (45.0, False)])
def test_weights_that_grew_before_they_were_first_looked_at_are_named(
    record: Record, course: Any, norm: float, named: bool
) -> None:
    run = course(steps=60)
    run.event(1, "run_start", parameters=10_000, weight_norm=42.0)
    run.at(50, weight_norm=norm)
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-NAN-WEIGHTS"] * named
    limits = [re.findall(r"was (\S+) at step 1; .* add (\S+) at most", "\n".join(cause.evidence)) for cause in causes]
    assert all(float(was) + float(added) < norm for ((was, added),) in limits)


@pytest.mark.parametrize(("batch", "named"), [(1, False), (8, True)])
def test_a_plateau_of_few_events_is_a_note(record: Record, course: Any, batch: int, named: bool) -> None:
    run = course(steps=200, start=1.0, floor=1.0)
    run.event(1, "run_start", effective_batch=batch, steps_per_epoch=40)
    run.event(120, "no_learning", terms={"energy": {"loss": 0.5, "trivial": 0.5}})
    assert [cause.code for cause in record(run).causes] == ["XT-NO-LEARNING"] * named


def test_weights_drawn_anew_come_before_the_plateau_and_the_jump_they_lead_to(record: Record, course: Any) -> None:
    run = course(steps=160, start=1.04, floor=1.04, baseline=0.9)
    run.scale(110, np.full(51, 30.0))
    run.event(120, "no_learning", terms={"energy": {"loss": 0.5, "trivial": 0.45, "ratio": 1.1}}, after_steps=120)
    before = record(run)
    assert "XT-RESTART" not in roots(before)
    run.event(120, "weights_lost", since=100, matrices=["heads.energy.0.weight"])
    found = record(run)
    assert roots(found) == ["XT-RESTART"]
    assert {cause.code for cause in found.causes} == {"XT-RESTART", *(cause.code for cause in before.causes)}
    assert found.causes[0].step == 101


@pytest.mark.parametrize(
    ("steps", "again", "said", "named"),
    [(100, False, {}, False), (65, False, {}, True), (100, True, {}, True), (100, False, {"stage": "input"}, True)],
    ids=["gone on", "hardly gone on", "came again", "bad input"],
)
def test_what_ended_an_attempt_is_a_note_once_a_later_one_goes_on_without_it(
    record: Record, course: Any, steps: int, again: bool, said: dict[str, str], named: bool
) -> None:
    run = course(steps=steps, resume_at=60)
    for step in (57, 58, 59, 60, *[90] * again):
        run.nan(step, **said)
    assert bool(record(run).causes) is named


@pytest.mark.parametrize(("times", "named"), [(1, True), (2, True), (3, False)])
def test_weights_put_in_place_within_a_step_are_a_restart_unless_something_always_moves_them(
    record: Record, course: Any, times: int, named: bool
) -> None:
    run = course(steps=60)
    for number in range(1, times + 1):
        run.event(20 + number, "weights_moved", matrices=["heads.energy.0.weight"], often=number == 3)
    causes = record(run).causes
    assert [(cause.code, cause.step) for cause in causes] == [("XT-RESTART", 21)] * named


@pytest.mark.parametrize(("learned", "named"), [(1.0, True), (0.4, False)])
def test_a_truth_with_a_tail_that_is_not_learned_is_no_learning(
    record: Record, course: Any, learned: float, named: bool
) -> None:
    run = course(steps=200, start=0.02, floor=0.02, noise=0.4)
    run.scale(1, np.where(np.arange(200) % 10 == 0, 100.0, 1.0))  # the same few events of each epoch make the mean
    mean = float(np.mean([row["loss"] for row in run.rows]))
    run.scale(101, np.full(100, learned))
    run.baseline = mean
    codes = [cause.code for cause in record(run).causes]
    assert ("XT-NO-LEARNING" in codes) is named


@pytest.mark.parametrize(("model", "line"), [
    ({"dropout": 0.8}, "--set model.dropout=0.1"), ({"dropout": 0.3}, "lr-sweep"),
])  # fmt: skip
def test_a_network_that_strong_dropout_starves_is_to_be_trained_with_less(
    record: Record, course: Any, model: dict[str, float], line: str
) -> None:
    run = course(start=1.02, floor=1.02, noise=0.05, lr=3e-4, config={"model": model})
    run.event(80, "no_learning", terms={"energy": {"loss": 0.5, "trivial": 0.5, "ratio": 1.0}}, after_steps=80)
    cause = record(run).causes[0]
    assert (cause.code, line in cause.fix) == ("XT-NO-LEARNING", True)


def test_a_look_at_memory_that_two_seconds_share_hides_no_growth(record: Record, course: Any) -> None:
    run = course(steps=140)
    for step, row in enumerate(run.rows):
        second = step // 10
        row["rss_bytes"] = int(5e8 + 7e7 * (second - (second in (5, 9, 12))))
    assert record(run).causes[0].code == "XT-MEM-GROWTH"


@pytest.mark.parametrize(("held_s", "code"), [(2000.0, "XT-HANG"), (500.0, "XT-KILLED")])
def test_a_run_killed_long_after_it_began_to_save_is_a_hang_of_the_file_system(
    write_run: Callable[[Any], Path], course: Any, held_s: float, code: str
) -> None:
    run_dir = write_run(course(end="killed"))
    path = next(run_dir.glob("rec/a*")) / "rank0000.status"
    path.unlink()
    page = StatusPage(path)
    page[Word.PHASE] = PHASES.index("checkpoint")
    page[Word.HEARTBEAT_NS] = time.monotonic_ns()
    page[Word.PHASE_SINCE_NS] = page[Word.HEARTBEAT_NS] - int(held_s * 1e9)
    assert roots(diagnose(gather(run_dir)))[0] == code


@pytest.mark.parametrize(
    ("phase", "silent_s", "said"),
    [
        ("forward", 35.0, "rank 1 (process 77), last heard of in forward, had given no sign of life for 35 s"),
        ("backward", 35.0, "rank 1 (process 77), last heard of in backward, had given no sign of life for 35 s"),
        ("forward", 0.0, "rank 1 (process 77) stood in forward for 40 s"),
        ("backward", 0.0, ""),
        ("done", 35.0, ""),
    ],
)
def test_of_ranks_that_hang_the_one_that_others_waited_for_is_named(
    write_run: Callable[[Any], Path], course: Any, phase: str, silent_s: float, said: str
) -> None:
    """A rank that SIGSTOP held was not named once the run had ended."""
    run = course(steps=5, end="failed", end_data={"message": "WorldError: another rank did not come in time"})
    run.event(5, "hang", phase="backward", age_s=34.0, message="no progress: backward for 34 s")
    run_dir = write_run(run)
    page, now, beat = StatusPage(next(run_dir.glob("rec/a*")) / "rank0001.status"), time.monotonic_ns(), silent_s * 1e9
    page[Word.RANK], page[Word.PID], page[Word.PHASE] = 1, 77, PHASES.index(phase)
    page[Word.HEARTBEAT_NS], page[Word.HEARTBEAT_TIME_NS] = int(now - beat), int(time.time_ns() - beat)
    page[Word.PHASE_SINCE_NS] = now - int(40e9)
    causes = diagnose(gather(run_dir)).causes
    (cause,) = [cause for cause in causes if cause.code == "XT-HANG"]
    assert cause.problem.startswith("no progress for 34 s after step 5, in phase backward")
    assert (said in cause.problem, "rank 1" in cause.problem) == (True, bool(said))


@pytest.mark.parametrize(("npho", "time", "named"), [(0.0, 1.0, "npho"), (1.0, 1e-12, "time"), (1.0, 0.1, "")])
def test_a_channel_that_the_loss_leaves_out_is_predicted_untrained(
    record: Record, course: Any, npho: float, time: float, named: str
) -> None:
    training = {"npho_weight": npho, "time": {"weight": time}}
    run = course(steps=60, config={"model": {"predict_channels": ["npho", "time"]}, "training": training})
    run.event(1, "run_start", blocks=["decoder"])
    for row in run.rows:
        row["block_norms"] = {"decoder": 1.0}
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-UNTRAINED-HEAD"] * bool(named)
    assert not named or causes[0].problem.startswith(f"{named} is predicted and not trained")


def test_readings_that_are_off_with_the_usual_constants_are_those_of_the_files(record: Record, course: Any) -> None:
    def said(scale: float) -> str:
        config = {"normalization": {"npho_scheme": "log1p", "npho_scale": scale, "npho_scale2": 4.08}}
        run = course(steps=60, config={**config, "data": {"train_path": "t.root"}})
        channels = {"npho": {"mean": 0.001, "std": 7e-4, "absmax": 0.1}}
        run.event(1, "input_scale", channels=channels, level="error", reason="its spread is 0.0007")
        (found,) = record(run).causes
        assert found.code == "XT-INPUT-SCALE"
        return str(found.problem)

    assert "another gain or unit than the detector" in said(1000)
    assert "not normalised" in said(1e7)


@pytest.mark.parametrize(("left", "entries", "named"), [
    (3, 100, True), (900, 100_000, True), (20, 20, False), (9, 12, False), (20_000, 100_000, False), (60, 300, False),
])  # fmt: skip
def test_a_cut_that_leaves_hardly_any_event_is_named(
    record: Record, course: Any, left: int, entries: int, named: bool
) -> None:
    run = course(steps=60, config={"data": {"fiducial": {"enabled": True, "u_max": 0.3}}})
    run.event(1, "run_start", num_train=left, num_entries=entries)
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-DATA-NO-EVENTS"] * named
    assert not named or (f"leaves {left}" in causes[0].problem and "u_max 0.3" in causes[0].evidence[0])


def test_a_rule_that_fails_is_named_and_the_others_stand(course: Any, write_run: Callable[[Any], Path]) -> None:
    class Broken(DiagnosisRule):
        code = "XT-NAN-DATA"
        title = "fails"

        def look(self, evidence: Any) -> Iterator[Any]:
            yield from ()
            raise TypeError("'<' not supported")

    run = course(steps=60)
    run.event(20, "files_differ", files=["b.root", "a.root"], ratio=61.0)
    found = diagnose(gather(write_run(run)), (Broken(), *RULES))
    assert [cause.code for cause in found.causes] == ["XT-INPUT-SCALE", "XT-DEFECT"]
    assert "Broken failed: TypeError: '<' not supported" in found.causes[1].problem
    assert "test_diagnosis_faults.py line" in found.causes[1].evidence[0]


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_position_that_does_not_follow_the_light_is_in_no_other_unit(
    record: Record, course: Any, elsewhere: bool
) -> None:
    """Metres would follow it as well; what does not is the branch of something else."""
    run = course(steps=40, config={"data": {"truth_branches": {"uvwFI": "emiVec"}}})
    run.event(1, "baseline", terms={}, target_std={"uvwFI": 0.3}, target_unit={"uvwFI": "m"})
    if elsewhere:
        run.event(20, "truth_elsewhere", message="u of the truth does not follow the light", sample="train")
    (found,) = record(run).causes
    assert found.code == ("XT-TRUTH-ELSEWHERE" if elsewhere else "XT-TARGET-SCALE")


@pytest.mark.parametrize(("seconds", "every", "named"), [(1.8, 4, True), (0.5, 4, False), (1.8, 45, False)])
def test_saving_that_takes_half_of_the_run_is_slow_on_any_disk(
    record: Record, course: Any, seconds: float, every: int, named: bool
) -> None:
    run = course(steps=90, config={"checkpoint": {"save_steps": every}})
    for row in run.rows:
        row |= {"step_s": 0.1}
    for step in range(every, 91, every):
        run.event(step, "checkpoint", path="checkpoint_last.pt", bytes=50_000_000, seconds=seconds)
    causes = [cause for cause in record(run).causes if cause.code == "XT-CKPT-SLOW"]
    assert [cause.fix.endswith("checkpoint.save_steps=null") for cause in causes] == [True] * named


@pytest.mark.parametrize(
    ("branches", "raw_max", "latest", "settings"),
    [
        (("relative_time", "npho"), 1.2e-8, 4e3, ["npho_branch=npho", "time_branch=relative_time"]),
        (("t", "q"), 4e-7, 4e3, ["npho_branch=q", "time_branch=t"]),
        (("relative_time", "relative_time"), 1.2e-8, 1.2e-8, ["npho_branch=npho"]),
        (("time_cfd", "relative_time"), 1.2e-8, 1.2e-8, ["npho_branch=npho"]),
        (("npho", "relative_time"), 1e-3, 1.2e-8, []),
        (("npho", "relative_time"), 1e-8, 1.2e-8, []),
        ((None, None), 1e-8, math.nan, []),
    ],
    ids=["exchanged", "under other names", "times twice", "two times", "another unit", "faint", "no config"],
)
def test_times_that_are_read_as_photons_lead_to_the_branches(
    record: Record, course: Any, branches: tuple[str, str], raw_max: float, latest: float, settings: list[str]
) -> None:
    values = {"mean": 1e-12, "std": 5e-13, "absmax": 3e-12, "raw_min": -1e-9, "raw_max": raw_max}
    times = {"mean": 0.1, "std": 0.5, "absmax": 3.0, "raw_min": -1e-9, "raw_max": latest}
    data = {name: value for name, value in zip(("npho_branch", "time_branch"), branches, strict=True) if value}
    channels = {"npho": values, "time": times}
    found = record(course(steps=2, input_scale=channels, config={"data": data})).causes[0]
    assert found.code == "XT-INPUT-SCALE"
    assert ("holds times in s" in found.problem) == bool(settings)
    assert [word for word in found.fix.split() if word.startswith("data.")] == [f"data.{value}" for value in settings]


@pytest.mark.parametrize("seed", range(6))
def test_batches_of_which_half_hold_a_wild_event_lose_no_weights(record: Record, course: Any, seed: int) -> None:
    run = course(seed=seed, steps=200, floor=0.3)
    chosen = np.random.default_rng(seed).random(200) < 0.5
    for row, wild in zip(run.rows, chosen, strict=True):
        row["loss"] += 66.0 * wild
    assert "XT-RESTART" not in [cause.code for cause in record(run).causes]


@pytest.mark.parametrize(("parameters", "clip", "named"), [(3e5, 2e-7, True), (3.5e7, 2e-6, True), (3e5, 1e-5, False)])
def test_a_clip_is_judged_by_what_it_leaves_each_weight(
    record: Record, course: Any, parameters: float, clip: float, named: bool
) -> None:
    run = course(steps=60, config={"training": {"grad_clip": clip}})
    run.event(1, "run_start", parameters=parameters, weight_norm=50.0)
    for row in run.rows:
        row["clip_coef"] = min(1.0, clip / row["grad_norm"])
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-NO-LEARNING"] * named
    assert not named or causes[0].fix.endswith("--set training.grad_clip=1.0")


@pytest.mark.parametrize(("weight", "named"), [(1e6, True), (30.0, False)])
def test_a_task_that_learns_nothing_beside_one_of_an_absurd_weight_names_the_weight(
    record: Record, course: Any, weight: float, named: bool
) -> None:
    run = course(steps=150, floor=0.3, config={"tasks": {"energy": {"enabled": True, "weight": weight}}})
    run.event(1, "run_start", tasks=["energy", "uvwFI"], blocks=["heads.energy", "heads.uvwFI"], effective_batch=8)
    run.epochs = {epoch: {"metrics": {"val/uvwFI/loss": 0.52}} for epoch in (1, 2, 3)}
    for number, row in enumerate(run.rows):
        row["losses"]["uvwFI"] = 0.52 + 0.02 * (number % 3 - 1)
        row["block_norms"] = {"heads.energy": 1.0, "heads.uvwFI": 1e-6}
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-UNTRAINED-HEAD"] * named
    assert not named or causes[0].fix.endswith("--set tasks.energy.weight=1.0")


@pytest.mark.parametrize(
    ("time_loss", "threshold", "fix"),
    [
        (0.0, 1e8, "--set training.time.npho_threshold=null"),
        (0.0, None, "--deep"),
        (0.0, 50.0, "--deep"),
        (0.1, 1e8, ""),
    ],
)
def test_a_channel_that_no_sensor_shows_is_not_trained(
    record: Record, course: Any, time_loss: float, threshold: float | None, fix: str
) -> None:
    time_config = {"weight": 1.0, "npho_threshold": threshold}
    training = {"npho_weight": 1.0, "time": time_config}
    run = course(steps=60, kind="mae", config={"training": training, "model": {"predict_channels": ["npho", "time"]}})
    for row in run.rows:
        losses = {f"{face}_time": time_loss for face in ("inner", "top")}
        row["losses"] = {"inner_npho": row["loss"], "top_npho": 0.1, **losses}
    causes = record(run).causes
    assert [cause.code for cause in causes] == ["XT-UNTRAINED-HEAD"] * bool(fix)
    assert not fix or fix in causes[0].fix


@pytest.mark.parametrize("validated", [True, False])
def test_validation_files_in_another_unit_are_not_what_is_learned(record: Record, course: Any, validated: bool) -> None:
    """Training in GeV beside validation in MeV was said to predict MeV, and the training file to be at fault."""
    files = {"train_path": "a.root", "val_path": [f"first v{number}.root" for number in range(12)]}
    run = course(steps=40, config={"data": files})
    key, odd = ("val_target_unit", "first v9.root") if validated else ("target_unit", "a.root")
    known = {key: {"energy": f"MeV in {odd}:tree"}, f"{key}_files": {"energy": [odd]}}
    run.event(1, "baseline", terms={}, target_std={"energy": 0.013}, **known)
    (found,) = (cause for cause in record(run).causes if cause.code == "XT-TARGET-SCALE")
    assert ("is in that other unit, too" in found.problem) != validated
    assert ("check-data 'first v9.root' --config" if validated else "check-data a.root --config") in found.fix


@pytest.mark.parametrize("validated", [True, False])
def test_a_unit_of_the_validation_is_the_root_of_no_fault_of_training(
    record: Record, course: Any, validated: bool
) -> None:
    """A run that diverged was sent to look at its validation files alone."""
    run = course(config={"data": {"train_path": "a.root", "val_path": "v.root"}})
    unit = "val_target_unit" if validated else "target_unit"
    run.event(1, "baseline", terms={}, target_std={"energy": 0.013}, **{unit: {"energy": "MeV in v.root:tree"}})
    explode(run, 100, rate=1.4)
    follows = {cause.code: cause.follows for cause in record(run).causes}
    assert (follows["XT-NAN-LR"] == "XT-TARGET-SCALE") != validated
    assert follows["XT-TARGET-SCALE"] == ""


def test_a_truth_of_the_validation_that_is_elsewhere_is_in_no_other_unit(record: Record, course: Any) -> None:
    run = course(config={"data": {"train_path": "a.root", "val_path": "v.root"}})
    told = {"energy": "MeV in v.root:tree"}
    run.event(1, "baseline", terms={}, target_std={"energy": 0.013}, val_target_unit=told)
    run.event(1, "truth_elsewhere", message="it does not follow the light", task="energy", sample="val")
    assert [cause.code for cause in record(run).causes] == ["XT-TRUTH-ELSEWHERE"]


def test_two_causes_that_left_events_out_of_one_step_are_both_told_with_their_own_words(
    record: Record, course: Any
) -> None:
    run = course()
    dark, bright = [0, 3, 1, 3], [0, 8, 1, 8]
    reasons = ["a reading is NaN", "light 900 times that of all others"]
    run.event(
        50, "implausible_event", message=f"entry 3 of a.root: {reasons[0]}, and 1 more", events=[dark, bright],
        reasons=reasons, files=["a.root"], action="leave out",
    )  # fmt: skip
    run.event(50, "quarantine", events=[dark], files=["a.root"], reason="XT-NAN-DATA", total=1)
    run.event(50, "quarantine", events=[bright], files=["a.root"], reason="XT-SPIKE-EVENT", total=2)
    problems = {cause.code: cause.problem for cause in record(run).causes}
    assert problems["XT-NAN-DATA"].endswith(f"entry 3 of a.root: {reasons[0]}, and 1 more")
    assert problems["XT-SPIKE-EVENT"].endswith(f"left out of the run: {reasons[1]}")


@pytest.mark.parametrize(("count", "severity"), [(3, Severity.WARNING), (60, Severity.INFO)])
def test_many_truths_of_nan_are_a_mark_of_the_unknown(
    record: Record, course: Any, count: int, severity: Severity
) -> None:
    run = course(config={"data": {"train_path": "a.root"}})
    run.event(1, "run_start", num_train=200)
    nothing = {"energy": {"count": count, "file": 0, "entry": 4, "value": math.nan, "same": 0}, "angle": None}
    run.event(1, "baseline", terms={}, target_std={"energy": 0.013}, target_no_number=nothing)
    found = record(run)
    (cause,) = (cause for cause in (*found.causes, *found.notes) if cause.code == "XT-NAN-DATA")
    assert cause.severity is severity
    assert f"energy is NaN, infinite or beyond 1e10 in {count} of 200 events" in cause.problem
    assert "check-data a.root --config" in cause.fix


@pytest.mark.parametrize("nothing", [[1, 2], "x", {"energy": None}, None, {"energy": [3]}])
def test_a_damaged_record_of_the_truth_hides_nothing(record: Record, course: Any, nothing: Any) -> None:
    run = course(config={"data": {"train_path": "a.root"}})
    run.event(1, "run_start", num_train=200)
    told = {"target_no_number": nothing, "target_unit_files": nothing, "target_unit": {"energy": "MeV"}}
    run.event(1, "baseline", terms={}, target_std={"energy": 0.013}, **told)
    run.event(1, "invalid_npho", message="invalid photon number nan: run 1 event 2, entry 2 of a.root:tree, sensor 5")
    assert {cause.code for cause in record(run).causes} == {"XT-NAN-DATA", "XT-TARGET-SCALE"}


def test_a_truth_that_is_nan_hides_no_step_that_is(record: Record, course: Any) -> None:
    """As the likelier of one code it took the step, the severity and what followed from it."""
    harmless = Cause(
        "XT-NAN-DATA", 0.6, "1 truth is NaN", (), "x", severity=Severity.WARNING, step=1, symptom="no truth"
    )
    step = Cause("XT-NAN-DATA", 0.5, "step 50: NaN", (), "y", severity=Severity.ERROR, step=50, symptom="nan@50")
    ended = Cause("XT-NAN", 0.9, "it ended", (), "z", severity=Severity.ERROR, step=50, symptom="end")
    first, second = rank([harmless, step, ended], [])
    assert (first.severity, first.step, first.fix) == (Severity.ERROR, 50, "y")
    assert (second.code, second.follows) == ("XT-NAN", "XT-NAN-DATA")
    assert any("1 truth is NaN" in line for line in first.evidence)


@pytest.mark.parametrize("both", [False, True])
def test_predictions_that_spread_little_beside_a_validation_in_another_unit_have_not_collapsed(
    record: Record, course: Any, both: bool
) -> None:
    """Times in s beside a validation in ns: a collapse, and a training at another rate, of what had been learned."""
    run = course(steps=200, config={"data": {"train_path": "a.root", "val_path": "v.root"}})
    unit = {"timing": "ns in v.root:tree"}
    run.event(1, "baseline", terms={}, target_std={"timing": 3e-10, "angle": 20.0}, val_target_unit=unit)
    spreads = {"timing": {"pred_std": 3e-10, "target_std": 0.3}}
    if both:
        spreads["angle"] = {"pred_std": 1e-9, "target_std": 20.0}
    run.event(200, "collapsed", tasks=spreads)
    codes = [cause.code for cause in record(run).causes]
    assert codes == ["XT-TARGET-SCALE", "XT-COLLAPSED"][: 1 + both]
