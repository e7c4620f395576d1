"""The main job on the command line: simulate, train, predict; and every wrong input ends in one message."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from rich.console import Console
from xectool import engine
from xectool.cli import train
from xectool.cli.progress import ON_SCREEN, Watcher
from xectool.engine.training_run.result import TrainResult
from xectool.findings import Finding, Severity
from xectool.rootio.writer import TreeWriter

Run = Callable[..., Any]


@pytest.mark.parametrize("command", ["simulate", "train", "predict"])
def test_help_names_every_option_of_the_contract(xectool: Run, command: str) -> None:
    options = {
        "simulate": ("--events", "--seed", "--files", "--energy", "--dead", "--format", "--compression", "--json"),
        "train": ("--resume", "--run-name", "--device", "--max-steps", "--dry-run", "--set", "--json"),
        "predict": ("--output", "--report", "--batch-size", "--device", "--max-events", "--weights", "--json"),
    }
    outcome = xectool(command, "--help")
    assert outcome.code == 0
    assert [option for option in options[command] if option not in outcome.out] == []


def test_a_training_that_ran_away_is_not_just_finished(xectool: Run, files: Path) -> None:
    settings = ("training.lr=5", "training.epochs=3", "training.warmup_epochs=0", "tasks.energy.loss_fn=smooth_l1")
    plain_end = ("--set", "checkpoint.save_artifacts=false")
    words = [*plain_end, *(word for setting in settings for word in ("--set", setting))]
    run = xectool("train", files / "config.yaml", "--run-name", "ran-away", *words, "--json")
    assert (run.code, run.document["result"].get("status")) == (0, "finished"), run.document["findings"]
    said = {item["code"]: item for item in run.document["findings"] if "diagnose run" in item["fix"]}
    assert [code for code in said if code in ("XT-SPIKE-LR", "XT-NAN-LR", "XT-CONFIG-LR")], run.document["findings"]
    (found,) = said.values()
    assert found["fix"] == f"xectool diagnose run {run.document['result']['run_dir']}"
    diverged = run.document["result"]["diverged"]
    assert diverged.startswith("val/loss has run away: ")
    assert "; the best checkpoint is of epoch " in diverged
    health = xectool("diagnose", "run", run.document["result"]["run_dir"], "--json")
    assert (health.code, health.document["result"]["diverged"]) == (1, diverged)
    plain = xectool("train", files / "config.yaml", "--run-name", "ran-away-again", *words)
    assert (plain.code, "finished, but diverged: " in plain.err) == (0, True), plain.err
    assert "\nval/loss has run away: " in plain.err
    sound = xectool("train", files / "config.yaml", "--run-name", "sound", *plain_end, "--json").document
    assert not [item for item in sound["findings"] if "diagnose run" in item["fix"]], "the control"
    assert sound["result"]["diverged"] is None


def test_simulate_reports_what_it_wrote(xectool: Run, tmp_path: Path) -> None:
    document = xectool("simulate", tmp_path / "s.root", "--events", "4", "--json").document
    assert document["status"] == "ok"
    assert set(document["result"]) == {"files", "events", "seconds", "replaced", "removed"}
    assert (document["result"]["replaced"], document["result"]["removed"]) == ([], [])
    again = xectool("simulate", tmp_path / "s.root", "--events", "4")
    assert f"in place of an earlier simulation: {tmp_path}/s.root" in " ".join(again.err.split())
    with uproot.open(document["result"]["files"][0]) as file:
        assert file["tree"].num_entries == document["result"]["events"] == 4


MENDS = "xectool convert "
RESULT_KEYS = {
    "run_dir", "status", "epochs", "steps", "best_epoch", "metrics", "checkpoint_best", "checkpoint_last",
    "nonfinite_batches", "events_per_s",
}  # fmt: skip


def test_train_then_predict(xectool: Run, files: Path) -> None:
    trained = xectool("train", files / "config.yaml", "--run-name", "predicted", "--json").document
    result = trained["result"]
    assert trained["status"] == "ok"
    assert set(result) >= RESULT_KEYS
    assert (result["status"], result["epochs"], result["steps"]) == ("finished", 1, 3)
    for name in ("energy_res_68pct", "uvw_dist_68pct", "baseline_energy", "baseline_uvwFI", "val/loss"):
        assert result["metrics"][name] is not None, name
    run_dir = Path(result["run_dir"])
    written = {path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*") if path.is_file()}
    assert {
        "config.yaml", "manifest.json", "checkpoint_last.pt", "checkpoint_best.pt", "predictions.root",
        "plots/resolution_energy.pdf", "plots/resolution_energy.png", "plots/resolution_uvwFI.pdf",
        "plots/learning_curves.pdf", "plots/learning_curves.png", "plots/worst_events/worst_01.png",
        "plots/sensor_health.pdf", "plots/sensor_health.png",
    } <= written  # fmt: skip
    assert not [name for name in written if name.endswith(".part")]

    output = files / "out.root"
    document = xectool("predict", result["checkpoint_best"], files / "val.root", "-o", output, "--json").document
    assert set(document["result"]) >= {"events", "events_per_s", "output", "metrics"}
    assert document["result"]["metrics"]["energy_res_68pct"] == pytest.approx(result["metrics"]["energy_res_68pct"])
    assert document["result"]["metrics"]["baseline_energy"] == pytest.approx(result["metrics"]["baseline_energy"])
    with (
        uproot.open(output) as file,
        uproot.open(files / "val.root") as truth,
        uproot.open(run_dir / "predictions.root") as kept,
    ):
        tree = file["tree"]
        assert set(tree.keys()) == {
            "file_index", "entry", "run", "event", "pred_energy", "sigma_energy", "truth_energy", "pred_uvwFI",
            "truth_uvwFI",
        }  # fmt: skip
        assert tree["pred_uvwFI"].array(library="np").shape == (8, 3)
        assert np.array_equal(tree["event"].array(library="np"), truth["tree"]["event"].array(library="np"))
        assert np.allclose(
            tree["truth_energy"].array(library="np")[:, 0], truth["tree"]["energyTruth"].array(library="np")
        )
        assert np.allclose(
            tree["pred_energy"].array(library="np"), kept["tree"]["pred_energy"].array(library="np"), rtol=1e-5
        )


@pytest.fixture(scope="module")
def one_step(files: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checkpoint of a training of one step."""
    drawn = ["checkpoint.save_artifacts=false", f"checkpoint.save_dir={tmp_path_factory.mktemp('one')}"]
    return str(engine.train(files / "config.yaml", overrides=drawn, run_name="one", max_steps=1).checkpoint_last)


