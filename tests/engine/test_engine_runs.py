import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from xectool import engine
from xectool.cli import boundary
from xectool.cli.app import app
from xectool.engine import runs
from xectool.errors import ConfigError, UsageError
from xectool.runlog.records import EpochRecord, StepRecord
from xectool.runlog.writer import RunWriter


def make_run(run_dir: Path, losses: list[float], *, lr: float = 1e-3, end: str = "finished") -> Path:
    with RunWriter(run_dir) as writer:
        config = {"kind": "regressor", "training": {"lr": lr, "seed": 42}, "data": {"train_path": "a.root"}}
        (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
        for epoch, loss in enumerate(losses, 1):
            now = time.time(), time.monotonic()
            writer.step(StepRecord(epoch, epoch, *now, loss))
            writer.epoch(EpochRecord(epoch, epoch, *now, {"val/loss": loss, "train/loss": loss / 2}))
        writer.event(end)
    return run_dir


def test_runs_are_listed_with_status_and_best_loss(tmp_path):
    make_run(tmp_path / "one", [3.0, 1.0, math.nan, 2.0])
    make_run(tmp_path / "scan" / "two", [], end="failed")
    (tmp_path / "no run").mkdir()
    table = {row.name: row for row in runs.list_runs(tmp_path).runs}
    assert table.keys() == {"one", "two"}
    one = table["one"]
    assert (one.kind, one.status, one.epochs, one.steps) == ("regressor", "finished", 4, 4)
    assert (one.best, one.best_epoch) == (1.0, 2)
    assert (table["two"].status, math.isnan(table["two"].best)) == ("failed", True)


def test_run_directory_itself_is_listed(tmp_path):
    make_run(tmp_path / "one", [1.0])
    assert [row.name for row in runs.list_runs(tmp_path / "one").runs] == ["one"]


def test_epoch_that_is_not_over_is_not_counted(tmp_path):
    run_dir = make_run(tmp_path / "one", [1.0])
    with RunWriter(run_dir) as writer:
        writer.resume(1, 1)
        writer.step(StepRecord(2, 2, time.time(), time.monotonic(), 1.0))
    (row,) = runs.list_runs(tmp_path).runs
    assert (row.epochs, row.steps) == (1, 2)


BOMB = "a0: &a0 [x]\n" + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 11))


@pytest.mark.parametrize(
    "content",
    ["a: [1", "- 1", "", "\xff\xfe", "a: " + "[" * 9000, "a: 2001-99-99", "a: " + "9" * 6000, BOMB],
    ids=range(8),
)
def test_unreadable_configuration_is_one_message_and_hides_no_run(tmp_path, content):
    make_run(tmp_path / "good", [1.0])
    bad = make_run(tmp_path / "bad", [1.0])
    (bad / "config.yaml").write_bytes(content.encode("latin-1"))
    assert {row.name: row.kind for row in runs.list_runs(tmp_path).runs} == {"good": "regressor", "bad": ""}
    with pytest.raises(UsageError, match="cannot be read"):
        runs.compare(tmp_path / "good", bad)


@pytest.mark.parametrize(
    "content",
    [
        '{"attempts": 5}',
        '{"attempts": [3, {"versions": [1], "machine": 3, "data_files": [7], "extra": "x"}]}',
        "[" * 90000,
    ],
    ids=range(3),
)
def test_a_manifest_of_another_shape_costs_only_what_it_would_have_said(tmp_path, content):
    run_dir = make_run(tmp_path / "odd", [1.0])
    (run_dir / "manifest.json").write_text(content)
    engine.diagnose.run(run_dir)
    engine.diagnose.status(run_dir)
    engine.watch(run_dir)
    engine.report(run_dir, output=tmp_path / "page.html")


def test_a_section_that_is_none_is_named(tmp_path):
    run_dir = make_run(tmp_path / "flat", [1.0])
    (run_dir / "config.yaml").write_text("kind: regressor\ntraining: 5\n")
    with pytest.raises(UsageError, match="training is no section"):
        runs.compare(run_dir, run_dir)
    engine.diagnose.loss(run_dir)


@pytest.mark.parametrize("content", ["tasks: {energy: 3}", "data: {fiducial: 7}", "tasks: {energy: [1]}"])
def test_what_stands_in_the_place_of_a_task_says_nothing(tmp_path, content):
    run_dir = make_run(tmp_path / "odd", [1.0])
    (run_dir / "config.yaml").write_text(f"kind: regressor\n{content}\n")
    runs.compare(run_dir, run_dir)


def test_record_of_a_newer_version_hides_no_run(tmp_path):
    make_run(tmp_path / "good", [1.0])
    record = next(make_run(tmp_path / "newer", [1.0]).glob("rec/*/events.jsonl"))
    record.write_text(record.read_text().replace('"format":2', '"format":99', 1))
    assert {row.name: row.status for row in runs.list_runs(tmp_path).runs} == {
        "good": "finished",
        "newer": "unreadable",
    }


