"""Checkpoints of the older system."""

from __future__ import annotations

import io
import lzma
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from xectool import engine
from xectool.checkpoint import foreign, store
from xectool.checkpoint.transfer import transfer_encoder
from xectool.config.load import config_from_dict
from xectool.errors import CheckpointError
from xectool.models import Regressor, build_model
from xectool.models.encoder import Encoder

FILES = {
    "regressor": "reg_small_checkpoint_best.pth.xz",
    "mae": "mae_small_checkpoint_best_stripped.pth",
    "inpainter": "inp_small_perface_checkpoint_best_stripped.pth",
}
Load = Callable[[str], dict[str, Any]]


@cache
def _read(path: Path) -> dict[str, Any]:
    content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    payload: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    return payload


@pytest.fixture
def load(reference_dir: Path) -> Load:
    return lambda kind: dict(_read(reference_dir / "checkpoints" / FILES[kind]))


def _rebuilt(payload: dict[str, Any], which: foreign.Which) -> Regressor:
    model = build_model(config_from_dict(foreign.to_config(payload), "older checkpoint"))
    assert isinstance(model, Regressor)
    model.load_state_dict(foreign.state_dict(payload, which))
    return model.eval()


@pytest.mark.parametrize(("which", "prefix"), [("model", "model"), ("ema", "ema"), ("best", "best_ema")])
@torch.no_grad()
def test_a_regressor_gives_its_older_outputs_from_raw_readings(
    which: foreign.Which, prefix: str, load: Load, reference_dir: Path
) -> None:
    stored = np.load(reference_dir / "reg_small_io.npz")
    model = _rebuilt(load("regressor"), which)
    npho, time = torch.from_numpy(stored["raw_npho"]), torch.from_numpy(stored["raw_time"])
    for task, output in model(npho, time).items():
        theirs = stored[f"{prefix}_{task}"]
        np.testing.assert_allclose(output.numpy(), theirs, rtol=0, atol=1e-5 * max(1, np.abs(theirs).max()))
    np.testing.assert_allclose(model.tokens(npho, time).numpy(), stored[f"{prefix}_tokens"], rtol=0, atol=2e-5)
    masked = model.tokens(npho, time, torch.from_numpy(stored["mask"]))
    np.testing.assert_allclose(masked.numpy(), stored[f"{prefix}_tokens_masked"], rtol=0, atol=2e-5)
    exact = model.double().forward_normalized(torch.from_numpy(stored["x"]).double())
    for task, output in exact.items():
        np.testing.assert_allclose(output.numpy(), stored[f"{prefix}_{task}__f64"], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "weights"), [("regressor", ("best", "ema", "model")), ("mae", ("ema", "model")), ("inpainter", ("model",))]
)
def test_each_layout_is_recognised(kind: str, weights: tuple[str, ...], load: Load) -> None:
    layout = foreign.recognise(load(kind))
    assert (layout.kind, layout.weights, layout.has_config) == (kind, weights, True)
    assert layout.epoch is not None
    assert foreign.is_foreign(load(kind))


@pytest.mark.parametrize("kind", FILES)
def test_the_encoder_inside_fits_ours(kind: str, load: Load) -> None:
    from xectool.config.model import EncoderConfig

    encoder = Encoder(EncoderConfig(geometry="compat", encoder_dim=64))
    encoder.load_state_dict(foreign.encoder_state_dict(load(kind), "model"))


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "module._orig_mod.", ""])
def test_wrapper_prefixes_are_removed_at_the_start_only(wrapper: str, load: Load) -> None:
    weights = foreign.encoder_state_dict(load("regressor"), "model")
    wrapped = {f"{wrapper}{name}": value for name, value in weights.items()}
    assert foreign.recognise(wrapped).kind == "encoder"
    assert foreign.state_dict(wrapped, "model").keys() == weights.keys()
    inner = {f"{wrapper}{name}": value for name, value in weights.items()} | {"pos.module.x": torch.zeros(1)}
    assert "pos.module.x" in foreign.state_dict(inner, "model")


def test_an_averaged_model_alone_is_recognised(load: Load) -> None:
    payload = load("regressor")["ema_state_dict"]
    assert foreign.recognise(payload).kind == "regressor"
    names = foreign.state_dict(payload, "model")
    assert "n_averaged" not in names
    assert len(names) == 182


def test_the_configuration_says_what_the_file_does_not_store_in_our_terms(load: Load) -> None:
    config = foreign.to_config(load("regressor"))
    assert config["normalization"]["below_domain"] == "zero"
    assert config["model"] == {
        "geometry": "compat", "outer_mode": "finegrid", "outer_fine_pool": None, "encoder_dim": 64,
        "dim_feedforward": 256, "num_fusion_layers": 2, "drop_path_rate": 0.1, "hidden_dim": 32,
    }  # fmt: skip
    assert config["tasks"]["energy"] == {"enabled": True, "loss_fn": "gaussian_nll", "scale": None}
    assert sorted(config["tasks"]) == ["angle", "energy", "timing", "uvwFI"]


@pytest.mark.parametrize("kind", ["mae", "inpainter"])
def test_pretraining_checkpoints_give_a_valid_configuration(kind: str, load: Load) -> None:
    config = config_from_dict(foreign.to_config(load(kind)), "older checkpoint")
    assert config.kind == kind
    assert config.model.encoder_dim == 64
    assert config.model.predict_channels == ("npho", "time")


