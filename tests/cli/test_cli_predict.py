"""Predicting: which weights, which files, and what is never done to a user's data."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.checkpoint import store
from xectool.errors import CheckpointError, UsageError, XecError
from xectool.rootio.writer import TreeWriter

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def trained(files: Path) -> Any:
    """A run with learned task weights that stops at its first epoch that is no better than the best."""
    ruin = ["training.epochs=9", "training.lr=0.03", "training.grad_clip=0", "training.ema_decay=0.5"]
    ruin += ["training.early_stop_patience=1"]
    return engine.train(
        files / "config.yaml",
        run_name="learned",
        overrides=[*ruin, "loss_balance=auto", "checkpoint.save_artifacts=false"],
    )


def test_prediction_never_replaces_its_own_input(files: Path, trained: Any, tmp_path: Path) -> None:
    data = tmp_path / "data.root"
    shutil.copy(files / "val.root", data)
    (tmp_path / "link.root").symlink_to(data)
    before = data.read_bytes()
    for output in (data, tmp_path / "link.root"):
        with pytest.raises(UsageError, match="--output"):
            engine.predict(trained.checkpoint_best, [str(data)], output=output)
    assert data.read_bytes() == before


def test_learned_task_weights_are_those_of_the_checkpoint(files: Path, trained: Any, tmp_path: Path) -> None:
    argv: dict[str, Any] = {"output": tmp_path / "p.root", "batch_size": 8}
    again = engine.predict(trained.checkpoint_best, [str(files / "val.root")], **argv)
    assert again.metrics["val/loss"] == pytest.approx(trained.metrics["val/loss"], rel=1e-6)


def test_best_weights_are_found_from_any_checkpoint_of_the_run(files: Path, trained: Any, tmp_path: Path) -> None:
    def loss(model: Path, weights: str) -> float:
        found = engine.predict(model, [str(files / "val.root")], output=tmp_path / "p.root", weights=weights)
        return found.metrics["val/loss"]

    last = Path(trained.checkpoint_last)
    assert trained.best_epoch < trained.epochs, "the last epoch is the best: the test shows nothing"
    assert loss(last, "best") == loss(Path(trained.checkpoint_best), "auto") != loss(last, "auto")
    alone = tmp_path / "alone" / store.LAST_NAME
    alone.parent.mkdir()
    shutil.copy(last, alone)
    with pytest.raises(CheckpointError, match="--weights ema"):
        loss(alone, "best")


def test_run_directory_in_place_of_a_checkpoint_is_answered_with_the_best(
    xectool: Run, files: Path, trained: Any
) -> None:
    outcome = xectool("predict", trained.run_dir, files / "val.root")
    assert outcome.code == 2
    assert trained.checkpoint_best in outcome.err


def test_truth_of_one_task_is_scored_where_another_is_missing(files: Path, trained: Any, tmp_path: Path) -> None:
    with uproot.open(files / "val.root") as file:
        columns = dict(file["tree"].arrays(["npho", "relative_time", "uvwTruth"], library="np"))
    with TreeWriter(tmp_path / "part.root", {n: (v.dtype.str[1:], v.shape[1:]) for n, v in columns.items()}) as writer:
        writer.extend(columns)
    argv = {"output": tmp_path / "p.root", "report": tmp_path / "report"}
    result = engine.predict(trained.checkpoint_best, [str(tmp_path / "part.root")], **argv)
    assert {"uvw_dist_68pct", "baseline_uvwFI"} <= result.metrics.keys()
    assert "energy_res_68pct" not in result.metrics
    assert any("energy" in found.problem for found in result.findings)
    assert (tmp_path / "report" / "resolution_uvwFI.pdf").exists()


@pytest.mark.parametrize("factor", [1.0, 1e3])
def test_truth_in_another_unit_than_what_is_predicted_is_told(
    files: Path, trained: Any, tmp_path: Path, factor: float
) -> None:
    """Resolutions of a thousand times were printed without a word."""
    with uproot.open(files / "val.root") as file:
        columns = dict(file["tree"].arrays(library="np"))
    columns["energyTruth"] = (columns["energyTruth"] * factor).astype("f4")
    columns = {name: np.concatenate([values] * 2) for name, values in columns.items()}  # ten events tell a unit
    with TreeWriter(tmp_path / "t.root", {n: (v.dtype.str[1:], v.shape[1:]) for n, v in columns.items()}) as writer:
        writer.extend(columns)
    found = engine.predict(trained.checkpoint_best, [str(tmp_path / "t.root")], output=tmp_path / "p.root").findings
    told = [item.problem for item in found if item.code == "DAT-16"]
    assert len(told) == (factor != 1.0)
    assert all("energy looks like MeV, not GeV" in problem for problem in told)
    lines = [item.fix.partition(" && ")[0] for item in found if item.code == "DAT-16"]
    assert lines == [f"xectool convert {tmp_path}/t.root --into t_converted.root --scale energyTruth=0.001"] * len(told)


@pytest.mark.parametrize("is_in_mev", [True, False])
def test_one_line_mends_times_markers_and_truth_of_what_is_predicted(
    files: Path,
    trained: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_in_mev: bool,
    paste: Callable[..., Any],
) -> None:
    """The line of the truth left the times in ns, of which another finding told."""
    monkeypatch.chdir(tmp_path)
    with uproot.open(files / "val.root") as file:
        sound = dict(file["tree"].arrays(library="np"))
    sound = {name: np.concatenate([values] * 2) for name, values in sound.items()}
    times, columns = sound["relative_time"], dict(sound)
    columns["relative_time"] = np.where(times < 9e9, times * 1e9, -999).astype("f4")
    columns["energyTruth"] = (sound["energyTruth"] * (1e3 if is_in_mev else 1)).astype("f4")
    with TreeWriter(tmp_path / "t.root", {n: (v.dtype.str[1:], v.shape[1:]) for n, v in columns.items()}) as writer:
        writer.extend(columns)
    found = engine.predict(trained.checkpoint_best, ["t.root"], output="p.root").findings
    told = [item for item in found if item.code in ("DAT-16", "XT-INPUT-SCALE")]
    assert [item.code for item in told] == ["XT-INPUT-SCALE", "DAT-16"][: 1 + is_in_mev]
    (line,) = {item.fix for item in told}
    assert paste(line, tmp_path).returncode in (0, 1), "the few events have no good verdict"
    with uproot.open("t_converted.root:tree") as tree:
        np.testing.assert_allclose(tree["relative_time"].array(library="np"), times, rtol=1e-5)
        np.testing.assert_allclose(tree["energyTruth"].array(library="np"), sound["energyTruth"], rtol=1e-5)
    again = engine.predict(trained.checkpoint_best, ["t_converted.root"], output="p.root").findings
    assert not {"DAT-16", "XT-INPUT-SCALE"} & {item.code for item in again}, "the control"


def test_files_with_and_without_truth_are_predicted_together(files: Path, trained: Any, tmp_path: Path) -> None:
    with uproot.open(files / "val.root") as file:
        columns = dict(file["tree"].arrays(["npho", "relative_time"], library="np"))
    with TreeWriter(tmp_path / "data.root", {n: (v.dtype.str[1:], v.shape[1:]) for n, v in columns.items()}) as writer:
        writer.extend(columns)
    both = [str(files / "val.root"), str(tmp_path / "data.root")]
    found = engine.predict(trained.checkpoint_best, both, output=tmp_path / "p.root")
    assert found.events == 16
    assert not [item for item in found.findings if item.code == "DAT-16"]


@pytest.mark.parametrize("spec", ["{d}/val.root:tree", "{d}", "@{d}/list.txt", "{d}/va*.root"])
def test_inputs_may_be_named_in_every_way(files: Path, trained: Any, tmp_path: Path, spec: str) -> None:
    shutil.copy(files / "val.root", tmp_path / "val.root")
    (tmp_path / "list.txt").write_text(f"# validation\n{tmp_path}/val.root\n")
    output = tmp_path / "new" / "directory" / "p.root"
    result = engine.predict(trained.checkpoint_best, [spec.format(d=tmp_path)], output=output)
    assert result.events == 8
    assert output.exists()


def test_engine_is_printed_with_its_reason(xectool: Run, files: Path, trained: Any, tmp_path: Path) -> None:
    argv = ("predict", trained.checkpoint_best, files / "val.root", "-o", tmp_path / "p.root")
    assert "engine eager: on a CPU no other is faster in batches" in xectool(*argv).err
    result = xectool(*argv, "--engine", "eager", "--json").document["result"]
    assert (result["engine"], result["engine_reason"]) == ("eager", "asked for")


def test_engine_that_would_do_nothing_is_refused(xectool: Run, files: Path, trained: Any) -> None:
    argv = ("predict", trained.checkpoint_best, files / "val.root", "--engine", "onnx")
    outcome = xectool(*argv, "--compare", "raw")
    assert outcome.code == 2
    assert "leave out --engine" in outcome.err


def test_files_with_other_names_than_those_of_the_training(files: Path, trained: Any, tmp_path: Path) -> None:
    values = uproot.open(f"{files / 'val.root'}:tree").arrays(library="np")
    own, output = tmp_path / "own.root", tmp_path / "p.root"
    with uproot.recreate(own) as file:
        file["rec"] = {{"npho": "nphe", "energyTruth": "e"}.get(name, name): rows for name, rows in values.items()}
    usual = engine.predict(trained.checkpoint_best, [str(files / "val.root")], output=output, batch_size=8)
    with pytest.raises(XecError, match="--set data\\.npho_branch="):
        engine.predict(trained.checkpoint_best, [f"{own}:rec"], output=output)
    names = ["data.npho_branch=nphe", "data.truth_branches.energy=e", "data.tree_name=rec"]
    told = engine.predict(trained.checkpoint_best, [str(own)], output=output, batch_size=8, names=names)
    assert told.metrics == usual.metrics


def test_predict_takes_names_and_no_other_settings(files: Path, trained: Any, tmp_path: Path) -> None:
    for setting in ("normalization.time_scale=1e-9", "data.batch_size=4", "training.lr=1"):
        with pytest.raises(UsageError, match=f"leave out --set {setting.partition('=')[0]}, or name one of data"):
            engine.predict(trained.checkpoint_best, [str(files / "val.root")], output=tmp_path / "p", names=[setting])


def test_a_truth_of_another_name_than_in_the_training_is_told_with_the_option(
    xectool: Run, files: Path, trained: Any, tmp_path: Path
) -> None:
    """There was no table of metrics, and no reason."""
    values = uproot.open(f"{files / 'val.root'}:tree").arrays(library="np")
    own = tmp_path / "own.root"
    with uproot.recreate(own) as file:
        file["tree"] = {{"energyTruth": "Egamma"}.get(name, name): rows for name, rows in values.items()}
    argv = ("predict", trained.checkpoint_best, own, "-o", tmp_path / "p.root")
    (note,) = (found for found in xectool(*argv, "--json").document["findings"] if found["code"] == "XT-DATA-NO-TRUTH")
    assert (note["severity"], note["problem"]) == (
        "info",
        "no metrics of energy: the files have no branch 'energyTruth'",
    )
    assert note["fix"].startswith("--set data.truth_branches.energy=Egamma   # ")
    pasted = xectool(*argv, *note["fix"].partition("   #")[0].split(), "--json").document
    assert "energy_res_68pct" in pasted["result"]["metrics"]
    assert not [found for found in pasted["findings"] if found["code"] == "XT-DATA-NO-TRUTH"]
    (tmp_path / "dead.txt").write_text("7\n")
    compare = ("--compare", "raw,neighbour", "--dead", tmp_path / "dead.txt", "--json")
    assert note in xectool(*argv[:3], *compare).document["findings"]
    with uproot.recreate(own) as file:
        file["tree"] = {
            "Egamma": values["energyTruth"],
            "npho": values["npho"],
            "relative_time": values["relative_time"],
        }
    (refused,) = xectool(*argv[:3], *compare).document["findings"]
    assert refused["fix"].startswith("--set data.truth_branches.energy=Egamma   # ")


def test_measured_events_are_said_to_have_no_metrics(files: Path, trained: Any, tmp_path: Path) -> None:
    values = uproot.open(f"{files / 'val.root'}:tree").arrays(library="np")
    own = tmp_path / "own.root"
    with uproot.recreate(own) as file:
        file["tree"] = {name: values[name] for name in ("npho", "relative_time", "run", "event")}
    found = engine.predict(trained.checkpoint_best, [str(own)], output=tmp_path / "p.root")
    assert [(item.code, item.fix) for item in found.findings] == [("XT-DATA-NO-TRUTH", "")]
    assert "energy" in found.findings[0].problem
