"""What a checkpoint of the older system does not tell is said where it is used."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from xectool import engine

FILES = {
    "mae": "mae_small_checkpoint_best_stripped.pth",
    "regressor": "reg_small_checkpoint_best.pth.xz",
}
ASSUMED = {
    "mae": ("training.loss_fn: smooth_l1", "training.loss_beta: 1.0"),
    "regressor": (
        "tasks.angle: loss_fn smooth_l1, loss_beta 1, weight 1, log_transform false",
        "tasks.energy: loss_fn gaussian_nll, loss_beta 1, weight 1, log_transform false",
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_predict_says_which_losses_it_assumes_of_the_older_system(
    kind: str, reference_dir: Path, tmp_path: Path
) -> None:
    """val/loss was printed without a word, while an assumed threshold was told."""
    file = reference_dir / "checkpoints" / FILES[kind]
    source = tmp_path / "older.pth"
    source.write_bytes(lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes())
    data = [str(reference_dir / "data/synth_tiny.root")]
    result = engine.predict(source, data, output=tmp_path / "p.root", max_events=4)
    assert "val/loss" in result.metrics
    (note,) = [found for found in result.findings if "losses" in found.problem]
    assert (note.code, note.severity.value, note.where) == ("XT-CKPT-ASSUMED", "info", str(source))
    assert set(ASSUMED[kind]) <= set(note.evidence)
