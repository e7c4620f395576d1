"""Checkpoints that were made to do harm: they are refused or described, at once and within the memory at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import digest
from xectool.errors import CheckpointError
from xectool.findings import Severity

NO_FACTS = ("[" * 100_000, "[1]", "null", "{", "")


def hostile(path: Path, **changed: Any) -> Path:
    """Write a checkpoint of ours with other sections; its digest is right, as whoever makes one up can see to."""
    store.save(path, store.Checkpoint({"kind": "mae"}, {"weight": torch.zeros(3)}, {}, {"optimizer": {}}))
    payload = torch.load(path, weights_only=True) | changed
    payload["digest"] = digest({name: payload.get(name) for name in ("meta", "model", "ema", "training")})
    torch.save(payload, path)
    return path


@pytest.mark.parametrize(
    "declared",
    [
        torch.zeros(1).expand(10**6, 10**7),
        torch.zeros(3, device="meta"),
        torch.sparse_coo_tensor([[0]], [1.0], (3,), check_invariants=True),
    ],
    ids=["40 TB over four bytes", "no numbers", "sparse"],
)
def test_numbers_that_are_not_in_the_file_are_not_made(tmp_path: Path, declared: torch.Tensor) -> None:
    path = hostile(tmp_path / "declared.pt")
    payload = torch.load(path, weights_only=True)
    torch.save(payload | {"training": {"optimizer": declared}}, path)
    with pytest.raises(CheckpointError, match="does not match the digest"):
        store.load_start(path)
    assert any(found.severity is Severity.ERROR for found in engine.inspect_ckpt(path).findings)


@pytest.mark.parametrize("meta", NO_FACTS, ids=lambda meta: meta[:6])
def test_facts_that_are_none_are_refused_though_the_digest_is_right(tmp_path: Path, meta: str) -> None:
    with pytest.raises(CheckpointError, match="facts in the checkpoint cannot be read"):
        store.load(hostile(tmp_path / "facts.pt", meta=meta))


def test_a_section_that_is_a_tensor_is_described(tmp_path: Path) -> None:
    report = engine.inspect_ckpt(hostile(tmp_path / "section.pt", training={"optimizer": torch.ones(3)}))
    assert "the optimizer state lacks" in " ".join(finding.problem for finding in report.findings)


def test_containers_without_end_have_a_digest() -> None:
    nested: Any = 1
    for _ in range(5000):
        nested = {"deeper": nested}
    assert digest(nested) != digest({"deeper": 1})


def test_a_graph_with_damaged_names_of_axes_is_described(tmp_path: Path) -> None:
    port = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 4])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [port], []))
    path = tmp_path / "axes.onnx"
    path.write_bytes(model.SerializeToString().replace(b"batch", b"\xffatch"))
    assert "ONNX" in engine.inspect_ckpt(path).format
