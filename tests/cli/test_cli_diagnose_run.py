"""`diagnose run|loss|gradients|memory|mlflow|status` as a user calls them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xectool.runlog.records import StepRecord
from xectool.runlog.writer import RunWriter

Run = Callable[..., Any]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A directory with a sound run and one with a rate of nothing."""
    for name, lr in (("sound", 1e-3), ("still", 1e-12)):
        with RunWriter(tmp_path / name) as writer:
            for step in range(1, 61):
                loss = 1.0 / step + 0.1
                blocks = {"backbone.inner": loss}
                writer.step(StepRecord(1, step, step, step, loss, {"energy": loss}, lr, loss, step_s=0.1,
                                       block_norms=blocks))  # fmt: skip
            writer.event("finished", "finished", step=60)
    return tmp_path


def test_run_answers_healthy_with_0_and_a_fault_with_1(xectool: Run, runs: Path) -> None:
    sound, still = (
        xectool("diagnose", "run", runs / "sound", "--json"),
        xectool("diagnose", "run", runs / "still", "--json"),
    )
    assert (sound.code, sound.document["status"], sound.document["command"]) == (0, "ok", "diagnose run")
    assert sound.document["result"]["causes"] == []
    assert (still.code, still.document["status"]) == (1, "bad")
    result = still.document["result"]
    assert {"verdict", "causes", "rules_run", "rules_skipped"} <= set(result)
    assert {"code", "confidence", "evidence", "fix"} <= set(result["causes"][0])
    assert result["causes"][0]["code"] == "XT-NO-LEARNING"
    assert still.document["findings"][0]["code"] == "XT-NO-LEARNING"


def test_the_text_form_ends_with_the_box(xectool: Run, runs: Path) -> None:
    outcome = xectool("diagnose", "run", runs / "still")
    words = [line.split()[0] for line in outcome.err.splitlines() if line and line[0].isalpha()]
    assert [word for word in words if word in ("Verdict", "Why", "Next")] == ["Verdict", "Why", "Next"]
    assert "--set training.lr=" in outcome.err


def test_loss_gradients_memory_and_status_have_the_keys_of_the_contract(xectool: Run, runs: Path) -> None:
    keys = {
        "loss": {"verdict", "causes", "recovery_config"},
        "gradients": {"blocks", "grad_norm_max", "suggested_grad_clip"},
        "memory": {"verdict", "table", "new_config"},
        "status": {"ranks", "workers"},
    }
    for command, expected in keys.items():
        outcome = xectool("diagnose", command, runs / "sound", "--json")
        assert outcome.code == 0, (command, outcome.err)
        assert expected <= set(outcome.document["result"]), command
        assert "Verdict" in xectool("diagnose", command, runs / "sound").err


def test_a_block_that_never_had_a_gradient_is_dead_and_has_no_norm(xectool: Run, tmp_path: Path) -> None:
    with RunWriter(tmp_path / "frozen") as writer:
        writer.event("run_start", blocks=["backbone", "heads.energy"], tasks=["energy"])
        for step in range(1, 41):
            norms = {"heads.energy": 1.0}
            writer.step(StepRecord(1, step, step, step, 1.0, {"energy": 1.0}, 1e-3, 1.0, block_norms=norms))
    shown = xectool("diagnose", "gradients", tmp_path / "frozen").err
    assert ["backbone", "-", "-", "-", "-", "dead"] in [line.split() for line in shown.splitlines()]
    assert "nan" not in shown


def test_gradients_of_a_configuration_are_taken_in_memory(xectool: Run, files: Path) -> None:
    before = sorted(files.rglob("*"))
    outcome = xectool("diagnose", "gradients", files / "config.yaml", "--steps", "2", "--json")
    result = outcome.document["result"]
    assert result["steps"] == 2
    assert len(result["blocks"]) > 3
    assert any(row["block"].startswith("heads.") for row in result["blocks"])
    assert result["suggested_grad_clip"] > 0
    assert sorted(files.rglob("*")) == before


HOLD = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1])
database.execute("begin exclusive")
print("held", flush=True)
time.sleep(60)
"""


def test_mlflow_names_the_holder_and_never_advises_harm(xectool: Run, tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as database:
        for table in ("experiments", "runs", "metrics", "params"):
            database.execute(f"create table {table} (x)")
    database.close()
    sound = xectool("diagnose", "mlflow", f"sqlite:///{path}", "--root", tmp_path, "--json")
    assert (sound.code, sound.document["result"]["ok"]) == (0, True)
    assert {"holder", "journal_mode", "ok"} <= set(sound.document["result"])
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        locked = xectool("diagnose", "mlflow", path, "--root", tmp_path, "--json")
        text = xectool("diagnose", "mlflow", path, "--root", tmp_path).err
        holder.kill()
    assert locked.code == 1
    assert locked.document["result"]["holder"]["pid"] == holder.pid
    assert "do not delete" in text
    assert "pkill" not in text
    assert "rm " not in text


def test_a_directory_that_is_no_run_is_a_usage_mistake(xectool: Run, tmp_path: Path) -> None:
    for command in ("run", "loss", "gradients", "memory", "status"):
        outcome = xectool("diagnose", command, tmp_path, "--json")
        assert (outcome.code, outcome.document["status"]) == (2, "error"), command


def test_a_run_that_is_not_there_is_answered_with_lines_that_can_be_pasted(xectool: Run, runs: Path) -> None:
    """The line of `diagnose memory` was in words: `xectool runs lists the runs`."""
    for command in ("run", "loss", "memory", "status"):
        (found,) = xectool("diagnose", command, runs / "nothing-near", "--json").document["findings"]
        assert found["fix"] == "xectool runs   # lists them; those elsewhere: --root DIR", command
        (found,) = xectool("diagnose", command, runs / "sounds", "--json").document["findings"]
        assert found["fix"] == f"xectool diagnose {command} {runs / 'sound'} --json"
        assert found["problem"].endswith(", did you mean 'sound'?")
