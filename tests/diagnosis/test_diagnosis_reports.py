"""Numbers of single questions: gradient bands, memory of runs and logs, tracking databases, status."""

from __future__ import annotations

import io
import math
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from xectool import engine
from xectool.cli import boundary
from xectool.cli.app import app
from xectool.cli.diagnose.status import show_status
from xectool.config.load import config_from_overrides
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.gradient_bands import band, suggested_clip
from xectool.diagnosis.reports.gradients import gradient_report
from xectool.diagnosis.reports.memory import of_log
from xectool.diagnosis.reports.status import status_report
from xectool.diagnosis.rules.learning import _falling
from xectool.diagnosis.tracking_store import file_system, look_at
from xectool.engine.diagnose.gradient_norms import _cure
from xectool.engine.diagnose.tracking_database import _judged

Write = Callable[[Any], Path]


@pytest.mark.parametrize(
    ("norm", "clipped", "word"),
    [
        (5e-4, 0.0, "vanishing"),
        (0.005, 0.0, "no action"),
        (0.05, 0.0, "healthy"),
        (0.3, 0.0, "normal"),
        (0.65, 0.0, "moderate"),
        (0.9, 0.0, "ceiling"),
        (3.0, 0.04, "occasional"),
        (3.0, 0.3, "frequent"),
        (3.0, 1.0, "raise training.grad_clip"),
        (float("nan"), 0.0, "not finite"),
    ],
)
def test_each_band_has_its_words(norm: float, clipped: float, word: str) -> None:
    assert word in band(norm, clipped, 1.0)


