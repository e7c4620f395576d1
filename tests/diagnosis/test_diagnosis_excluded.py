"""A jump whose record names no event, after which the user left events out that `diagnose replay` had named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xectool import engine
from xectool.cli import app
from xectool.cli.boundary import run as run_cli
from xectool.diagnosis.cause import Cause, Diagnosis

Write = Callable[[Any], Path]
LATE = {
    "file": "a.root:tree",
    "file_index": 0,
    "entry": 31,
    "run": 1,
    "event": 31,
    "reason": "data.exclude",
    "step": 31,
}
SAID = "; mended: attempt 2 leaves 1 further event out (data.exclude), and it did not come back"


@pytest.mark.parametrize(
    ("late", "num_train", "mended"),
    [
        ([LATE], 160, True),  # inside an epoch: the list of its order stays
        ([], 159, True),  # between two epochs
        ([], 160, False),
        ([LATE | {"step": 11}], 160, False),  # before the jump
        ([LATE | {"reason": "XT-SPIKE-EVENT"}], 160, False),  # a guard's own
        ([], 161, False),
    ],
)
def test_a_jump_is_a_note_once_the_user_leaves_events_out_and_it_does_not_come_back(
    course: Any, write_run: Write, late: list[dict[str, Any]], num_train: int, mended: bool
) -> None:
    run = course(steps=60, resume_at=30)
    run.at(22, loss=12.0, losses={"energy": 11.0, "uvwFI": 1.0})
    run.event(1, "run_start", num_train=160, steps_per_epoch=20)
    run.event(31, "run_start", num_train=num_train, steps_per_epoch=20)
    place = write_run(run)
    (place / "quarantine.json").write_text(json.dumps({"format": 1, "budget": 16, "events": late}))
    found = engine.diagnose.run(place)
    notes = [note.problem for note in found.notes if note.code == "XT-SPIKE-EVENT"]
    assert [SAID in problem for problem in notes] == [True] * mended
    assert [cause.code for cause in found.causes] == ["XT-SPIKE-EVENT"] * (not mended)


def of_one_file(place: Path) -> Path:
    """Let a run say in its manifest that it trains on /d/a.root."""
    files = [{"path": "/d/a.root", "tree": "tree", "role": "train"}]
    manifest = place / "manifest.json"
    known = json.loads(manifest.read_text()) if manifest.is_file() else {}
    attempts = [{"attempt": 1, **(known.get("attempts") or [{}])[0], "data_files": files}]
    manifest.write_text(json.dumps({"format": 1, **known, "attempts": attempts}))
    return place


@pytest.mark.parametrize("bad", [16, 17])
def test_more_than_sixteen_bad_events_are_no_list_to_paste(course: Any, write_run: Write, bad: int) -> None:
    run = course(steps=60)
    run.event(1, "run_start", num_train=160, steps_per_epoch=20)
    events = [[0, entry, 1, entry] for entry in range(bad)]
    run.event(12, "quarantine", events=events, files=["/d/a.root:tree"], reason="XT-NAN-DATA", total=bad)
    found = engine.diagnose.run(of_one_file(write_run(run)))
    assert found.causes
    assert found.exclude.count("a.root:tree:") == (bad if bad <= 16 else 0)


def test_one_list_leaves_out_the_events_of_all_causes(course: Any, write_run: Write, capsys: Any) -> None:
    """Each cause had a list of its own, which undid those of the others, and what stood behind "also:" one more."""
    run = course(steps=60)
    run.event(1, "run_start", num_train=160, steps_per_epoch=20)
    for step, entry, reason in ((12, 3, "XT-NAN-DATA"), (30, 7, "XT-SPIKE-EVENT"), (41, 9, "XT-SPIKE-EVENT")):
        run.event(step, "quarantine", events=[[0, entry, 1, entry]], files=["/d/a.root:tree"], reason=reason, total=1)
    run.event(
        50,
        "implausible_event",
        message="entry 11 of /d/a.root:tree (run 1 event 11): light",
        events=[[0, 11, 1, 11]],
        action="record",
        files=["/d/a.root:tree"],
    )
    place = of_one_file(write_run(run))
    found = engine.diagnose.run(place)
    assert len(found.causes) == 2
    wanted = {f"/d/a.root:tree:{entry}" for entry in (3, 7, 9, 11)}
    assert {*found.exclude.partition("=")[2].strip("[]").split(", ")} == wanted
    assert all(found.exclude in cause.fix for cause in found.causes)  # any of them is complete
    assert not any("data.exclude" in line for cause in found.causes for line in cause.evidence)
    assert run_cli(app.app, ["diagnose", "run", str(place)]) == 1
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("data.exclude=[") == 1


def test_evidence_is_cut_on_the_screen_and_whole_in_json(course: Any, write_run: Write, capsys: Any) -> None:
    run = course(steps=80)
    run.event(1, "run_start", num_train=1600, steps_per_epoch=20)
    for entry in range(12):
        step, message = 20 + 3 * entry, f"entry {entry} of a.root (run 1 event {entry}): sensor {entry} is hot"
        run.event(step, "implausible_event", message=message, events=[[0, entry, 1, entry]], code="XT-SPIKE-EVENT")
        run.event(step, "quarantine", events=[[0, entry, 1, entry]], files=["a.root"], reason=f"XT-SPIKE-EVENT {entry}")
    place = write_run(run)
    (cause,) = engine.diagnose.run(place).causes
    told = [line for line in (cause.problem, *cause.evidence) if f"entry {5} of a.root" in line]
    assert len(told) <= 1
    assert run_cli(app.app, ["diagnose", "run", str(place)]) == 1
    shown = capsys.readouterr()
    lines = (shown.out + shown.err).splitlines()
    assert len(lines) < 20


@pytest.mark.parametrize(("count", "hidden"), [(9, True), (7, False)])
def test_many_further_causes_of_one_code_are_cut_on_the_screen_and_on_the_page(
    course: Any,
    write_run: Write,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    count: int,
    hidden: bool,
) -> None:
    """One line is not replaced by a line that says there is one more."""
    run = course(steps=80)
    run.event(1, "run_start", num_train=1600, steps_per_epoch=20)
    told = tuple(f"also: entry {entry} of a.root is far away" for entry in range(count))
    cause = Cause("XT-SPIKE-EVENT", 0.9, "an event", told, "xectool explain XT-SPIKE-EVENT", symptom="spike")
    monkeypatch.setattr("xectool.engine.diagnose.run_health.diagnose", lambda *_: Diagnosis("an event", (cause,)))
    place = write_run(run)
    assert engine.diagnose.run(place).causes[0].evidence == told
    assert run_cli(app.app, ["diagnose", "run", str(place)]) == 1
    shown = capsys.readouterr()
    page = Path(engine.report(place, tmp_path / "report.html").path).read_text()
    for text in (shown.out + shown.err, page):
        assert [line in text for line in told] == [True] * 6 + [not hidden] * (count - 6)
        assert ("and 3 more (--json)" in text) == hidden
