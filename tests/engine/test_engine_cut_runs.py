"""What is said of a run that ``--max-steps`` ended before its first epoch was finished."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from xectool import engine
from xectool.cli import boundary
from xectool.cli.app import app
from xectool.engine import runs
from xectool.runlog.records import EpochRecord, StepRecord
from xectool.runlog.writer import RunWriter


def make(run: Path, status: str, epochs: int = 0) -> Path:
    with RunWriter(run) as writer:
        (run / "config.yaml").write_text("kind: regressor\n")
        now = time.time(), time.monotonic()
        for step in range(1, 4):
            writer.step(StepRecord(max(1, epochs), step, *now, 1.0, num_events=8))
        for epoch in range(1, epochs + 1):
            writer.epoch(EpochRecord(epoch, 3, *now, {"val/loss": 0.5}))
        writer.event("finished", status, step=3, epoch=1, status=status, metrics={"val/loss": 0.88552})
    return run


def test_a_run_that_finished_no_epoch_shows_what_was_measured_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "cut", "max_steps")
    make(tmp_path / "whole", "finished", epochs=1)
    rows = {row.name: row for row in runs.list_runs(tmp_path).runs}
    assert (rows["cut"].status, rows["cut"].ended_by) == ("finished", "ended by --max-steps")
    assert (rows["cut"].loss_at_end, rows["cut"].best_epoch) == (0.88552, 0)
    assert (rows["whole"].best, rows["whole"].ended_by) == (0.5, "")
    assert boundary.run(app, ["runs", "--root", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert all(words in shown for words in ("0.88552", "at its end", "--max-steps"))
    compared = runs.compare(tmp_path / "cut", tmp_path / "whole")
    assert {item.key: item.values for item in compared.metrics}["val/loss"] == (0.88552, 0.5)
    told = f"{tmp_path}/cut finished no epoch: its metrics were measured at its end, after step 3"
    assert told in compared.notes


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("max_steps", "(finished, ended by --max-steps)"),
        ("early_stopped", "(finished, stopped early)"),
        ("finished", "(finished)"),
    ],
)
def test_a_reader_is_told_what_ended_a_finished_run(tmp_path: Path, status: str, said: str) -> None:
    run = make(tmp_path / "run", status, epochs=1)
    health = engine.diagnose.run(run)
    assert said in health.verdict
    assert health.state == "finished"