def test_predict_without_truth_writes_predictions_and_no_metrics(
    xectool: Run, files: Path, one_step: str, tmp_path: Path
) -> None:
    with uproot.open(files / "val.root") as file:
        columns = {name: file["tree"][name].array(library="np") for name in ("npho", "relative_time", "run", "event")}
    branches = {name: (values.dtype.str[1:], values.shape[1:]) for name, values in columns.items()}
    with TreeWriter(tmp_path / "real.root", branches) as writer:
        writer.extend(columns)
    output = tmp_path / "p.root"
    argv = ("predict", one_step, tmp_path / "real.root", "-o", output, "--json")
    document = xectool(*argv).document
    assert document["status"] == "ok"
    assert document["result"]["events"] == 8
    assert document["result"]["metrics"] == {}
    with uproot.open(output) as file:
        assert "truth_energy" not in file["tree"]


def test_max_events_bounds_the_prediction(xectool: Run, files: Path, one_step: str, tmp_path: Path) -> None:
    document = xectool(
        "predict", one_step, files / "val.root", "-o", tmp_path / "p.root", "--max-events", "3", "--json"
    )
    assert document.document["result"]["events"] == 3


def test_no_events_to_predict_is_a_usage_mistake(xectool: Run, files: Path, one_step: str) -> None:
    outcome = xectool("predict", one_step, files / "val.root", "--max-events", "0")
    assert outcome.code == 2
    assert "--max-events 1000" in outcome.err


def test_dry_run_checks_everything_and_writes_nothing(xectool: Run, files: Path) -> None:
    outcome = xectool("train", files / "config.yaml", "--run-name", "dry", "--dry-run", "--json")
    assert outcome.document["result"]["status"] == "dry_run"
    assert not (files / "runs" / "dry").exists()


