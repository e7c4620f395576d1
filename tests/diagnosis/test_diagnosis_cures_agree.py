"""What one diagnosis proposes agrees: one list of events, one place for a unit, no second cure behind a cause."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xectool.diagnosis.cause import Cause, Diagnosis, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence, gather
from xectool.diagnosis.ranking import diagnose
from xectool.findings import Severity

FILES = {"data": {"train_path": ["data/a.root", "data/b.root"]}}


@pytest.fixture
def found(write_run: Callable[[Any], Path]) -> Callable[[Any], Diagnosis]:
    """Record a course of two training files and diagnose it."""

    def of(run: Any) -> Diagnosis:
        place = write_run(run)
        manifest = json.loads((place / "manifest.json").read_text())
        files = [{"path": path, "role": "train"} for path in FILES["data"]["train_path"]]
        manifest["attempts"][-1]["data_files"] = files
        (place / "manifest.json").write_text(json.dumps(manifest))
        return diagnose(gather(place))

    return of


def zeros(run: Any, count: int) -> None:
    """Record that so many energies were never filled, in the first file."""
    places = [[0, 20 + 10 * number] for number in range(count)][:16]
    told = {"count": count, "file": 0, "entry": 20, "value": 0.0, "same": count, "places": places}
    run.event(1, "run_start", num_train=160)
    run.event(1, "baseline", loss=1.0, target_std={"energy": 0.01}, target_never_filled={"energy": told})


def test_all_events_of_one_fault_are_in_the_one_list(found: Callable[[Any], Diagnosis], course: Any) -> None:
    """Of three energies of 0 only that of the step which jumped was left out; without a jump none was."""
    run = course(steps=40, config=FILES, baseline=None)
    zeros(run, 3)
    (cause,) = found(run).causes
    named = ", ".join(f"data/a.root:{entry}" for entry in (20, 30, 40))
    assert cause.fix.endswith(f"   # then train with --set 'data.exclude=[{named}]'")


def test_events_that_are_not_all_named_are_no_list(found: Callable[[Any], Diagnosis], course: Any) -> None:
    run = course(steps=40, config=FILES, baseline=None)
    zeros(run, 17)
    (cause,) = found(run).causes
    assert "data.exclude" not in cause.fix


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["data/b.root"], "in MeV in 1 of 2 files (data/b.root), not in GeV: the network is to learn both units"),
        (["data/a.root", "data/b.root"], "in MeV, not in GeV: what is predicted is in that other unit, too"),
    ],
)
def test_a_unit_of_some_files_names_them(
    found: Callable[[Any], Diagnosis], course: Any, files: list[str], told: str
) -> None:
    """A spread of both was "at most 1 in this detector", and the prediction said to be in the other unit."""
    run = course(steps=40, config=FILES, baseline=None)
    run.event(1, "run_start", num_train=160)
    unit = "MeV in data/b.root" if len(files) == 1 else "MeV"
    spread = {"energy": 20.8 if len(files) == 1 else 0.9}
    facts = {"target_unit": {"energy": unit}, "target_unit_files": {"energy": files}}
    run.event(1, "baseline", loss=1.0, target_std=spread, **facts)
    (cause,) = found(run).causes
    assert cause.code == "XT-TARGET-SCALE"
    assert f"energy: the truth seems to be {told}" in cause.problem


class Says(DiagnosisRule):
    """Says what it is told to."""

    code = "XT-ANY"
    title = "anything"

    def __init__(self, *causes: Cause) -> None:
        self.causes = causes

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        yield from self.causes


@pytest.mark.parametrize(
    ("code", "behind", "keeps"),
    [
        ("XT-CONVENTIONAL", "XT-SPIKE-LR", False),
        ("XT-CONVENTIONAL", "XT-LOADER-SLOW", True),
        ("XT-CONVENTIONAL", "", True),
        ("XT-NO-LEARNING", "XT-TRUTH-ELSEWHERE", False),
        ("XT-NO-LEARNING", "XT-LOADER-SLOW", True),
        ("XT-GRAD-CLIP", "XT-SPIKE-LR", True),
    ],
)
def test_a_note_behind_a_cause_has_no_cure_of_its_own(
    write_run: Callable[[Any], Path], course: Any, code: str, behind: str, keeps: bool
) -> None:
    """Beside a rate a thousand times too high a note asked to resume, beside shuffled truth for a sweep of rates."""
    note = Cause(code, 0.8, "it is not good yet", fix="xectool train c.yaml --resume r", severity=Severity.INFO)
    cause = Cause(behind, 0.9, "it is wrong", fix="xectool explain")
    evidence = gather(write_run(course(steps=20)))
    (left,) = diagnose(evidence, [Says(note, *([cause] if behind else []))]).notes
    assert bool(left.fix) == keeps


@pytest.mark.parametrize(
    ("guards", "named", "setting"),
    [
        ({"disable": ["G01", "G02"]}, "G01 input_scale, G02 nonfinite_loss", "--set 'guards.disable=[]'"),
        ({"on_spike": "off"}, "G06 spike", "--set guards.on_spike=record"),
        ({"disable": [], "on_spike": "record"}, "", ""),
    ],
)
def test_guards_that_were_off_are_named(
    record: Callable[[Any], Diagnosis], course: Any, guards: dict[str, Any], named: str, setting: str
) -> None:
    """A run with readings of 9e10 photons was healthy, and nothing said that no guard had looked."""
    notes = [note for note in record(course(steps=120, config={"guards": guards})).notes if "GUARDS" in note.code]
    assert [note.problem.partition("not looked at: ")[2] for note in notes] == [named] * bool(named)
    assert all(f"{setting}" in note.fix for note in notes)
