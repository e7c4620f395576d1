"""A flipped bit in an ONNX file of ours is found, and the part it lies in is named."""

from __future__ import annotations

import random
import re
from pathlib import Path

import onnx
import pytest
import torch
from tests.export.test_export_onnx_faults import TinyGraph, description, readings
from xectool import engine
from xectool.checkpoint.inspection.onnx_seals import SEALS_KEY, changed_parts
from xectool.errors import CheckpointError
from xectool.export import onnx_file
from xectool.export.onnx_file import OnnxFormat, OnnxRuntime

BYTES = re.compile(r"bytes (\d+) to (\d+)|byte (\d+)")


def written(path: Path) -> Path:
    OnnxFormat.write(TinyGraph(), description(), tuple(torch.from_numpy(value) for value in readings(3).values()), path)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("tiny") / "tiny.onnx")


def flipped(source: Path, target: Path, place: int, bit: int = 0) -> Path:
    content = bytearray(source.read_bytes())
    content[place] ^= 1 << bit
    target.write_bytes(content)
    return target


def problems(path: Path) -> list[str]:
    try:
        result = engine.inspect_ckpt(path)
    except CheckpointError as error:
        return [error.problem]
    return [f"{item.where}: {item.problem}" for item in result.findings if item.severity.value == "error"]


def test_every_flipped_bit_is_found_and_most_are_located(tiny: Path, tmp_path: Path) -> None:
    content, rng = tiny.read_bytes(), random.Random(4)
    model = onnx.load(tiny)
    name = max(model.graph.initializer, key=lambda item: len(item.raw_data)).name
    inside = 0
    for _ in range(60):
        place = rng.randrange(len(content))
        told = problems(flipped(tiny, tmp_path / "flipped.onnx", place, rng.randrange(8)))
        assert told, place
        spans = [tuple(int(part or 0) for part in found) for text in told for found in BYTES.findall(text)]
        inside += any(start <= place <= end for start, end, _ in spans)
    weight = content.index(max(model.graph.initializer, key=lambda item: len(item.raw_data)).raw_data)
    told = problems(flipped(tiny, tmp_path / "flipped.onnx", weight + 5))
    assert told[0].startswith(f"weight {name} (bytes ")
    assert inside > 50


def test_the_parts_that_stand_beside_the_graph_are_named(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    for mark, offset, label in (
        (b"xectool.units", 16, "metadata xectool.units"),
        (SEALS_KEY.encode(), len(SEALS_KEY) + 40, f"metadata {SEALS_KEY}"),
        (b"xectool.content_sha256", 30, "metadata xectool.content_sha256"),
        (b"MatMul", 1, "node "),
    ):
        told = problems(flipped(tiny, tmp_path / "flipped.onnx", content.index(mark) + offset))
        assert told[0].startswith(label), told
    with pytest.raises(CheckpointError, match="not what was exported: node"):
        OnnxRuntime(flipped(tiny, tmp_path / "flipped.onnx", content.index(b"MatMul") + 1))


def test_a_lost_part_and_weights_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "SINGLE_FILE_LIMIT", 1000)
    path = written(tmp_path / "large.onnx")
    assert problems(path) == []
    beside = path.with_name("large.onnx.data")
    sound = beside.read_bytes()
    flipped(beside, beside, len(sound) // 2)
    assert problems(path)[0].startswith("weight ")
    beside.write_bytes(sound)
    model = onnx.load(path, load_external_data=False)
    del model.graph.node[0]
    path.write_bytes(model.SerializeToString(deterministic=True))
    assert changed_parts(path, memoryview(path.read_bytes())) == ("parts that are gone (1)",)
