"""Bare weights of an older encoder: no model of their own, but a start for one; and checkpoints that need no files."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.checkpoint.transfer import transfer_encoder
from xectool.config.load import config_from_dict
from xectool.config.root import KINDS, RunConfig
from xectool.detector import geometry
from xectool.errors import CheckpointError
from xectool.models import build_model
from xectool.training.saving.resume import meaning_differences, require_resumable, start_options
from xectool.training.stepping.state import load_weights

SIZES: dict[str, Any] = {"encoder_dim": 32, "num_fusion_layers": 1, "dim_feedforward": 48, "geometry": "compat"}


def config(kind: str = "regressor", **model: Any) -> RunConfig:
    return KINDS[kind](model=SIZES | model)


@pytest.fixture(params=["", "module.", "module._orig_mod."])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The encoder of an older masked autoencoder, as its trainer writes it beside the checkpoints."""
    torch.manual_seed(3)
    weights = build_model(config("mae", decoder_dim=8)).encoder.state_dict()
    path = tmp_path / "mae_encoder_epoch_10.pth"
    torch.save({f"{request.param}{name}": value for name, value in weights.items()}, path)
    return path


def test_bare_weights_are_named_as_such_with_what_to_do(bare: Path) -> None:
    with pytest.raises(CheckpointError, match="bare weights of an encoder") as refused:
        store.load(bare)
    assert f"--set checkpoint.init_from={bare}" in refused.value.fix
    assert refused.value.where == str(bare)


@pytest.mark.parametrize("kind", ["regressor", "inpainter"])
def test_bare_weights_start_other_training_and_the_report_says_what_is_assumed(bare: Path, kind: str) -> None:
    model = build_model(config(kind))
    report = transfer_encoder(store.load_start(bare), config(kind), model)
    encoder = model.backbone if kind == "regressor" else model.encoder
    for name, value in store.load_start(bare).model.items():
        assert torch.equal(encoder.state_dict()[name], value)
    assert "normalization and model.outer_fine_pool of this run" in "\n".join(report.lines())


@pytest.mark.parametrize(
    ("model", "fix"),
    [
        ({"geometry": "physical"}, "--set model.geometry=compat"),
        ({"encoder_dim": 64}, "--set model.encoder_dim=32"),
        ({"outer_mode": "split"}, "--set model.outer_mode=finegrid"),
        ({"dim_feedforward": None}, "--set model.dim_feedforward=48"),
        ({"num_fusion_layers": 2}, "--set model.num_fusion_layers=1"),
    ],
)
def test_bare_weights_of_another_encoder_are_refused_with_the_keys(bare: Path, model: dict[str, Any], fix: str) -> None:
    other = config(**model)
    with pytest.raises(CheckpointError, match="does not see events") as refused:
        transfer_encoder(store.load_start(bare), other, build_model(other))
    assert fix in refused.value.fix


def test_the_older_systems_own_checkpoints_start_training_as_they_are(reference_dir: Path) -> None:
    path = reference_dir / "checkpoints" / "mae_small_checkpoint_best_stripped.pth"
    assert store.load_start(path).config == store.load(path).config


def test_an_older_checkpoint_tells_how_a_run_starts_from_it(tmp_path: Path) -> None:
    """It cannot be resumed; the options in the message make a network that its weights fit."""
    older = config(dim_feedforward=4 * SIZES["encoder_dim"])
    meta = {"kind": "regressor", "config": older.to_dict()}
    meta["config"]["tasks"] = {"energy": {"enabled": True}}  # nothing but the enabled tasks is stored
    checkpoint = Checkpoint(meta, build_model(older).state_dict(), origin="older regressor")

    def given(**energy: Any) -> RunConfig:
        tasks = {"energy": {"enabled": True, **energy}}
        return KINDS["regressor"](model=SIZES | {"dim_feedforward": None}, tasks=tasks)

    assert meaning_differences(given(), checkpoint) == []
    assert meaning_differences(given(log_transform=True), checkpoint) == [], "such a file does not tell it"
    assert [key for key, *_ in meaning_differences(given(shift=0.05), checkpoint)] == ["tasks.energy.shift"]
    ours = config(geometry="physical", num_fusion_layers=2, dim_feedforward=None)
    with pytest.raises(CheckpointError, match="of the older system") as refused:
        require_resumable(ours, checkpoint, None, tmp_path / "old.pth")  # no data is read
    line, words = refused.value.fix.split("   # ")
    assert words == "without --resume, a new run from its weights"
    options = shlex.split(line)
    assert options[-2:] == ["--run-name", f"{tmp_path.name}-again"], "a line to paste, and no run that is there"
    assert options[1].startswith("checkpoint.init_from=")
    assert sorted(options[3:-2:2]) == ["model.geometry=compat", "model.num_fusion_layers=1"]
    fix = start_options(ours, checkpoint, tmp_path / "old.pth")
    with pytest.raises(CheckpointError, match="do not fit") as misfit:
        load_weights(build_model(ours), checkpoint.weights(), fix)
    assert misfit.value.fix == fix


