"""The score of damaged files: every row has a case, and what is not found or not located counts as a miss."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.damage.catalogue import Question, case, load_cases
from benchmarks.damage.command import Answer
from benchmarks.damage.score import Outcome, compare, totals

ROOT = Path(__file__).parents[2]
NOT_SEEN = {1, 7, 20, 21}  # K01 has a code of its own; tables, lineage and completeness are facts, and no faults


def test_every_row_has_a_damaged_variant_and_good_ones_are_among_them() -> None:
    cases = load_cases().values()
    codes = {code for case in cases if case.group != "exports" for code in case.codes}
    assert {f"DAT-{row:02d}" for row in range(1, 27)} <= codes
    assert {f"K{row:02d}" for row in range(1, 22) if row not in NOT_SEEN} | {"XT-CKPT-CORRUPT", "CFG-46"} <= codes
    for group, fewest in (("data", 10), ("checkpoints", 10), ("exports", 20)):
        assert sum(not case.codes for case in cases if case.group == group) >= fewest, group


def outcome(name: str, question: Question, *findings: tuple[str, str, str], code: int = 1, **changed: Any) -> Outcome:
    told = [
        {"code": row, "severity": severity, "where": where, "problem": "", "evidence": []}
        for row, severity, where in findings
    ]
    document = {"status": "ok" if code == 0 else "bad", "result": {"kind": "mae"}, "findings": told}
    return compare(name, question, Answer(**{"code": code, "document": document, "seconds": 1.0, **changed}))


def test_a_place_that_is_not_told_is_a_miss_and_an_alarm_on_a_good_file_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cases: dict[str, Any] = {}
    monkeypatch.setattr("benchmarks.damage.catalogue.CASES", cases)
    monkeypatch.setattr("benchmarks.damage.score.CASES", cases)
    asked = Question((), ("a.root", "entry 7"), absent=(tmp_path / "ran",))
    case("fault", "data", "DAT-07")(lambda lab: asked)
    case("good", "data")(lambda lab: asked)
    found = ("DAT-07", "error", "a.root entry 7")
    assert outcome("fault", asked, found).right
    assert outcome("fault", asked, ("DAT-14", "warning", ""), found).right
    assert not outcome("fault", asked, ("DAT-14", "warning", ""), found).first
    assert outcome("fault", asked, ("DAT-07", "error", "a.root entry 70")).missing == ("entry 7",)
    assert not outcome("fault", asked, ("DAT-14", "error", "a.root entry 7")).right
    assert not outcome("fault", asked, found, trouble="a traceback").right
    assert outcome("good", asked, ("DAT-07", "info", ""), code=0).right
    assert not outcome("good", asked, ("DAT-07", "warning", ""), code=0).right
    assert not outcome("good", asked, code=1).right
    assert not outcome("good", Question((), result={"kind": "regressor"}), code=0).right
    alarmed = [outcome("good", asked, code=0), outcome("good", asked, found, code=1)]
    assert totals(alarmed)[-1] == "good variants: 1 of 2 alarmed"
    (tmp_path / "ran").touch()
    assert outcome("fault", asked, found).trouble == f"{tmp_path / 'ran'} is there"


@pytest.mark.slow
def test_flipped_bits_are_found_and_a_good_file_is_not_alarmed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.damage", "data", "--only", "zstd", "--seed", "71"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "faults found: 2 of 2; told first: 2; located: 2" in done.stdout
    assert "good variants: none of 1 alarmed" in done.stdout