def test_dry_run_answers_1_where_the_first_batch_would_stop_the_training(xectool: Run, files: Path) -> None:
    off = ("--set", "normalization.time_scale=1e-9")  # as times in ns: a hundred times too large
    for flag in ("--json", "--quiet"):
        outcome = xectool("train", files / "config.yaml", "--run-name", "dry", "--dry-run", *off, flag)
        assert (outcome.code, "XT-INPUT-SCALE" in outcome.out + outcome.err) == (1, True)
    assert not (files / "runs" / "dry").exists()


def damaged(files: Path, tmp_path: Path, how: str) -> Path:
    """A training file that is wrong in one way."""
    path = tmp_path / "train.root"
    data = (files / "train.root").read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "html":
        path.write_bytes(b"<html>not found</html>")
    elif how == "directory":
        path.mkdir()
    elif how != "missing":
        dtype = "i4" if how == "integer" else "f4"
        width = 4759 if how == "width" else 4760
        branches: dict[str, Any] = {
            "nphoo" if how == "branch" else "npho": (dtype, (width,)),
            "relative_time": ("f4", (4760,)),
            "energyTruth": ("f4", ()),
            "uvwTruth": ("f4", (3,)),
        }
        rows = 0 if how == "no events" else 12
        truth = np.full(rows, np.nan if how == "nan truth" else 0.05, np.float32)
        with TreeWriter(path, branches, tree="events" if how == "tree" else "tree") as writer:
            columns = {name: np.ones((rows, *shape), kind) for name, (kind, shape) in branches.items()}
            writer.extend({**columns, "energyTruth": truth})
    return path


def test_a_training_that_ends_within_its_first_epoch_has_a_rate_and_one_without_a_step_none(
    xectool: Run, files: Path
) -> None:
    def rate(*options: str) -> float | None:
        words = ("--run-name", "rate", "--set", "checkpoint.save_artifacts=false", *options, "--json")
        result = xectool("train", files / "config.yaml", *words).document["result"]
        assert result["epochs"] == 0
        return result["events_per_s"]

    assert rate("--dry-run") is None
    began = time.perf_counter()
    found = rate("--max-steps", "2")
    assert found is not None
    assert found > 2 / (time.perf_counter() - began), "slower than two events in all the command took"


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("missing", 2, "train.root"),
        ("empty", 2, "train.root"),
        ("html", 2, "train.root"),
        ("truncated", 2, "train.root"),
        ("directory", 2, "train.root"),
        ("tree", 2, "events"),
        ("branch", 2, "nphoo"),
        ("width", 2, "4759"),
        ("no events", 1, "train.root"),
        ("nan truth", 1, "energy"),
        ("constant truth", 1, "energy"),
    ],
)
def test_wrong_data_is_one_message_with_the_documented_code(
    xectool: Run, files: Path, tmp_path: Path, how: str, code: int, said: str
) -> None:
    path = damaged(files, tmp_path, how)
    argv = ["train", files / "config.yaml", "--run-name", "wrong", "--set", f"data.train_path={path}"]
    outcome = xectool(*argv)
    assert outcome.code == code, outcome.err
    assert said in outcome.err
    assert "fix:" in outcome.err
    assert "Traceback" not in outcome.err
    assert not (files / "runs" / "wrong").exists()
    assert xectool(*argv, "--json").document["status"] == "error"


def test_flipped_byte_in_a_basket_names_branch_and_entries(xectool: Run, files: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.root"
    shutil.copy(files / "train.root", path)
    data = bytearray(path.read_bytes())
    with uproot.open(path) as file:
        branch = file["tree"]["npho"]
        at = int(branch.member("fBasketSeek")[0]) + int(branch.member("fBasketBytes")[0]) // 2
    data[at : at + 64] = bytes(64)
    path.write_bytes(data)
    outcome = xectool("train", files / "config.yaml", "--run-name", "flip", "--set", f"data.train_path={path}")
    assert outcome.code == 2, outcome.err
    assert "npho" in outcome.err
    assert "entries" in outcome.err
    assert "train.root" in outcome.err


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("training.lr=abc", "training.lr"),
        ("training.batch_size=4", "data.batch_size"),
        ("model.encoder_dim=33", "model.encoder_dim"),
        ("tasks.enrgy.enabled=true", "tasks.energy"),
        ("data.prefetch_factor=2", "prefetch_factor"),
    ],
)
def test_wrong_setting_names_the_key(xectool: Run, files: Path, setting: str, key: str) -> None:
    outcome = xectool("train", files / "config.yaml", "--set", setting)
    assert outcome.code == 2
    assert key in outcome.err
    assert "Traceback" not in outcome.err