def test_run_without_a_record_line_has_no_start(tmp_path):
    record = next(make_run(tmp_path / "one", []).glob("rec/*/events.jsonl"))
    record.write_bytes(b"")
    (row,) = runs.list_runs(tmp_path).runs
    assert (row.status, row.started) == ("killed", "")


def test_absent_directory_names_the_option(tmp_path):
    with pytest.raises(UsageError, match="--root"):
        runs.list_runs(tmp_path / "absent")


def test_sync_of_a_run_without_tracking_says_how_to_track(tmp_path):
    with pytest.raises(UsageError, match=r"mlflow\.enabled=true"):
        runs.sync(make_run(tmp_path / "a", [1.0]))


def test_sync_into_a_directory_of_files_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="sqlite:///"):
        runs.sync(make_run(tmp_path / "a", [1.0]), "file:///somewhere/mlruns")


def test_sync_of_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="xectool runs"):
        runs.sync(tmp_path)


def test_runs_are_listed_without_torch_or_mlflow(tmp_path):
    code = (
        "import sys; from xectool.engine import runs; runs.list_runs(sys.argv[1]);"
        "sys.exit(bool({'torch', 'mlflow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code, make_run(tmp_path / "a", [1.0])], check=False).returncode == 0
    shutil.rmtree(tmp_path / "a")


def _spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100:400] = b"\xaa" * len(content[100:400])
    path.write_bytes(content)


def _steps(run: Path) -> list[Path]:
    found = sorted((run / "rec" / "a0001").glob("rank0000.steps-*"))
    _spoil(found[0])
    return found


def _page(run: Path) -> list[Path]:
    _spoil(run / "rec" / "a0001" / "rank0000.status")
    return [run / "rec" / "a0001" / "rank0000.status"]


def _end(run: Path) -> list[Path]:
    path = run / "rec" / "a0001" / "events.jsonl"
    path.write_bytes(path.read_bytes()[:300])
    return [path]


def _manifest(run: Path) -> list[Path]:
    (run / "manifest.json").write_text("{")
    return [run / "manifest.json"]


@pytest.mark.parametrize(
    ("damage", "verdict"),
    [
        ((_steps,), "no step of its record can be read"),
        ((_page,), "healthy"),
        ((_manifest,), "healthy"),
        ((_end,), "XT-RECORD-DAMAGED: its record is damaged: how the run ended cannot be read"),
        (
            (_end, _page, _steps, _manifest),
            "XT-RECORD-DAMAGED: its record is damaged: how the run ended cannot be read",
        ),
    ],
)
def test_a_damaged_record_is_told_with_its_files_and_no_failure_made_of_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    damage: tuple[Callable[[Path], list[Path]], ...],
    verdict: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # no cell of the table is broken
    run = tmp_path / "one"
    program = f"from test_engine_runs import *; make_run(Path({str(run)!r}), [3.0, 2.0, 1.0])"
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, check=True)  # a writer that has ended
    assert not runs.list_runs(tmp_path).runs[0].damage, "the control"
    assert engine.diagnose.run(run).verdict.startswith("healthy"), "the control"
    spoilt = [path for spoil in damage for path in spoil(run)]
    (row,) = runs.list_runs(tmp_path).runs
    assert sorted(text.partition(" is ")[0] for text in row.damage) == sorted(map(str, spoilt))
    health = engine.diagnose.run(run)
    assert verdict in health.verdict
    (cause,) = (found for found in (*health.causes, *health.notes) if found.code == "XT-RECORD-DAMAGED")
    assert all(any(str(path) in line for line in cause.evidence) for path in spoilt)
    assert boundary.run(app, ["runs", "--root", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "record damaged" in told
    assert f"xectool diagnose run {run}" in told
    assert "codec" not in told


def test_a_run_whose_record_is_cut_has_ended_and_is_not_said_to_have_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had finished, and `diagnose status` and `runs` called it failed."""
    run = tmp_path / "one"
    program = f"from test_engine_runs import *; make_run(Path({str(run)!r}), [3.0, 2.0, 1.0])"
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, check=True)
    assert engine.diagnose.status(run).state == "finished", "the control"
    (lines,) = _end(run)
    assert boundary.run(app, ["diagnose", "status", str(run)]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "ended, how is not on record: step" in told
    assert f"{lines} is cut: it ends inside a line, after 300 bytes" in told
    assert f"xectool diagnose run {run}" in told
    assert boundary.run(app, ["runs", "--root", str(tmp_path)]) == 0
    assert boundary.run(app, ["diagnose", "hang", str(run)]) == 1
    shown = capsys.readouterr().err
    assert "the run has ended: ended" not in shown
    assert "failed" not in told + shown