def test_what_a_report_says_of_a_rate_that_is_too_high_does_not_contradict_its_cure(
    course: Any, write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a line with a lower clip it said to raise it, and the name of the next run stood among the recoveries."""
    run = course(steps=120, per_epoch=20, lr=0.3)
    rows = 1e3 ** (np.minimum(np.arange(120), 4) / 4)
    run.scale(1, rows, rows**1.5)
    for number in range(1, 121):
        run.at(number, clip_coef=0.1)
    place = write_run(run)
    assert _falling(gather(place)) == ", while the loss comes down from its jump"
    health = engine.diagnose.loss(place)
    assert "training.grad_clip" in health.recovery_changes
    assert health.recovery_changes["mlflow.run_name"], "the control"
    assert boundary.run(app, ["diagnose", "loss", str(place)]) == 1
    shown = capsys.readouterr().err
    assert "clipping most steps" in shown
    assert "raise training.grad_clip" not in shown
    assert "recovery: training.grad_clip" in shown
    assert "recovery: mlflow.run_name" not in shown
    assert boundary.run(app, ["diagnose", "run", str(place)]) == 1
    follow = [cause.follows for cause in engine.diagnose.run(place).causes]
    assert ("then what follows from them" in capsys.readouterr().err) == any(follow)


def test_a_loss_without_a_jump_falls(course: Any, write_run: Write) -> None:
    assert _falling(gather(write_run(course(steps=120)))) == ", while the loss falls"


@given(st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 1e3))
def test_the_bands_leave_no_gap_and_scale_with_the_clip(norm: float, clipped: float, clip: float) -> None:
    assert band(norm, clipped, clip)
    if clip > 0:
        assert band(norm * clip, clipped, clip) == band(norm, clipped, 1.0) or norm * clip in (0.0, float("inf"))


def test_the_suggested_clip_is_three_times_the_quantile_and_no_spike() -> None:
    assert suggested_clip(np.linspace(0, 1, 10_001)) == pytest.approx(2.9, abs=0.1)
    assert suggested_clip(np.array([np.nan])) == 1.0
    assert suggested_clip(np.array([4.0] * 16 + [150.0] * 4)) == 40.0, "four bad events in twenty steps"
    assert suggested_clip(np.array([0.0] * 16 + [1.0] * 4)) == 3.0


def test_dead_and_exploding_blocks_are_told_from_sound_ones() -> None:
    rng = np.random.default_rng(1)
    norms = rng.lognormal(0, 0.3, 100)
    blocks = {
        "backbone.inner": norms,
        "heads.energy": np.zeros(100),
        "backbone.outer": 1.05 ** np.arange(100) * norms,
        "heads.angle": np.where(np.arange(100) == 95, 300.0, norms),  # one event, though the quantile grew as much
        "backbone.face": np.where(np.arange(100) < 30, 1.0, 1e-6) * norms,  # killed by a rate in mid-run
        "heads.timing": 0.95 ** np.arange(100) * norms,  # a task that is learned
        "backbone.hex": 1e-5 * 1.1 ** np.arange(100) * norms,  # out of next to nothing, to a tenth of the others
    }
    report = gradient_report(norms, np.ones(100), blocks, ("backbone.inner", "heads.uvwFI"), 1.0)
    assert {row.block: row.state for row in report.blocks} == {
        "backbone.inner": "ok",
        "heads.energy": "dead",
        "backbone.outer": "exploding",
        "heads.uvwFI": "dead",
        "heads.angle": "ok",
        "backbone.face": "vanished",
        "heads.timing": "ok",
        "backbone.hex": "ok",
    }
    assert report.bad
    assert not gradient_report(norms, np.ones(100), {}, (), 1.0).bad
    assert gradient_report(np.where(np.arange(100) == 50, np.nan, norms), np.ones(100), {}, (), 1.0).bad


@pytest.mark.parametrize(
    ("weight", "values", "line"),
    [
        (0.0, 0.0, "xectool train 'my c.yaml' --set data.batch_size=8 --set tasks.energy.weight=1.0"),
        (1.0, 0.0, "xectool explain XT-UNTRAINED-HEAD"),
        (1.0, np.nan, "xectool diagnose nan-batch 'my c.yaml' --set data.batch_size=8"),
    ],
)
def test_a_bad_gradient_of_a_configuration_has_a_line_that_fits(weight: float, values: float, line: str) -> None:
    config = config_from_overrides(
        ["tasks.angle.enabled=true", "tasks.energy.enabled=true", f"tasks.energy.weight={weight}"]
    )
    report = gradient_report(np.ones(9) + values, np.ones(9), {"heads.energy": np.zeros(9)}, (), 1.0)
    assert _cure(report, config, Path("my c.yaml"), ["data.batch_size=8"]) == line


@pytest.mark.parametrize(("lr", "lower"), [(0.5, 0.0003), (0.01, 0.001)])
def test_a_rate_that_kills_blocks_is_replaced_by_one_that_can_be(lr: float, lower: float) -> None:
    config = config_from_overrides(["tasks.energy.enabled=true", f"training.lr={lr}"])
    norms = np.ones(20)
    report = gradient_report(norms, norms, {"backbone": np.where(np.arange(20) < 5, 1.0, 1e-9)}, (), 1.0)
    assert _cure(report, config, Path("c.yaml"), []) == f"xectool train c.yaml --set training.lr={lower:g}"


ALLOCATOR = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.12 GiB is "
    "free. "
    "{}Of the allocated memory {} GiB is allocated by PyTorch, and {} GiB is reserved by PyTorch but unallocated."
)
LOGS = {
    "XT-OOM-GPU": "torch.OutOfMemoryError: " + ALLOCATOR.format("", 37.05, 0.2),
    "XT-OOM-FRAGMENTATION": ALLOCATOR.format("", 27.05, 10.2),
    "XT-OOM-FOREIGN": ALLOCATOR.format("Process 4711 has 30.20 GiB memory in use. ", 6.05, 0.2),
    "XT-OOM-HOST": "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some step tasks have been killed.",
    "XT-SHM": "DataLoader worker (pid 5) is killed by signal: Bus error. It is possible that dataloader's workers are "
    "out of shared memory.",
}


@pytest.mark.parametrize("code", LOGS)
def test_a_log_says_which_memory_ran_out(tmp_path: Path, code: str) -> None:
    path = tmp_path / "train.log"
    path.write_text("epoch 1 loss 0.5\n" * 1000 + LOGS[code] + "\n")
    report = of_log(path, {"data": {"batch_size": 512}})
    assert report.code == code
    assert report.where.endswith(":1001")
    assert "xectool train CONFIG --resume auto" in report.next
    if code == "XT-OOM-GPU":
        assert report.new_config == {"data.batch_size": "256", "training.grad_accum_steps": "2"}
        assert report.table["total capacity"] == pytest.approx(39.39 * 2**30)


def test_the_log_of_an_unknown_program_is_answered_by_no_network_of_ours(tmp_path: Path) -> None:
    """Whoever ran out of memory elsewhere was told to halve 256, the default of this program."""
    path = tmp_path / "train.log"
    path.write_text(LOGS["XT-OOM-GPU"] + "\n")
    report = of_log(path, {})
    assert (report.code, report.new_config) == ("XT-OOM-GPU", {})
    assert report.next == "xectool estimate-memory CONFIG --gpu 42.3GB --max-batch"
    assert [rung.settings for rung in report.ladder if "batch" in rung.title or "accum" in rung.title] == [(), ()]


def test_a_log_beside_the_record_of_a_run_is_answered_with_its_settings(course: Any, write_run: Write) -> None:
    run = write_run(course(steps=5))
    (run / "config.yaml").write_text("data: {batch_size: 64}\n")
    (run / "slurm-7.out").write_text(LOGS["XT-OOM-GPU"] + "\n")
    found = engine.diagnose.memory(run / "slurm-7.out")
    assert found.new_config == {"data.batch_size": "32", "training.grad_accum_steps": "2"}


def test_a_log_says_who_holds_the_memory_and_not_that_a_batch_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(LOGS["XT-OOM-FOREIGN"] + "\n")
    found = of_log(path, {})
    assert (found.ladder, found.next.split()[:2]) == ((), ["nvidia-smi", "--query-compute-apps=pid,used_memory,name"])
    (cause,) = engine.diagnose.log([path]).causes
    assert "another process" in cause.problem
    assert cause.root_cause.startswith("another job, a notebook")
    assert cause.explain == "xectool explain XT-OOM-FOREIGN"
    assert not [line for line in cause.fix if "batch" in line or "amp" in line or "checkpointing" in line]


@pytest.mark.parametrize("code", ["XT-OOM-GPU", "XT-OOM-FRAGMENTATION"])
def test_the_first_line_to_paste_names_no_batch_of_ours(tmp_path: Path, code: str) -> None:
    (tmp_path / "train.log").write_text(LOGS[code] + "\n")
    (cause,) = engine.diagnose.log([tmp_path / "train.log"]).causes
    first = {"XT-OOM-GPU": "xectool estimate-memory CONFIG --max-batch", "XT-OOM-FRAGMENTATION": "export PYTORCH_ALLOC"}
    assert cause.fix[0].startswith(first[code])
    assert not [line for line in cause.fix if "batch_size=" in line]


def test_a_log_without_memory_in_it_gives_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("loss 0.1\nKeyError: 'x'\n")
    assert of_log(tmp_path / "l", {}).code == ""


HOLD = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1])
database.execute("create table if not exists t (x)")
database.commit()
database.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
time.sleep(60)
"""


def test_the_holder_of_a_locked_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        waited_s = list[float]()
        while len(waited_s) < 3 and min(waited_s, default=5.0) >= 5:  # a busy machine may stand still once
            began = time.monotonic()
            state = look_at(path)
            waited_s.append(time.monotonic() - began)
        holder.kill()
    assert state.holder is not None
    assert state.holder.pid == holder.pid
    assert str(path) in state.holder.cmdline
    assert state.locked
    assert min(waited_s) < 5
    after = look_at(path)
    assert (after.holder, after.locked, after.sound) == (None, False, True)


def test_a_damaged_database_and_a_second_one_are_seen(tmp_path: Path) -> None:
    path, other = tmp_path / "mlflow.db", tmp_path / "mlruns.db"
    for name in (path, other):
        with sqlite3.connect(name) as database:
            database.execute("create table t (x)")
            database.executemany("insert into t values (?)", [("a" * 500,)] * 200)
        database.close()
    content = bytearray(path.read_bytes())
    content[4096:8192] = b"\xff" * 4096
    path.write_bytes(content)
    state = look_at(path)
    assert state.sound is False
    assert state.others == (str(other),)
    assert look_at(other).sound
    assert look_at(other).journal_mode == "delete"


def test_the_file_system_is_that_of_the_longest_mount() -> None:
    assert file_system(Path("/proc/self")) == "proc"


def test_status_of_a_finished_run(course: Any, write_run: Write) -> None:
    report = status_report(write_run(course(steps=60)))
    assert (report.state, report.bad, report.next) == ("finished", False, "")
    assert report.ranks[0].step == 60
    assert report.ranks[0].steps_per_s == pytest.approx(10, rel=0.01)
    assert report.ranks[0].data_wait_share == pytest.approx(0.01)


def test_status_of_a_killed_run_is_bad(course: Any, write_run: Write) -> None:
    report = status_report(write_run(course(steps=5, end="killed")))
    assert (report.state, report.bad) == ("killed", True)
    screen = Console(width=120, record=True, file=io.StringIO())
    show_status(screen, report)
    assert "Why      its process is gone and its record has no last word" in screen.export_text(), (
        "it said: run is killed"
    )


def test_an_interrupted_run_is_no_fault_and_goes_on(course: Any, write_run: Write) -> None:
    """Ctrl-C was answered by "nothing to do"."""
    run = write_run(course(steps=30, end="interrupted"))
    found = engine.diagnose.run(run)
    assert (found.causes, found.state) == ((), "interrupted")
    assert found.next.startswith("xectool train ")
    assert "--resume" in found.next
    assert status_report(run).next == f"xectool diagnose run {run}"


def test_clipping_that_does_no_harm_has_no_line_that_changes_it(course: Any, write_run: Write) -> None:
    run = course()
    for step in range(1, run.steps + 1):
        run.at(step, clip_coef=0.5)
    found = engine.diagnose.run(write_run(run))
    assert [(note.code, note.fix) for note in found.notes] == [("XT-GRAD-CLIP", "")]
    assert found.next == ""


def test_a_long_average_is_the_next_thing_to_mend(course: Any, write_run: Write) -> None:
    """The verdict said "see the note", and `Next` that there is nothing to do."""
    found = engine.diagnose.run(write_run(course(steps=160, floor=0.1, config={"training": {"ema_decay": 0.999}})))
    assert "averaged weights" in found.verdict
    assert found.next.endswith("--set training.ema_decay=auto")


def test_what_a_status_does_not_know_is_a_dash(course: Any, write_run: Write) -> None:
    report = status_report(write_run(course(steps=0, end="killed")))
    assert not math.isfinite(report.ranks[0].steps_per_s)
    screen = Console(width=120, record=True, file=io.StringIO())
    show_status(screen, report)
    shown = screen.export_text()
    assert "nan" not in shown
    assert " - " in shown


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the line to paste is for the sqlite3 program")
def test_the_backup_line_works_for_any_path(tmp_path: Path) -> None:
    path = tmp_path / """some 'one's "own" back\\slash""" / "mlflow.db"
    path.parent.mkdir()
    with sqlite3.connect(path) as database:
        database.execute("create table t (x)")
    database.close()
    *_, line = _judged(replace(look_at(path), file_system="nfs4"), ())
    subprocess.run(["bash", "-c", line], check=True, timeout=300)
    copy = path.with_name("mlflow.db.backup")
    assert look_at(copy).sound
    with sqlite3.connect(copy) as database:
        assert database.execute("select name from sqlite_master").fetchall() == [("t",)]
    database.close()