def test_validation_on_training_events_is_refused_unless_stated(xectool: Run, files: Path) -> None:
    argv = ["train", files / "config.yaml", "--run-name", "overlap", "--dry-run"]
    same = ["--set", f"data.val_path={files}/train.root"]
    outcome = xectool(*argv, *same)
    assert outcome.code == 2
    assert "data.allow_overlap" in outcome.err
    assert xectool(*argv, *same, "--set", "data.allow_overlap=true").code == 0


def test_a_flag_of_a_resume_has_an_effect_with_the_option(xectool: Run, files: Path, one_step: str) -> None:
    """It was said to have none, and the line to paste with it changed the run."""
    argv = ["train", files / "config.yaml", "--dry-run", "--set", "checkpoint.reset_epoch=true", "--json"]
    for option, told in (([], True), (["--resume", one_step], False)):
        findings = xectool(*argv, *option).document["findings"]
        assert ("CFG-45" in [found["code"] for found in findings]) is told


def test_device_that_is_not_here_is_exit_3(xectool: Run, files: Path) -> None:
    outcome = xectool("train", files / "config.yaml", "--run-name", "gpu", "--device", "cuda:9", "--dry-run")
    assert outcome.code == 3
    assert "--device cpu" in outcome.err


def test_a_device_of_another_name_leads_to_a_device_that_is_there(xectool: Run, files: Path) -> None:
    """Who asked for a GPU was led to the processor, and not told the names that there are."""
    outcome = xectool("train", files / "config.yaml", "--run-name", "gpu", "--device", "gpu", "--dry-run")
    assert outcome.code == 3
    assert "--device auto   # a GPU where there is one; or cpu, cuda, cuda:N" in outcome.err
    argv = ["--run-name", "gpu", "--device", "auto", "--dry-run"]
    assert xectool("train", files / "config.yaml", *argv).code == 0, "the line, pasted"


@pytest.mark.parametrize("name", ["../outside", "a/b", ".hidden", "sp ace"])
def test_run_name_cannot_leave_the_run_directory(xectool: Run, files: Path, name: str) -> None:
    outcome = xectool("train", files / "config.yaml", "--run-name", name)
    assert outcome.code == 2
    assert "--run-name" in outcome.err


@pytest.mark.parametrize("model", ["missing.pt", "config.yaml", "val.root"])
def test_what_is_no_model_is_one_message(xectool: Run, files: Path, model: str) -> None:
    outcome = xectool("predict", files / model, files / "val.root")
    assert outcome.code == 2
    assert "fix:" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.usefixtures("shallow")
def test_plain_lines_where_there_is_no_terminal(files: Path, warm: Any) -> None:
    command = ["train", str(files / "config.yaml"), "--run-name", "plain", "--set", "checkpoint.save_artifacts=false"]
    result = warm.run(*command)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert "\x1b[" not in result.stderr
    assert "epoch 1: train/loss" in result.stderr
    assert "events/s" in result.stderr


def test_the_table_has_a_conventional_column_only_where_something_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    for metrics, named in (({"val/loss": 0.5}, False), ({"energy_res_68pct": 1e-3, "baseline_energy": 2e-3}, True)):
        train._show(TrainResult("runs/a", "finished", metrics=metrics), "again", json=False)
        assert ("conventional" in capsys.readouterr().err) is named


@pytest.mark.parametrize(
    ("status", "title"),
    [
        ("finished", "finished, but diverged: runs/a"),
        ("early_stopped", "stopped early (no epoch was better for training.early_stop_patience) and diverged: runs/a"),
        ("max_steps", "stopped after the steps asked for and diverged: runs/a"),
    ],
)
def test_how_a_run_ended_that_diverged_is_one_sentence(
    capsys: pytest.CaptureFixture[str], status: str, title: str
) -> None:
    train._show(TrainResult("runs/a", status, diverged="val/loss has run away: 90"), "again", json=False)
    assert capsys.readouterr().err.replace("\n", " ").split("  ")[0].strip() == f"{title} val/loss has run away: 90"


