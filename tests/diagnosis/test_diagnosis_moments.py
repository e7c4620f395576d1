"""Evidence is read over the whole run: no verdict from one stair, one attempt, one meeting or one guess."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from xectool.diagnosis.cases.nan import nan_cases
from xectool.diagnosis.cause import Diagnosis
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.ranking import diagnose

Record = Callable[[Any], Diagnosis]
few = settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
seeds = st.integers(0, 10**6)
EVENTS = [[0, entry, 1, 100 + entry] for entry in range(8)]


def codes(found: Diagnosis) -> list[str]:
    return [cause.code for cause in found.causes]


@few
@given(at=st.integers(18, 80), height=st.floats(3e7, 3e8))
def test_a_stair_after_which_memory_stays_is_no_growth(record: Record, course: Any, at: int, height: float) -> None:
    """The first validation takes memory for good; a level that stays from there on is evidence, too."""

    def diagnosed(stairs: dict[int, float]) -> Diagnosis:
        run = course(seed=at)
        for step, row in enumerate(run.rows):
            row["rss_bytes"] = int(5e8 + height * sum(part for first, part in stairs.items() if step >= first))
        return record(run)

    drops = {2: 0.03, at // 3: 0.03, at // 2: 0.02}
    assert codes(diagnosed({**drops, at: 1.0, at + 2: 0.1, at + 6: 0.02, at + 8: 0.004})) == []
    assert codes(diagnosed(dict.fromkeys(range(10, 200, 10), 1.0))) == ["XT-MEM-GROWTH"]


@few
@given(seed=seeds, at=st.integers(80, 120), more=st.floats(2e7, 1e8))
def test_each_process_begins_with_memory_of_its_own(
    record: Record, course: Any, seed: int, at: int, more: float
) -> None:
    """What imports more after a resume, such as a look at a spike, holds more from there on."""

    def resumed(per_step: float) -> Diagnosis:
        run, rng = course(seed=seed, resume_at=at), np.random.default_rng(seed)
        for step, row in enumerate(run.rows):
            grown = more * (1 - np.exp((at - step) / 5)) + per_step * (step - at) if step >= at else 0.0
            row["rss_bytes"] = int(5e8 + (2e7 if step >= at else 0.0) + grown + rng.normal(0, 1e5))
        return record(run)

    assert codes(resumed(0.0)) == []
    assert codes(resumed(5e6)) == ["XT-MEM-GROWTH"]


@few
@given(seed=seeds, per_epoch=st.integers(500, 520))
def test_what_fills_in_the_first_epoch_is_no_growth(record: Record, course: Any, seed: int, per_epoch: int) -> None:
    """Buffers fill, and each page of a mapped file is touched for the first time."""

    def filled(epochs: int) -> Diagnosis:
        run, rng = course(seed=seed, steps=600, per_epoch=per_epoch), np.random.default_rng(seed)
        for step, row in enumerate(run.rows):
            row["rss_bytes"] = int(5e8 + 4e6 * min(step, epochs * per_epoch) + rng.normal(0, 1e5))
        return record(run)

    assert codes(filled(1)) == []
    assert codes(filled(2)) == ["XT-MEM-GROWTH"]


@few
@given(seed=seeds, first=st.integers(8, 20))
def test_what_looks_at_bad_batches_take_is_no_growth(record: Record, course: Any, seed: int, first: int) -> None:
    """Weights run away: every step is looked at, and each look takes memory that the process keeps."""

    def ran_away(looked: bool) -> Diagnosis:
        run, steps = course(seed=seed, steps=90), range(first, 90)
        for step, row in enumerate(run.rows, start=1):
            row["rss_bytes"] = int(5e8 + 3e6 * max(0, step - first))
        for step in steps if looked else ():
            run.nan(step)
        return record(run)

    assert "XT-MEM-GROWTH" not in codes(ran_away(looked=True))
    assert codes(ran_away(looked=False)) == ["XT-MEM-GROWTH"]


@few
@given(seed=seeds, at=st.integers(40, 120))
def test_inputs_out_of_scale_from_a_resume_on_are_named(record: Record, course: Any, seed: int, at: int) -> None:
    run = course(seed=seed, resume_at=at)
    assert codes(record(run)) == []
    wrong = {"npho": {"mean": 30.0, "std": 40.0, "absmax": 900.0}}
    again = course(seed=seed, resume_at=at)
    again.event(at + 1, "input_scale", channels=wrong, level="error", channel="npho", reason="its mean is 30")
    assert codes(record(again)) == ["XT-INPUT-SCALE"]


def keep(run_dir: Path, content: dict[str, Any]) -> None:
    folder = run_dir / "incidents" / "0001"
    folder.mkdir(parents=True)
    (folder / "incident.json").write_text(json.dumps({"events": EVENTS, **content}))


@pytest.mark.parametrize(("resume_at", "code"), [(60, "XT-NAN-RESUME"), (0, "XT-NAN-GRAD")])
def test_a_look_at_a_batch_does_not_hide_the_resume_that_brought_the_damage(
    write_run: Callable[[Any], Path], course: Any, resume_at: int, code: str
) -> None:
    run = course(seed=5, resume_at=resume_at)
    for step in range(62, 68):
        run.nan(step, (), stage="gradient", parameters=["backbone.norm.weight"])
    run.rows, run.steps, run.end = run.rows[:67], 67, "failed"
    run_dir = write_run(run)
    keep(run_dir, {"kind": "nonfinite", "step": 62, "triage": {"cause": "XT-NAN-GRAD", "confidence": "likely"}})
    assert codes(diagnose(gather(run_dir)))[0] == code


@few
@given(seed=seeds)
def test_events_found_bad_after_a_damaged_resume_follow_from_it(record: Record, course: Any, seed: int) -> None:
    run = course(seed=seed, resume_at=60, resume_data={"optimizer_finite": True, "optimizer_absmax": 1e15})
    for step in range(61, 67):
        run.nan(step)
    run.event(64, "quarantine", events=EVENTS[:1], reason="XT-NAN-DATA", total=1, budget=16)
    run.event(90, "quarantine", events=EVENTS[1:2], reason="XT-NAN-DATA", total=2, budget=16)
    found = record(run)
    assert [cause.code for cause in found.causes if not cause.follows] == ["XT-NAN-RESUME"]
    assert "XT-NAN-DATA" in codes(found)


@few
@given(seed=seeds, retaken=st.booleans())
def test_events_of_steps_that_were_taken_again_meet_by_chance_as_well(
    record: Record, course: Any, seed: int, retaken: bool
) -> None:
    """A step that was taken again without its bad events is finite, and its batch was bad all the same."""
    rng = np.random.default_rng(seed)
    run = course(seed=seed, steps=24, per_epoch=12)
    columns = ["file_index", "entry", "run", "event"]
    for epoch, count in ((0, 4), (1, 3)):
        order = rng.permutation(60)
        for place in range(count):
            batch = [[0, int(entry), 1, int(entry)] for entry in order[5 * place : 5 * place + 5]]
            step = 12 * epoch + place + 1
            if retaken:
                run.event(step, "nonfinite_skip", stage="gradient", events=batch, columns=columns)
            else:
                run.nan(step, (), stage="gradient", events=batch, columns=columns)
    found = record(run)
    assert not any("of every epoch" in line for cause in found.causes for line in cause.evidence)


@few
@given(seed=seeds, first=st.integers(60, 120), late=st.integers(1, 5))
def test_events_left_out_while_weights_run_away_are_no_cause_of_their_own(
    record: Record, course: Any, seed: int, first: int, late: int
) -> None:
    run = course(seed=seed)
    growth = 1.6 ** np.arange(1, 31)
    run.scale(first, growth, growth)
    for step in range(first + 30, first + 36):
        run.nan(step)
    run.event(first + 30 + late, "quarantine", events=EVENTS[:1], reason="XT-NAN-LOSS", total=1, budget=16)
    run.rows, run.steps, run.end = run.rows[: first + 35], first + 35, "failed"
    assert codes(record(run))[0] == "XT-NAN-LR"
    calm = course(seed=seed)
    calm.event(first, "quarantine", events=EVENTS[:1], reason="XT-NAN-LOSS", total=1, budget=16)
    assert codes(record(calm)) == ["XT-NAN-LOSS"]


@pytest.mark.parametrize(("looked", "code"), [(True, "XT-NAN-GRAD"), (False, "XT-NAN-DATA")])
def test_an_event_that_only_came_again_is_not_to_blame_where_a_look_found_none_bad(
    write_run: Callable[[Any], Path], course: Any, looked: bool, code: str
) -> None:
    run = course(seed=6, steps=48, per_epoch=12)
    for step, others in ((5, (1, 2, 3)), (17, (4, 5, 6)), (29, (7, 8, 9))):
        batch = [[0, entry, 1, entry] for entry in (0, *others)]
        run.nan(step, (), stage="gradient", events=batch, columns=["file_index", "entry", "run", "event"])
    run_dir = write_run(run)
    if looked:
        keep(run_dir, {"kind": "nonfinite", "step": 5, "triage": {"cause": "XT-NAN-GRAD", "confidence": "possible"}})
        event = {"kind": "nonfinite", "triage": {"cause": "XT-NAN-GRAD", "confidence": "possible"}}
        for number, step in ((2, 17), (3, 29)):
            folder = run_dir / "incidents" / f"000{number}"
            folder.mkdir()
            (folder / "incident.json").write_text(json.dumps({"events": EVENTS, "step": step, **event}))
    assert codes(diagnose(gather(run_dir)))[0] == code


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_the_folders_of_a_step_that_with_the_events_at_fault_is_believed(
    course: Any, write_run: Callable[[Any], Path], order: tuple[int, int]
) -> None:
    run = course(seed=6)
    run.nan(50, stage="loss")
    run_dir = write_run(run)
    ranks: list[dict[str, Any]] = [{"suspects": []}, {"suspects": [EVENTS[2]], "triage": {"cause": "XT-NAN-DATA"}}]
    for number, rank in enumerate(order):
        folder = run_dir / "incidents" / f"000{number + 1}"
        folder.mkdir(parents=True)
        content = {"kind": "nonfinite", "step": 50, "events": EVENTS, **ranks[rank]}
        (folder / "incident.json").write_text(json.dumps(content))
    (case,) = nan_cases(gather(run_dir))
    assert case.incident is not None
    assert case.incident.suspects == (tuple(EVENTS[2]),)
    assert case.triage.cause == "XT-NAN-DATA"


def restarted(course: Any, seed: int, after: float, told: bool = True) -> Any:
    """A cosine that goes back to 0.4 at step 80; the loss is 0.5 before and ``after`` from there on."""
    run = course(seed=seed, steps=120, floor=0.5, start=0.6, noise=0.03, lr=0.4, baseline=0.62,
                 config={"training": {"lr_scheduler": "cosine_restarts"}})  # fmt: skip
    for step, row in enumerate(run.rows, start=1):
        row["lr"] = 2e-3 * (80 - step) / 80 + 1e-7 if step < 80 else 0.4
        level = 0.5 + 0.1 * np.exp(-step / 10) if step < 80 else after
        row["losses"] = {name: value * level / row["loss"] for name, value in row["losses"].items()}
        row["loss"] = level * float(np.random.default_rng([seed, step]).lognormal(0, 0.03))
    if told:
        run.event(80, "schedule_restart", lr_before=1e-7, lr_after=0.4)
    return run


@few
@given(seed=seeds, after=st.floats(0.66, 1.2))
def test_a_restart_after_which_nothing_is_learned_is_named_without_a_jump_of_the_loss(
    record: Record, course: Any, seed: int, after: float
) -> None:
    found = record(restarted(course, seed, after))
    assert codes(found)[0] == "XT-SPIKE-RESTART"
    assert "training.lr_scheduler=cosine" in found.causes[0].fix
    assert codes(record(restarted(course, seed, after, told=False)))[0] in ("XT-CONFIG-LR", "XT-SPIKE-LR")


@few
@given(seed=seeds, after=st.floats(0.2, 0.45))
def test_a_restart_at_a_high_rate_that_goes_on_learning_is_no_fault(
    record: Record, course: Any, seed: int, after: float
) -> None:
    assert codes(record(restarted(course, seed, after))) == []


@pytest.mark.parametrize(("used", "code"), [(0.3e9, "XT-WORKER-DEAD"), (23.5e9, "XT-OOM-HOST")])
def test_a_killed_reader_is_a_lack_of_memory_only_where_memory_was_short(
    record: Record, course: Any, used: float, code: str
) -> None:
    """The error can only guess why the process was killed; what the run held says it."""
    said = "OutOfMemory: loader process 7 was killed, most likely because the machine's memory ran out"
    run = course(end="failed", end_data={"message": said, "code": "XT-LOADER-KILLED"})
    run.event(200, "oom", side="host", phase="data_wait", text="Broken pipe", requested=-1)
    if used > 1e9:
        run.event(190, "memory_warning", used_bytes=used, budget_bytes=24e9, source="cgroup")
    found = record(run)
    assert codes(found)[0] == code
    assert "XT-WORKER-DEAD" in codes(found)


@pytest.mark.parametrize(("leak", "named"), [(0.0, ["XT-RECOMPILE"]), (5e6, ["XT-MEM-GROWTH", "XT-RECOMPILE"])])
def test_memory_of_graphs_that_are_compiled_is_no_leak(
    record: Record, course: Any, leak: float, named: list[str]
) -> None:
    run = course(seed=9, steps=180, per_epoch=180)
    run.event(90, "recompile_limit", reason="tensor 'x' size mismatch at index 0")
    for step, row in enumerate(run.rows, 1):
        row["rss_bytes"] = int(5e8 + 7e5 * min(step, 90) + (9e5 + leak) * step)
    assert sorted(cause.code for cause in record(run).causes) == named