@pytest.mark.parametrize(("kind", "key", "wrong"), [
    ("mae", "decoder_dim", 32),
    ("inpainter", "head_type", "cross_attention"),
    ("inpainter", "use_masked_attention", True),
])  # fmt: skip
def test_weights_are_believed_where_the_stored_configuration_tells_of_another_network(
    kind: str, key: str, wrong: object, load: Load
) -> None:
    payload = load(kind)
    told = foreign.to_config(payload | {"config": payload["config"] | {key: wrong}})
    assert told == foreign.to_config(payload)
    assert told["model"][key] != wrong


@pytest.mark.parametrize("pool", [(3, 3), [3, 3], 3])
def test_pooling_is_read_in_all_its_older_spellings(pool: object, load: Load) -> None:
    payload = load("regressor")
    payload["config"] = payload["config"] | {"outer_fine_pool": pool}
    assert foreign.to_config(payload)["model"]["outer_fine_pool"] == [3, 3]


def test_an_unknown_layout_lists_its_keys() -> None:
    with pytest.raises(CheckpointError, match="top-level keys are state, weights"):
        foreign.recognise({"weights": 1, "state": 2})
    assert not foreign.is_foreign({"weights": torch.zeros(1)})
    assert not foreign.is_foreign([1, 2])


def test_missing_weights_name_those_there(load: Load) -> None:
    with pytest.raises(CheckpointError, match="use 'model'"):
        foreign.state_dict(load("inpainter"), "ema")


def test_weights_without_configuration_say_how_to_use_them(load: Load) -> None:
    weights: dict[str, Tensor] = foreign.encoder_state_dict(load("regressor"), "model")
    with pytest.raises(CheckpointError, match=r"checkpoint\.init_from"):
        foreign.to_config(weights)


def test_an_encoder_beside_its_configuration_starts_training_as_that_says(load: Load, tmp_path: Path) -> None:
    """It was refused as without a configuration, with the training that refused it as the cure."""
    whole, path = load("regressor"), tmp_path / "encoder.pth"
    stored = whole["config"] | {"npho_scale": 321.0}
    torch.save({"config": stored, "model_state_dict": foreign.encoder_state_dict(whole, "model")}, path)
    assert engine.inspect_ckpt(path).findings == ()
    start = store.load_start(path)
    sizes = foreign.to_config(whole)["model"]
    assert start.config["model"].items() <= sizes.items()
    assert start.config["normalization"]["npho_scale"] == 321.0
    sections = {"kind": "inpainter", "model": start.config["model"]}
    ours = config_from_dict(sections | {"normalization": start.config["normalization"]}, "ours")
    assert transfer_encoder(start, ours, build_model(ours)).source == "encoder"
    other = config_from_dict(sections, "other")
    with pytest.raises(CheckpointError, match="npho_scale 321"):
        transfer_encoder(start, other, build_model(other))


def test_weights_without_neighbours_are_of_no_known_geometry(load: Load, tmp_path: Path) -> None:
    """They were said to be the older system's, of geometry compat."""
    weights = foreign.encoder_state_dict(load("regressor"), "model")
    whole = foreign.encoder_sizes(weights)
    del weights["hex_edge_index"]
    assert foreign.encoder_sizes(weights) == {key: value for key, value in whole.items() if key != "geometry"}
    assert not foreign.is_older(weights)
    with pytest.raises(CheckpointError, match="bare weights") as refused:
        foreign.to_config(weights)
    assert "geometry" not in refused.value.fix


def test_weights_of_a_network_without_encoder_are_no_older_checkpoint() -> None:
    assert not foreign.is_foreign(nn.Linear(2, 2).state_dict())


@pytest.mark.parametrize("name", ["reg_small_checkpoint_best.pth.xz", "mae_small_checkpoint_best_stripped.pth"])
def test_a_weight_that_is_missing_or_of_another_shape_is_refused_by_name(
    name: str, reference_dir: Path, tmp_path: Path
) -> None:
    """The sizes of the network are read from weights: a missing one was a KeyError, exit code 70."""
    raw = (reference_dir / "checkpoints" / name).read_bytes()
    stored = torch.load(io.BytesIO(lzma.decompress(raw) if name.endswith("xz") else raw), weights_only=True)
    prefix = foreign.ENCODER_PREFIX[foreign.recognise(stored).kind]
    for change, told in ((None, "the weight 'pos_embed' is missing"), (torch.zeros(3), "are none of a network")):
        broken = dict(stored)
        for container in set(foreign.CONTAINERS.values()) & stored.keys():
            weights = {key: value for key, value in stored[container].items() if not key.endswith("pos_embed")}
            broken[container] = weights | ({} if change is None else {f"{prefix}pos_embed": change})
        torch.save(broken, tmp_path / "broken.pth")
        with pytest.raises(CheckpointError, match=told) as refused:
            store.load(tmp_path / "broken.pth")
        assert "--resume auto" in refused.value.fix
        found = [item for item in engine.inspect_ckpt(tmp_path / "broken.pth").findings if item.code == "K15"]
        assert any(told in item.problem for item in found)


def test_a_regressor_without_an_energy_has_its_own_width(reference_dir: Path) -> None:
    raw = lzma.decompress((reference_dir / "checkpoints" / "reg_small_checkpoint_best.pth.xz").read_bytes())
    stored = torch.load(io.BytesIO(raw), weights_only=True)
    width = foreign.to_config(stored)["model"]["hidden_dim"]
    for container in set(foreign.CONTAINERS.values()) & stored.keys():
        heads = {key.replace("heads.energy.", "heads.timing."): value for key, value in stored[container].items()}
        stored[container] = heads
    assert foreign.to_config(stored)["model"]["hidden_dim"] == width
