"""The score of the diagnosis on faults that no other test trains; ``make bench-diagnosis`` runs all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.usefixtures("shallow")
def test_faults_put_into_real_trainings_are_named_first_and_sound_runs_are_silent(tmp_path: Path) -> None:
    outcomes, seed = tmp_path / "outcomes.json", "71"
    command = [sys.executable, "-m", "benchmarks.diagnosis", "--reduced", "--seeds", seed, "--json", str(outcomes)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(outcomes.read_text())
    assert len(found) == 6
    assert [outcome["bisected"] for outcome in found if outcome["bisected"] is not None] == [True]
    assert [outcome["case"] for outcome in found if not outcome["right"]] == [], done.stdout
    assert [line for outcome in found for line in outcome["refused"]] == [], "lines to paste that a dry run refuses"
    assert sum(outcome["lines"] for outcome in found)
