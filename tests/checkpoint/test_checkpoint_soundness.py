"""Nothing is computed with weights that are not the ones that were written, or that are no numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from xectool.checkpoint import store
from xectool.checkpoint.soundness import require_finite
from xectool.config.load import config_from_dict
from xectool.config.root import KINDS
from xectool.engine.loading import ready_model
from xectool.engine.training_run.start import start_from
from xectool.errors import CheckpointError
from xectool.models import build_model

MODEL: dict[str, Any] = {"encoder_dim": 32, "num_fusion_layers": 1, "dim_feedforward": 48, "geometry": "compat"}


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The encoder of an older masked autoencoder: a layout without a digest."""
    torch.manual_seed(3)
    path = tmp_path / "mae_encoder_epoch_10.pth"
    torch.save(build_model(KINDS["mae"](model=MODEL | {"decoder_dim": 8})).encoder.state_dict(), path)
    return path


def _flip(path: Path) -> torch.Tensor:
    """Change one bit of a weight and return the weights before."""
    before = cast("torch.Tensor", torch.load(path, weights_only=True)["pos_embed"])
    content = bytearray(path.read_bytes())
    content[content.index(before.numpy().tobytes()) + 2] ^= 0x40
    path.write_bytes(content)
    return before


def test_a_flipped_bit_of_an_older_file_is_refused_by_its_checksum(older: Path) -> None:
    assert store.load_start(older).model
    before = _flip(older)
    after = torch.load(older, weights_only=True)["pos_embed"]  # the control: torch says nothing
    assert after.isfinite().all()
    assert not torch.equal(after, before)
    with pytest.raises(CheckpointError, match=r"\(CRC\) of its entry .*/data/\d+") as refused:
        store.load_start(older)
    assert refused.value.fix.startswith(f"xectool inspect-ckpt {older}")


def test_an_archive_written_without_checksums_is_read(older: Path) -> None:
    weights = torch.load(older, weights_only=True)
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(weights, older)
    finally:
        torch.serialization.set_crc32_options(True)
    assert torch.equal(store.load_start(older).model["pos_embed"], weights["pos_embed"])


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused_where_they_are_used_and_nowhere_else(
    value: float, families: dict[str, Path], tmp_path: Path
) -> None:
    saved, path = store.load(families["regressor"]), tmp_path / "bad.pt"
    spoiled = dict(saved.ema) | {"backbone.pos_embed": torch.full_like(saved.ema["backbone.pos_embed"], value)}
    store.save(path, replace(saved, ema=spoiled))
    found = store.load(path)  # what looks for the cause of such numbers must be able to read them
    assert ready_model(found, path, "model", "cpu").network  # the control: other weights of the same file are sound
    for use in (
        lambda: ready_model(found, path, "auto", "cpu"),
        lambda: start_from(cast("Any", None), path, cast("Any", None)),
    ):
        with pytest.raises(CheckpointError, match=r"backbone\.pos_embed are not finite") as refused:
            use()
        assert refused.value.code == "K08"


def test_a_run_that_starts_from_weights_whose_average_is_gone_says_so(
    families: dict[str, Path], tmp_path: Path
) -> None:
    saved, said, path = store.load(families["regressor"]), list[str](), tmp_path / "a.pt"
    store.save(path, replace(saved, ema={}))
    parts = cast("Any", SimpleNamespace(config=config_from_dict(saved.config, "test")))
    for source, warned in ((path, True), (families["regressor"], False)):
        parts.model = ready_model(saved, source, "model", "cpu").network
        start_from(parts, source, cast("Any", SimpleNamespace(message=said.append)))
        assert (
            any("averaged weights are gone" in line and "starts from the last ones" in line for line in said) is warned
        )
        said.clear()


def test_infinities_belong_into_a_mask() -> None:
    mask = torch.tensor([0.0, float("-inf")])
    require_finite({"decoder.attn_mask": mask}, "a.pt")
    with pytest.raises(CheckpointError, match=r"decoder\.bias"):
        require_finite({"decoder.bias": mask}, "a.pt")
