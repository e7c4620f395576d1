"""Encoder weights reach another network whole, or not at all with every reason named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.checkpoint.transfer import transfer_encoder
from xectool.config.root import KINDS, RunConfig
from xectool.engine.loading import assumptions
from xectool.errors import CheckpointError
from xectool.models import build_model

SMALL: dict[str, Any] = {"encoder_dim": 32, "num_fusion_layers": 1}
OWN = {"regressor": {"hidden_dim": 8}, "mae": {"decoder_dim": 8}, "inpainter": {}}
PREFIX = {"regressor": "backbone.", "mae": "encoder.", "inpainter": "encoder."}


def _config(kind: str, normalization: dict[str, Any] | None = None, **model: Any) -> RunConfig:
    return KINDS[kind](model=SMALL | OWN[kind] | model, normalization=normalization or {})


@pytest.fixture(scope="module")
def mae() -> Checkpoint:
    cfg = _config("mae")
    torch.manual_seed(1)
    weights = dict(build_model(cfg).state_dict())
    average = {name: value + 1 if value.is_floating_point() else value for name, value in weights.items()}
    return Checkpoint({"kind": "mae", "config": cfg.to_dict()}, weights, average)


def _encoder(model: nn.Module, kind: str) -> dict[str, Tensor]:
    prefix = PREFIX[kind]
    return {name.removeprefix(prefix): v for name, v in model.state_dict().items() if name.startswith(prefix)}


@pytest.mark.parametrize("kind", ["regressor", "inpainter"])
def test_the_averaged_encoder_arrives_and_nothing_else_changes(kind: str, mae: Checkpoint) -> None:
    cfg = _config(kind)
    model = build_model(cfg)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = transfer_encoder(mae, cfg, model)
    for name, value in _encoder(model, kind).items():
        assert torch.equal(value, mae.ema[f"encoder.{name}"])
    others = [name for name in before if not name.startswith(PREFIX[kind])]
    assert all(torch.equal(before[name], model.state_dict()[name]) for name in others)
    assert report.weights == "ema"


def test_the_report_accounts_for_every_tensor(mae: Checkpoint) -> None:
    cfg = _config("regressor")
    model = build_model(cfg)
    report = transfer_encoder(mae, cfg, model)
    assert len(report.loaded) + len(report.left_out) == len(mae.ema)
    assert set(report.loaded) | set(report.fresh) == {name for name, _ in model.named_parameters()}
    assert report.loaded_parameters + report.fresh_parameters == sum(p.numel() for p in model.parameters())
    assert report.left_out["encoder.hex_edge_index"] == "index table, computed from the geometry"
    assert report.left_out["dec_inner.linear.weight"] == "not part of the mae's encoder"
    text = "\n".join(report.lines())
    assert "of the mae's encoder loaded into the regressor, ema weights" in text
    assert "new: heads (48 tensors)" in text


def test_raw_weights_are_taken_where_no_average_exists(mae: Checkpoint) -> None:
    cfg = _config("inpainter")
    model = build_model(cfg)
    assert transfer_encoder(replace(mae, ema={}), cfg, model).weights == "model"
    assert torch.equal(_encoder(model, "inpainter")["pos_embed"], mae.model["encoder.pos_embed"])


def test_an_encoder_also_moves_from_a_regressor(mae: Checkpoint) -> None:
    cfg = _config("regressor")
    weights = dict(build_model(cfg).state_dict())
    target = _config("inpainter")
    model = build_model(target)
    report = transfer_encoder(Checkpoint({"kind": "regressor", "config": cfg.to_dict()}, weights), target, model)
    assert report.source == "regressor"
    assert torch.equal(_encoder(model, "inpainter")["pos_embed"], weights["backbone.pos_embed"])


@pytest.mark.parametrize(
    ("normalization", "model", "key"),
    [
        ({"npho_scale": 900.0}, {}, "normalization.npho_scale"),
        ({"npho_scheme": "sqrt"}, {}, "normalization.npho_scheme"),
        ({"time_shift": 0.0}, {}, "normalization.time_shift"),
        ({"sentinel_npho": -2.0}, {}, "normalization.sentinel_npho"),
        ({"below_domain": "zero"}, {}, "normalization.below_domain"),
        ({}, {"geometry": "compat"}, "model.geometry"),
        ({}, {"outer_mode": "split"}, "model.outer_mode"),
        ({}, {"outer_fine_pool": [3, 3]}, "model.outer_fine_pool"),
        ({}, {"encoder_dim": 64}, "model.encoder_dim"),
        ({}, {"dim_feedforward": 100}, "model.dim_feedforward"),
        ({}, {"num_fusion_layers": 2}, "model.num_fusion_layers"),
    ],
)
def test_another_view_of_the_event_is_refused_with_its_key(
    normalization: dict[str, Any], model: dict[str, Any], key: str, mae: Checkpoint
) -> None:
    cfg = _config("inpainter", normalization, **model)
    network = build_model(cfg)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(CheckpointError, match=f"--set {key}=") as failure:
        transfer_encoder(mae, cfg, network)
    assert key in failure.value.problem
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_all_differing_keys_are_named_together(mae: Checkpoint) -> None:
    cfg = _config("inpainter", {"sentinel_time": -5.0}, outer_fine_pool=[5, 3])
    fix = r"--set normalization.sentinel_time=-1.0 --set model.outer_fine_pool=null"
    with pytest.raises(CheckpointError, match=fix) as failure:
        transfer_encoder(mae, cfg, build_model(cfg))
    assert "model.outer_fine_pool null (here [5,3])" in failure.value.problem


def test_the_default_width_inside_the_transformer_equals_its_number(mae: Checkpoint) -> None:
    cfg = _config("inpainter", dim_feedforward=128)
    assert transfer_encoder(mae, cfg, build_model(cfg)).loaded


@pytest.mark.parametrize("prefix", ["module.encoder.", "backbone.", ""])
def test_a_wrong_prefix_is_refused_with_the_one_found(prefix: str, mae: Checkpoint) -> None:
    weights = {name.replace("encoder.", prefix, 1): value for name, value in mae.model.items()}
    cfg = _config("regressor")
    with pytest.raises(CheckpointError, match=r"checkpoint_best.pt") as failure:
        transfer_encoder(replace(mae, model=weights, ema={}), cfg, build_model(cfg))
    assert f"no encoder under 'encoder.', but one under '{prefix}'" in failure.value.problem


def test_an_unknown_kind_is_refused(mae: Checkpoint) -> None:
    cfg = _config("regressor")
    with pytest.raises(CheckpointError, match="did you mean 'mae'"):
        transfer_encoder(replace(mae, meta=mae.meta | {"kind": "maee"}), cfg, build_model(cfg))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda w: w.pop("encoder.backbone.stem.0.bias"), "backbone.stem.0.bias missing"),
        (lambda w: w.update({"encoder.extra": torch.zeros(1)}), "extra unexpected"),
        (lambda w: w.update({"encoder.pos_embed": torch.zeros(1, 7, 32)}), r"pos_embed \(1, 7, 32\) \(here"),
        (lambda w: w.update({"encoder.hex_edge_index": torch.zeros(3, 439).long()}), "of another geometry"),
    ],
)
def test_weights_that_contradict_their_configuration_are_refused(change: Any, problem: str, mae: Checkpoint) -> None:
    weights = dict(mae.model)
    change(weights)
    cfg = _config("regressor")
    with pytest.raises(CheckpointError, match="as training wrote it") as failure:
        transfer_encoder(replace(mae, model=weights, ema={}), cfg, build_model(cfg))
    assert failure.match(problem)


@pytest.mark.parametrize(
    ("section", "stored"),
    [("normalization", {"npho_floor": 1.0}), ("model", {"encoder_dim": "wide"}), ("normalization", None)],
)
def test_a_configuration_that_cannot_be_read_is_refused(section: str, stored: Any, mae: Checkpoint) -> None:
    cfg = _config("regressor")
    meta = mae.meta | {"config": mae.config | {section: stored}}
    with pytest.raises(CheckpointError, match="does not say how its encoder sees events"):
        transfer_encoder(replace(mae, meta=meta), cfg, build_model(cfg))


def test_an_older_autoencoder_reaches_an_older_inpainter(reference_dir: Path) -> None:
    checkpoint = store.load(reference_dir / "checkpoints" / "mae_small_checkpoint_best_stripped.pth")
    settings = {"encoder_dim": 64, "num_fusion_layers": 2, "geometry": "compat"}
    cfg = _config("inpainter", {"below_domain": "zero"}, **settings)
    model = build_model(cfg)
    report = transfer_encoder(checkpoint, cfg, model)
    assert (report.weights, len(report.loaded)) == ("ema", 131)
    said = "the file does not tell normalization.npho_threshold"
    assert f"{said}: it is taken to be as this run says" in report.lines()
    other = _config("inpainter", {"below_domain": "zero", "npho_threshold": 50.0}, **settings)
    assert transfer_encoder(checkpoint, other, build_model(other)).loaded == report.loaded
    (note,) = assumptions(checkpoint.meta, "mae.pth")
    assert note.problem.startswith(f"{said}: 100.0")
    scaled = _config("inpainter", {"below_domain": "zero", "npho_scale": 50.0}, **settings)
    with pytest.raises(CheckpointError, match=r"npho_scale 1000\.0 \(here 50\.0\)"):
        transfer_encoder(checkpoint, scaled, build_model(scaled))
    assert torch.equal(_encoder(model, "inpainter")["pos_embed"], checkpoint.ema["encoder.pos_embed"])
