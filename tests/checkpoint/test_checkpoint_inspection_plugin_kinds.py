"""A checkpoint of a plugin's kind is read as one of the kind it is built on, but for what is the plugin's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.checkpoint.conftest import ours
from torch import nn
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.checkpoint.transfer import transfer_encoder
from xectool.config.root import KINDS, InpainterConfig, MaeConfig, RegressorConfig
from xectool.models import build_model
from xectool.models.build import MODELS


class MyRegressor(RegressorConfig):
    kind: Literal["mine"] = "mine"  # type: ignore[assignment]


class MyMae(MaeConfig):
    kind: Literal["mine"] = "mine"  # type: ignore[assignment]


class MyInpainter(InpainterConfig):
    kind: Literal["mine"] = "mine"  # type: ignore[assignment]


BUILT_ON: dict[str, Any] = {"regressor": MyRegressor, "mae": MyMae, "inpainter": MyInpainter}


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Checkpoint]:
    """Return a function that makes the checkpoint of a run whose kind, ``mine``, is built on one of ours."""

    def made(base: str, build: Callable[[Any], nn.Module] | None = None) -> Checkpoint:
        monkeypatch.setitem(KINDS, "mine", BUILT_ON[base])
        monkeypatch.setitem(MODELS._found, "mine", build or MODELS[base])
        return ours("mine")

    return made


@pytest.mark.parametrize("base", sorted(BUILT_ON))
def test_its_encoder_is_extracted_and_goes_into_another_network(
    base: str, mine: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    """It was refused: there was no encoder of this project in it (kind: mine)."""
    source, part = mine(base), tmp_path / "encoder.pt"
    store.save(tmp_path / "a.pt", source)
    result = engine.inspect_ckpt(tmp_path / "a.pt", extract="encoder", output=part)
    assert (result.kind, result.extracted, result.findings) == ("mine", str(part), ())
    (tuned,) = (item.why for item in result.fit_for if item.action == "fine-tune")
    assert tuned == "all weights into the same kind (mine), its encoder into any"
    config = KINDS["inpainter"](model={"encoder_dim": 32, "num_fusion_layers": 1})
    network = build_model(config)
    transfer_encoder(store.load(part), config, network)
    prefix = "backbone." if base == "regressor" else "encoder."
    assert torch.equal(network.state_dict()["encoder.pos_embed"], source.ema[f"{prefix}pos_embed"])


def test_what_it_lacks_for_a_resume_is_told(mine: Callable[..., Checkpoint], tmp_path: Path) -> None:
    source = mine("mae")
    del source.training["rng"]
    store.save(tmp_path / "a.pt", source)
    (finding,) = engine.inspect_ckpt(tmp_path / "a.pt").findings
    assert (finding.code, finding.problem) == ("K13", "no run can go on from it as it was: rng is missing")


def _deeper(config: Any) -> nn.Module:
    network = MODELS["regressor"](config)
    for name, head in list(network.heads.items()):  # type: ignore[operator, union-attr]
        network.heads[name] = nn.Sequential(head, nn.Identity())  # type: ignore[index, operator]
    return network


def test_its_heads_may_have_names_of_their_own_and_a_lost_one_is_told(
    mine: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    source = mine("regressor", _deeper)
    assert "heads.energy.0.6.weight" in source.model
    store.save(tmp_path / "a.pt", source)
    assert engine.inspect_ckpt(tmp_path / "a.pt").findings == ()
    for weights in (source.model, source.ema):
        for name in [name for name in weights if name.startswith("heads.energy.")]:
            del weights[name]
    store.save(tmp_path / "b.pt", source)
    assert {item.code for item in engine.inspect_ckpt(tmp_path / "b.pt").findings} >= {"K15"}