def test_what_has_scrolled_away_is_told_again_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings and their long lines stood twice on one screen after a short trial."""
    found = Finding("CFG-44", Severity.WARNING, "few channels", "a.yaml:3", fix="--set model.encoder_dim=128")
    result = TrainResult("runs/a", "finished", findings=(found, replace(found, problem="none")))
    shown = Watcher(Console(file=io.StringIO()))
    shown.message("warning CFG-44: few channels")
    for lines, told in ((0, 1), (ON_SCREEN, 2)):
        for number in range(lines):
            shown.message(f"epoch {number}")
        train._show(replace(result, last_lines=tuple(shown.recent)), "again", json=False)
        err = capsys.readouterr().err
        assert (err.count("fix: --set"), "told above, with what mends it: CFG-44\n" in err) == (told, told == 1)
    train._show(replace(result, last_lines=("warning CFG-44: few channels",)), "again", json=True)
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 2


@pytest.mark.usefixtures("shallow")
def test_a_line_that_mends_the_data_is_there_before_the_first_step_and_in_sight_at_the_end(
    xectool: Run, warm: Any, files: Path, tmp_path: Path
) -> None:
    """At the end stood "the line that was printed before the first step", which a long run had scrolled away."""
    with uproot.open(files / "train.root") as file:
        rows = file["tree"].arrays(library="np")
    rows["energyTruth"] = (1e3 * rows["energyTruth"]).astype("f4")
    path = tmp_path / "mev.root"
    with TreeWriter(path, {name: (values.dtype, values.shape[1:]) for name, values in rows.items()}) as writer:
        writer.extend(rows)
    settings = (f"data.train_path={path}", "data.allow_overlap=true", "checkpoint.save_artifacts=false")
    options = ["--max-steps", "1", *(word for setting in settings for word in ("--set", setting))]
    alone = xectool("train", files / "config.yaml", "--run-name", "mev", *options).err
    ranks = warm.run("train", str(files / "config.yaml"), "--run-name", "ranks", "--nproc", "2", *options).stderr
    for screen in (alone, ranks):  # of ranks the launcher shows the end, beneath what the first one has shown
        assert (screen.count("looks like MeV"), screen.count(MENDS)) == (1, 1), f"it is on the screen still: {screen}"
        assert "told above, with what mends it: CFG-44, DAT-16\n" in screen
    checked = xectool("check-data", path).err
    assert (checked.count(MENDS), "  fix: the line after Next\n" in checked) == (1, True), checked
    document = xectool("train", files / "config.yaml", "--run-name", "doc", *options, "--json").document
    assert [item["fix"][: len(MENDS)] for item in document["findings"] if item["code"] == "DAT-16"] == [MENDS]


@pytest.mark.usefixtures("shallow")
def test_a_run_that_moved_goes_on_with_the_files_of_the_same_names(
    xectool: Run, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed ones were 'other files or entries', of which none was named."""
    words = ("--run-name", "moved", "--set", "checkpoint.save_artifacts=false")
    run = xectool("train", files / "config.yaml", *words, "--max-steps", "1", "--json").document["result"]["run_dir"]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "artifacts/moved")
    for name in ("train.root", "other.root"):
        shutil.copy(files / "train.root", tmp_path / name)
    again = (
        "train",
        "artifacts/moved/config.yaml",
        *words,
        "--set",
        "checkpoint.save_dir=artifacts",
        "--resume",
        "auto",
    )
    (found,) = xectool(*again, "--set", "data.train_path=other.root", "--json").document["findings"]
    assert found["code"] == "CFG-46"
    assert "train.root with 24 of 24 events" in found["problem"]
    assert "other.root with 24 of 24 events" in found["problem"]
    line = found["fix"].partition("   # ")[0]
    assert line.endswith(f" --set data.train_path={files / 'train.root'}:tree"), "where the files still lie"
    shutil.move(files / "train.root", files / "gone.root")
    (gone,) = xectool(*again, "--set", "data.train_path=other.root", "--json").document["findings"]
    shutil.move(files / "gone.root", files / "train.root")
    assert "data.train_path=PATH" in gone["fix"]
    assert "under the names they had" in gone["fix"]
    done = xectool(*again, "--set", "data.train_path=train.root", "--json").document
    assert (done["status"], done["result"]["steps"]) == ("ok", 3), done["findings"]
