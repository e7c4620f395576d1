"""The score of runs in trouble, on one that hangs and one that only looks so; ``make bench-live`` has all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.live.lab import Lab
from benchmarks.live.score import GROUPS, Answer, Scenario, judged, load_scenarios, table

ROOT = Path(__file__).parents[2]


def test_every_group_has_its_scenarios() -> None:
    counts = Counter(found.group for found in load_scenarios())
    assert counts.keys() == set(GROUPS)
    assert counts["hangs"] >= 16


def test_what_goes_wrong_on_the_way_is_no_right_answer(tmp_path: Path) -> None:
    def fails(_: Lab) -> Answer:
        raise RuntimeError("no step 8")

    one = Scenario("a run that never begins", "hangs", "STUCK", fails)
    answer = judged(one, Lab(tmp_path / "lab", 1, one.name))
    assert not answer.right
    assert "no step 8" in table("hangs", [(one, answer)])[2]
    assert table("hangs", [(one, answer)])[-2] == "hangs: 0 of 1 right"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["interpreter held in C", "trainer stopped"])
def test_a_run_that_is_brought_to_hang_is_judged_and_nothing_of_it_is_left(name: str) -> None:
    command = [sys.executable, "-m", "benchmarks.live", "hangs", "--seed", "3", "--only", name]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^\| {name} .* \| yes \|$", done.stdout, re.MULTILINE)
    assert "hangs: 1 of 1 right" in done.stdout
