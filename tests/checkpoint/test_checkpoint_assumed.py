"""What a checkpoint of the older system does not tell is said where it is used."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.errors import UsageError

FILES = {
    "mae": "mae_small_checkpoint_best_stripped.pth",
    "regressor": "reg_small_checkpoint_best.pth.xz",
}
LOSS = "val/loss_inner_npho"  # of a face whose every sensor has a place of its own in the outputs of a graph
ASSUMED = {
    "mae": ("training: loss_fn smooth_l1, loss_beta 1.0, npho_weight 1.0", "training.time: weight 1.0"),
    "regressor": (
        "tasks.angle: loss_fn smooth_l1, loss_beta 1.0, weight 1.0",
        "tasks.energy: log_transform false, loss_beta 1.0, weight 1.0",
    ),
}


def older(kind: str, reference_dir: Path, tmp_path: Path) -> Path:
    file = reference_dir / "checkpoints" / FILES[kind]
    source = tmp_path / "older.pth"
    source.write_bytes(lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes())
    return source


@pytest.mark.parametrize("kind", FILES)
def test_predict_says_which_losses_it_assumes_of_the_older_system(
    kind: str, reference_dir: Path, tmp_path: Path
) -> None:
    """val/loss was printed without a word, while an assumed threshold was told."""
    source, data = older(kind, reference_dir, tmp_path), [str(reference_dir / "data/synth_tiny.root")]
    result = engine.predict(source, data, output=tmp_path / "p.root", max_events=4)
    assert "val/loss" in result.metrics
    (note,) = [found for found in result.findings if "losses" in found.problem]
    assert (note.code, note.severity.value, note.where) == ("XT-CKPT-ASSUMED", "info", str(source))
    assert set(ASSUMED[kind]) <= set(note.evidence)


def test_predict_is_told_what_the_older_system_does_not_store(reference_dir: Path, tmp_path: Path) -> None:
    """A target that was learnt as its logarithm was predicted as if it were none, and could not be told."""
    source, data = older("regressor", reference_dir, tmp_path), [str(reference_dir / "data/synth_tiny.root")]
    told = ("tasks.energy.log_transform=true", "tasks.timing.loss_fn=l1")
    plain = engine.predict(source, data, output=tmp_path / "a.root", max_events=4)
    result = engine.predict(source, data, output=tmp_path / "b.root", max_events=4, names=told)
    before, after = (
        uproot.open(tmp_path / name)["tree/pred_energy"].array(library="np") for name in ("a.root", "b.root")
    )
    np.testing.assert_allclose(after, np.exp(before), rtol=1e-5)
    (said,), (left,) = ([item for item in of.findings if "losses" in item.problem] for of in (plain, result))
    assert "--set tasks.energy.log_transform=VALUE" in said.fix
    assert said.problem.endswith("for val/loss, and no logarithm for energy, timing")
    assert left.problem.endswith("for val/loss, and no logarithm for timing")
    assert "tasks.energy: loss_beta 1.0, weight 1.0" in left.evidence
    compared = engine.compare(source, data, variants=("raw", "neighbour"), max_events=4, names=told)
    assert compared.events == 4
    assert [item for item in compared.findings if "no logarithm for timing" in item.problem]


def test_predict_keeps_what_the_file_of_the_older_system_tells(reference_dir: Path, tmp_path: Path) -> None:
    source, data = older("regressor", reference_dir, tmp_path), [str(reference_dir / "data/synth_tiny.root")]
    for setting in ("tasks.energy.loss_fn=l1", "tasks.angle.log_transform=true", "model.encoder_dim=64"):
        with pytest.raises(UsageError, match="belongs to the training of the model"):
            engine.predict(source, data, output=tmp_path / "p.root", names=[setting])
    with pytest.raises(UsageError, match="predicts no width"):
        engine.predict(source, data, output=tmp_path / "p.root", names=["tasks.timing.loss_fn='gaussian_nll'"])


def test_an_export_is_told_what_the_older_system_does_not_store(reference_dir: Path, tmp_path: Path) -> None:
    """A graph gave the logarithm of an energy as an energy, and nothing said what was assumed."""
    source, data = older("regressor", reference_dir, tmp_path), [str(reference_dir / "data/synth_tiny.root")]
    told = ["tasks.energy.log_transform=true"]
    engine.predict(source, data, output=tmp_path / "eager.root", max_events=4, names=told)
    engine.predict(source, data, output=tmp_path / "onnx.root", max_events=4, names=told, engine="onnx")
    plain = engine.export(source, to="safetensors", output=tmp_path / "plain.safetensors")
    result = engine.export(source, to="torchscript", output=tmp_path / "told.pt", names=told)
    engine.predict(tmp_path / "told.pt", data, output=tmp_path / "told.root", max_events=4)
    first, *others = (
        uproot.open(tmp_path / name)["tree/pred_energy"].array(library="np")
        for name in ("eager.root", "onnx.root", "told.root")
    )
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-4)
    (said,), (left,) = ([item for item in of.findings if "losses" in item.problem] for of in (plain, result))
    assert said.problem == "the file does not tell its losses: no logarithm for energy, timing"
    assert left.problem == "the file does not tell its losses: no logarithm for timing"


@pytest.mark.parametrize("file", ["network.pt", "network.safetensors"])
def test_a_threshold_that_is_told_goes_with_the_file(file: str, reference_dir: Path, tmp_path: Path) -> None:
    """The exported file held the assumed one, and predicted other sensors without a word."""
    source, data = older("mae", reference_dir, tmp_path), [str(reference_dir / "data/synth_tiny.root")]
    told = ["normalization.npho_threshold=20"]
    eager = engine.predict(source, data, output=tmp_path / "eager.root", max_events=4, names=told)
    plain = engine.predict(source, data, output=tmp_path / "plain.root", max_events=4)
    assert eager.metrics[LOSS] != pytest.approx(plain.metrics[LOSS], rel=0.01), "the control"
    engine.export(source, output=tmp_path / file, names=told)
    exported = engine.predict(tmp_path / file, data, output=tmp_path / "exported.root", max_events=4)
    assert exported.metrics[LOSS] == pytest.approx(eager.metrics[LOSS], rel=1e-3)
    if file.endswith("pt"):
        runtime = engine.predict(source, data, output=tmp_path / "onnx.root", max_events=4, names=told, engine="onnx")
        assert runtime.metrics[LOSS] == pytest.approx(eager.metrics[LOSS], rel=1e-3)
        with pytest.raises(UsageError, match="only names in the files can be told"):
            engine.predict(tmp_path / file, data, output=tmp_path / "a.root", names=told)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("tasks.energy.loss_fn=l1", "belongs to the training"),
        ("data.npho_branch=light", "no effect without --verify-on"),
    ],
)
def test_an_export_refuses_settings_without_effect(
    reference_dir: Path, tmp_path: Path, setting: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        engine.export(older("regressor", reference_dir, tmp_path), output=tmp_path / "a.onnx", names=[setting])
