"""A network of ours that a LightningModule holds is known by its layout, whatever the module calls it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.conftest import ours
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.transfer import transfer_encoder
from xectool.config.root import KINDS
from xectool.errors import CheckpointError
from xectool.models import build_model

SIZES = {"encoder_dim": 32, "num_fusion_layers": 1}


def saved(path: Path, weights: dict[str, Any], name: str) -> Path:
    """Write what Lightning writes."""
    held = {f"{name}{key}": value for key, value in weights.items()} | {"criterion.weight": torch.ones(3)}
    content = {"epoch": 3, "global_step": 40, "pytorch-lightning_version": "2.5.0", "state_dict": held}
    torch.save(content | {"optimizer_states": [], "lr_schedulers": [], "loops": {}, "callbacks": {}}, path)
    return path


@pytest.mark.parametrize(
    "name", ["model.", "net.", "encoder.", "backbone.", "module.model.", "model._orig_mod.", "a.b."]
)
@pytest.mark.parametrize("kind", ["regressor", "mae", "inpainter"])
def test_it_is_recognised_and_a_training_starts_from_it(kind: str, name: str, tmp_path: Path) -> None:
    source = ours(kind)
    path = saved(tmp_path / "l.ckpt", source.model, name)
    found = engine.inspect_ckpt(str(path))
    assert (found.kind, found.epoch, found.step) == (kind, 3, 40)
    assert (found.format, found.verdict) == ("Lightning 2.5.0", f"a sound checkpoint: {kind} (Lightning 2.5.0)")
    assert "".join(found.prefixes) == name
    assert "older system's" not in {item.action: item.why for item in found.fit_for}["resume"]
    assert "checkpoint.init_from=" in found.next
    start = store.load_start(path)
    assert start.model.keys() == source.model.keys()
    config = KINDS["regressor"](model=SIZES, tasks={"energy": {"enabled": True}})
    network = build_model(config)
    transfer_encoder(start, config, network)
    prefix = "backbone." if kind == "regressor" else "encoder."
    assert torch.equal(network.state_dict()["backbone.pos_embed"], source.model[f"{prefix}pos_embed"])


def test_bare_weights_are_of_the_older_system_only_where_its_neighbours_are_in_them(tmp_path: Path) -> None:
    """Names are the same; what was written by hand from a network of ours was called the older system's."""
    for geometry, written in (("physical", "PyTorch"), ("compat", "older system")):
        network = build_model(KINDS["mae"](model=SIZES | {"decoder_dim": 8, "geometry": geometry}))
        torch.save(network.state_dict(), tmp_path / "bare.pt")
        found = engine.inspect_ckpt(tmp_path / "bare.pt")
        assert (found.format, found.kind) == (written, "mae")
        with pytest.raises(CheckpointError, match="without a configuration") as refused:
            store.load(tmp_path / "bare.pt")
        assert f"--set model.geometry={geometry}" in refused.value.fix


def test_an_encoder_alone_is_one_and_its_geometry_is_told(tmp_path: Path) -> None:
    for geometry, other in (("physical", "compat"), ("compat", "physical")):
        encoder = build_model(KINDS["mae"](model=SIZES | {"decoder_dim": 8, "geometry": geometry})).encoder
        path = saved(tmp_path / "e.ckpt", encoder.state_dict(), "encoder.")
        assert engine.inspect_ckpt(str(path)).kind == "encoder"
        config = KINDS["regressor"](model=SIZES | {"geometry": other}, tasks={"energy": {"enabled": True}})
        with pytest.raises(CheckpointError, match="does not see events") as refused:
            transfer_encoder(store.load_start(path), config, build_model(config))
        assert refused.value.fix == f"--set model.geometry={geometry}"


def test_of_two_networks_none_is_taken_and_the_line_leaves_one(tmp_path: Path) -> None:
    """The first in order was taken without a word: here the teacher."""
    source = ours("regressor")
    taught = {f"model.{name}": value + 1 for name, value in source.model.items() if value.is_floating_point()}
    weights = {f"model.{name}": value for name, value in source.model.items()} | taught
    path = saved(tmp_path / "two nets.ckpt", {f"teacher.{n}": v for n, v in source.model.items()} | weights, "")
    found = engine.inspect_ckpt(str(path))
    assert found.kind == "a LightningModule with more than one network of this project: model., teacher."
    assert not any(item.possible for item in found.fit_for)
    with pytest.raises(CheckpointError, match="holds 2 networks of this project") as refused:
        store.load_start(path)
    assert refused.value.where == "model. (regressor), teacher. (regressor)"
    subprocess.run(refused.value.fix, shell=True, check=True, cwd=tmp_path)
    assert engine.inspect_ckpt(tmp_path / "one.ckpt").kind == "regressor"
    one = store.load_start(tmp_path / "one.ckpt")
    assert torch.equal(one.model["backbone.pos_embed"], source.model["backbone.pos_embed"] + 1)


def test_another_network_stays_another(tmp_path: Path) -> None:
    path = saved(tmp_path / "o.ckpt", {"fc.weight": torch.ones(3, 3)}, "model.")
    assert engine.inspect_ckpt(str(path)).kind == "a LightningModule"
