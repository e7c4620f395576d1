"""The evidence of a run: bounded, live, and indifferent to what is missing or broken."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.diagnosis.evidence import evidence
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.evidence.history import SCALARS, HistoryBuilder
from xectool.diagnosis.evidence.statistics import trailing_median
from xectool.diagnosis.ranking import diagnose
from xectool.runlog.manifest import AttemptFacts, write_manifest
from xectool.runlog.records import StepRecord
from xectool.runlog.writer import RunWriter

Write = Callable[[Any], Path]


def step(number: int, loss: float = 1.0) -> StepRecord:
    return StepRecord(1, number, number / 10, number / 10, loss, {"energy": loss}, lr=1e-3, grad_norm=loss, step_s=0.1)


def test_memory_is_bounded_and_what_is_worth_noting_stays() -> None:
    builder, bad = HistoryBuilder(max_rows=4000), (37, 12_345, 20_000)
    tracemalloc.start()
    for number in range(1, 50_001):
        builder.add(step(number, float("nan") if number in bad else 1.0 + 500 * (number == 9_000)), 1)
    history = builder.build()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert history.seen == 50_000
    assert history.thinned
    assert len(history) <= 2 * 4000 + 4096
    assert peak < 60e6
    kept = history["step"]
    assert set(bad) <= set(kept.astype(int))
    assert 9_000 in kept
    assert np.all(np.diff(kept) > 0)
    assert kept[-1000:].tolist() == list(range(49_001, 50_001))


def test_columns_are_what_was_recorded() -> None:
    builder = HistoryBuilder()
    for number in range(1, 101):
        builder.add(step(number, number / 7), 1)
    history = builder.build()
    assert history["loss"].tolist() == [number / 7 for number in range(1, 101)]
    assert history.terms["energy"].tolist() == history["loss"].tolist()
    assert np.isnan(history["rss_bytes"]).all()
    assert {len(history[name]) for name in SCALARS} == {100}


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=60), st.sampled_from([3, 5, 21]))
@settings(deadline=None)
def test_trailing_medians_look_back_only(values: list[float], window: int) -> None:
    series = np.array(values)
    medians = trailing_median(series, window)
    for index in range(1, len(values)):
        assert medians[index] == np.median(series[max(0, index - window) : index])
    assert np.isnan(medians[0])


@pytest.mark.parametrize("resumed", [False, True])
def test_columns_and_records_give_the_same_evidence(
    course: Any, write_run: Write, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    run = course(steps=150, resume_at=60 if resumed else 0)
    run.nan(50)
    run.at(90, step=80)
    run.event(30, "rewind", from_step=30, to_step=28, reason="spike")
    place = write_run(run)
    by_columns = gather(place)
    monkeypatch.setattr(evidence, "_by_columns", lambda *_: False)
    by_records = gather(place)
    for name in SCALARS:
        assert np.array_equal(by_columns.steps[name], by_records.steps[name], equal_nan=True), name
    for ours, theirs in (
        (by_columns.steps.terms, by_records.steps.terms),
        (by_columns.steps.blocks, by_records.steps.blocks),
    ):
        assert list(ours) == list(theirs)
        assert all(np.array_equal(ours[name], theirs[name], equal_nan=True) for name in ours)
    assert by_columns.events == by_records.events
    assert str(by_columns.epochs) == str(by_records.epochs)  # unknown numbers are NaN
    assert by_columns.attempts == by_records.attempts
    assert by_columns.repeated == by_records.repeated == (80,)
    assert by_columns.repeated_batches == by_records.repeated_batches


def test_a_live_run_is_read_while_it_is_written(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        for number in range(1, 60):
            writer.step(step(number))
        found = gather(tmp_path)
        assert found.status.state == "running"
        assert len(found.steps) == 59
        assert diagnose(found).healthy
        writer.event("finished", "finished")


def test_steps_taken_back_by_a_resume_do_not_count(course: Any, write_run: Write) -> None:
    place = write_run(course(steps=60))
    with RunWriter(place) as writer:
        writer.resume(40, 1)
        for number in range(41, 51):
            writer.step(step(number))
        writer.event("finished", "finished")
    found = gather(place)
    assert found.steps["step"].tolist() == list(range(1, 51))
    assert found.repeated == ()
    assert [attempt.resumed_after for attempt in found.attempts] == [None, 40]


@pytest.mark.parametrize("end", ["killed", "finished"])
def test_an_attempt_that_was_killed_and_gone_on_from_is_a_note(course: Any, write_run: Write, end: str) -> None:
    place = write_run(course(steps=60, end=end))
    with RunWriter(place) as writer:
        writer.resume(40, 1)
        for number in range(41, 61):
            writer.step(step(number, loss=0.15))
        writer.event("finished", "finished")
    found = diagnose(gather(place))
    told = [note.problem for note in found.notes if note.code == "XT-KILLED"]
    after = "attempt 1 left no last word (killed, or nothing could be written), and attempt 2 went on after step 40"
    assert (found.causes, told) == ((), [after] * (end == "killed"))


def test_a_verdict_on_a_few_steps_says_what_they_cannot_tell(course: Any, write_run: Write) -> None:
    few, many = (diagnose(gather(write_run(course(steps=steps)))).verdict for steps in (4, 200))
    assert "in 4 steps (finished); fewer than 100 do not tell whether it learns" in few
    assert many == "healthy: nothing above a note in 200 steps (finished)"


@pytest.mark.parametrize(("resumed_after", "named"), [(40, []), (55, [1])])
def test_what_an_attempt_that_was_given_up_saw_is_no_cause(
    course: Any, write_run: Write, resumed_after: int, named: list[int]
) -> None:
    run = course(steps=60)
    run.nan(50, stage="input", suspects=[[0, 1, 1, 1]], events=[[0, entry, 1, entry] for entry in range(8)])
    run.event(52, "hang", age_s=900.0, phase="forward", message="no progress")
    place = write_run(run)
    _keep(place, 1, 1)
    with RunWriter(place) as writer:
        writer.resume(resumed_after, 1)
        for number in range(resumed_after + 1, 61):
            writer.step(step(number, loss=0.1))
        writer.event("finished", "finished")
    found = gather(place)
    assert {event.kind for event in found.given_up} >= (set() if named else {"nonfinite_skip", "hang"})
    assert [item.attempt for item in found.incidents] == named
    said = diagnose(found)
    assert [cause.code for cause in said.causes] == (["XT-NAN-DATA"] if named else [])
    assert ("XT-HANG" in {note.code for note in said.notes}) == bool(named)  # the second attempt has gone on


def test_the_same_step_of_two_attempts_is_told_apart(course: Any, write_run: Write) -> None:
    run = course(steps=60)
    run.nan(50, stage="input", suspects=[[0, 1, 1, 1]], events=[[0, entry, 1, entry] for entry in range(8)])
    place = write_run(run)
    _keep(place, 1, 1)
    with RunWriter(place) as writer:
        writer.resume(40, 1)
        for number in range(41, 61):
            writer.step(step(number, loss=math.nan if number == 50 else 0.1))
        _keep(place, 2, 2)
        writer.event("nonfinite_skip", step=50, suspects=[[0, 2, 1, 2]], stage="input", events=[[0, 2, 1, 2]] * 8)
        writer.event("finished", "finished")
    (cause,) = diagnose(gather(place)).causes
    assert cause.code == "XT-NAN-DATA"
    lines = " ".join(cause.evidence)
    assert "entry 2 (run 1 event 2)" in lines
    assert "entry 1 " not in lines
    assert "incidents/0002" in lines


def _keep(place: Path, number: int, attempt: int) -> None:
    folder = place / "incidents" / f"{number:04d}"
    folder.mkdir(parents=True)
    content = {"kind": "nonfinite", "step": 50, "attempt": attempt, "suspects": [[0, attempt, 1, attempt]]}
    (folder / "incident.json").write_text(json.dumps(content))


def begin_anew(place: Path, end: str) -> None:
    with RunWriter(place) as writer:
        for number in range(1, 21):
            writer.step(step(number))
        writer.event(end, end, step=20)


@pytest.mark.parametrize("end", ["killed", "failed"])
def test_a_second_start_over_saved_progress_is_a_silent_restart(course: Any, write_run: Write, end: str) -> None:
    place = write_run(course(steps=80, end=end))
    begin_anew(place, "finished")
    assert "XT-RESTART" in [cause.code for cause in diagnose(gather(place)).causes]


@pytest.mark.parametrize("end", ["finished", "interrupted"])
def test_a_new_start_after_an_end_is_meant(course: Any, write_run: Write, end: str) -> None:
    place = write_run(course(steps=80, end=end))
    begin_anew(place, "failed")
    begin_anew(place, "finished")  # what the second attempt had not saved is not lost in the third
    found = gather(place)
    assert [attempt.end for attempt in found.attempts] == [end, "failed", "finished"]
    assert "XT-RESTART" not in [cause.code for cause in diagnose(found).causes]


@pytest.mark.parametrize(("name", "changed", "named"), [
    ("SIGTERM", False, True), ("SIGUSR1", False, True), ("SIGHUP", False, True),
    ("SIGINT", False, False), ("SIGTERM", True, False),
])  # fmt: skip
def test_what_a_batch_system_ended_and_began_anew_as_it_was_was_to_go_on(
    course: Any, write_run: Write, name: str, changed: bool, named: bool
) -> None:
    run = course(steps=80, end="interrupted")
    run.event(80, "signal", name=name)
    place = write_run(run)
    config = yaml.safe_load((place / "config.yaml").read_text())
    config["training"]["lr"] *= 2 if changed else 1
    write_manifest(place, AttemptFacts(2, config))
    begin_anew(place, "finished")
    assert ("XT-RESTART" in [cause.code for cause in diagnose(gather(place)).causes]) is named


def test_broken_files_cost_only_what_they_would_have_said(course: Any, write_run: Write) -> None:
    place = write_run(course())
    (place / "config.yaml").write_text("training: [")
    (place / "manifest.json").write_text("{")
    (place / "incidents" / "0001").mkdir(parents=True)
    (place / "incidents" / "0001" / "incident.json").write_text('{"step": ')
    (place / "tracking").mkdir()
    (place / "tracking" / "state.json").write_text("[1, 2")
    found = gather(place)
    assert (found.config, found.incidents, found.tracker) == ({}, (), {})
    assert diagnose(found).healthy
