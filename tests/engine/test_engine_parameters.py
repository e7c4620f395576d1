"""``inspect-ckpt`` counts the parameters that ``train`` counts, and says which parts of two files are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.cli import boundary
from xectool.cli.app import app
from xectool.config.load import config_from_dict
from xectool.models.build import build_model

SIZES = {"encoder_dim": 32, "num_fusion_layers": 1, "outer_fine_pool": [5, 3]}


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, torch.nn.Module]:
    config = config_from_dict({"kind": "inpainter", "model": {**SIZES, "head_type": "cross_attention"}}, "test")
    network = build_model(config)
    path = tmp_path / "a.pt"
    store.save(path, Checkpoint({"kind": "inpainter", "config": config.to_dict()}, dict(network.state_dict())))
    return path, network


def test_buffers_are_no_parameters(saved: tuple[Path, torch.nn.Module], capsys: pytest.CaptureFixture[str]) -> None:
    path, network = saved
    result = engine.inspect_ckpt(path)
    buffers = sum(value.numel() for value in network.buffers() if value.is_floating_point())
    assert buffers, "the control: there is something to count wrongly"
    assert result.parameters == sum(value.numel() for value in network.parameters())
    boundary.run(app, ["inspect-ckpt", str(path)])
    assert f"{result.parameters:,} (and {result.buffers:,} in buffers)" in " ".join(capsys.readouterr().err.split())


def test_of_a_file_that_describes_no_network_all_numbers_are_counted_and_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = torch.nn.BatchNorm1d(3)
    torch.save({"state_dict": network.state_dict()}, tmp_path / "other.pt")
    assert engine.inspect_ckpt(tmp_path / "other.pt").buffers is None
    boundary.run(app, ["inspect-ckpt", str(tmp_path / "other.pt")])
    assert "numbers in weights" in capsys.readouterr().err


def test_two_files_say_which_parts_are_identical(
    saved: tuple[Path, torch.nn.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    path, network = saved
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    changed = [name for name, value in network.named_parameters() if not name.startswith("encoder.")]
    for name in changed:
        weights[name] += 1.0
    other = path.with_name("b.pt")
    store.save(other, Checkpoint(store.load(path).meta, weights))
    result = engine.inspect_ckpt(path, compare_with=other)
    parts = {part.name: (part.same, part.tensors) for part in result.parts}
    frozen = sum(name.startswith("encoder.") for name in weights)
    assert parts["encoder"] == (frozen, frozen)
    assert sum(tensors - same for same, tensors in parts.values()) == len(changed)
    assert result.compared == len(weights) - len(changed)
    assert boundary.run(app, ["inspect-ckpt", str(path), "--compare", str(other)]) == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert f"encoder {frozen} of {frozen} equal" in shown
    same = result.verdict.partition(f": {len(changed)}, none in ")[2].split(", ")
    assert same == [part.name for part in result.parts if part.same == part.tensors]
    assert "encoder" in same