def test_learnt_channel_weights_are_weights_that_resume_and_start_both_ask_for(tmp_path: Path) -> None:
    small = {"decoder_dim": 8} | SIZES
    saved, plain = (KINDS["mae"](model=small, training={"auto_channel_weight": learnt}) for learnt in (True, False))
    meta = {"kind": "mae", "config": saved.to_dict(), "progress": {"batch": 0}}
    checkpoint = Checkpoint(meta, build_model(saved).state_dict(), training={"step": 1})
    with pytest.raises(
        CheckpointError, match=r"training\.auto_channel_weight: True in the checkpoint, False now"
    ) as refused:
        require_resumable(plain, checkpoint, None, tmp_path / "mae.pt")  # no data is read
    assert refused.value.fix.startswith("--set training.auto_channel_weight=true ")
    assert shlex.split(start_options(plain, checkpoint, tmp_path / "mae.pt"))[2:] == [
        "--set", "training.auto_channel_weight=true"
    ]  # fmt: skip


def test_what_is_no_checkpoint_is_refused_as_a_start_too(tmp_path: Path) -> None:
    (tmp_path / "notes.pt").write_text("nothing")
    with pytest.raises(CheckpointError, match="a text file, not a checkpoint"):
        store.load_start(tmp_path / "notes.pt")
    torch.save({"a": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="nor of the older system: its top-level keys are a"):
        store.load_start(tmp_path / "other.pt")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("stem.0.weight", "stages.0.blocks.0.conv_dw.weight"), r"of no network of this project \(timm ConvNeXt\)"),
        (("a.weight",), r"of no network of this project \(nor of one that is known\)"),
    ],
)
def test_safetensors_of_another_network_are_not_said_to_lack_a_configuration(
    tmp_path: Path, names: tuple[str, ...], said: str
) -> None:
    """No encoder can be taken out of them, which was the line to paste."""
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file({name: torch.zeros(3) for name in names}, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{said}[\\s\\S]*xectool inspect-ckpt {path}") as refused:
        store.load(path)
    assert refused.value.code == "XT-CKPT-LAYOUT"


def test_an_inpainter_loads_without_the_file_of_its_sensor_positions(tmp_path: Path) -> None:
    places = geometry.positions_cm() + np.random.default_rng(1).normal(scale=3.0, size=(4760, 3))
    table = tmp_path / "positions.txt"
    np.savetxt(table, np.column_stack([np.arange(4760), places]))
    own = {"head_type": "cross_attention", "sensor_positions_file": str(table), "geometry": "physical"}
    saved = config("inpainter", **own)
    network = build_model(saved)
    store.save(tmp_path / "c.pt", Checkpoint({"kind": "inpainter", "config": saved.to_dict()}, network.state_dict()))
    table.unlink()
    checkpoint = store.load(tmp_path / "c.pt")
    again = build_model(config_from_dict(checkpoint.config, "c.pt"))
    assert not torch.equal(again.cross_attn_head.knn_indices, network.cross_attn_head.knn_indices)
    load_weights(again, checkpoint.weights())
    for name in ("sensor_positions", "knn_indices", "pos_embed"):
        assert torch.equal(getattr(again.cross_attn_head, name), getattr(network.cross_attn_head, name))
    assert checkpoint.meta["config"]["model"]["sensor_positions_file"] == str(table), "where they came from is kept"
    for file in (None, str(table)):
        assert meaning_differences(config("inpainter", **(own | {"sensor_positions_file": file})), checkpoint) == []
