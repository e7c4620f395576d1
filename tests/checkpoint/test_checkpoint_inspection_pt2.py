"""Models of ``torch.export``: recognised as what they are, damage and code in them found, nothing of them opened."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner
from xectool import engine
from xectool.cli.app import app
from xectool.errors import XecError

STORED = {"xectool.checkpoint": "runs/it's one/checkpoint_best.pt", "xectool.kind": "regressor"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).eval()
    path = tmp_path_factory.mktemp("pt2") / "m.pt2"
    program = torch.export.export(network, (torch.zeros(3, 4),))
    torch.export.save(program, path, extra_files={"xectool.json": json.dumps(STORED)})
    return path, {name: value.clone() for name, value in network.state_dict().items()}


def rewritten(path: Path, to: Path, changes: dict[str, bytes | None]) -> Path:
    """Write the archive again with the content of some entries changed, or left out where it is None."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w") as new:
        for entry in old.infolist():
            change = next((value for key, value in changes.items() if key in entry.filename), old.read(entry))
            if change is not None:
                new.writestr(entry.filename, change)
    return to


def test_a_sound_model_of_torch_export_is_named_with_its_weights(
    exported: tuple[Path, dict[str, torch.Tensor]],
) -> None:
    path, weights = exported
    found = engine.inspect_ckpt(path, tensors=True)
    assert found.findings == ()
    assert (found.format, found.kind, found.container) == ("torch.export", "graph", "torch-export")
    assert found.verdict == "a sound checkpoint: graph (torch.export)"
    assert {row.name: tuple(row.shape) for row in found.tensors} == {
        name: tuple(value.shape) for name, value in weights.items()
    }
    by_name = {row.name: row for row in found.tensors}
    assert by_name["0.weight"].minimum == pytest.approx(float(weights["0.weight"].min()))
    assert found.facts["metadata"] == STORED
    assert not any(item.possible for item in found.fit_for)
    assert found.next == """xectool export 'runs/it'"'"'s one/checkpoint_best.pt' --to onnx"""
    shown = CliRunner().invoke(app, ["inspect-ckpt", str(path), "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["status"] == "ok"


def test_damage_in_a_model_of_torch_export_is_located(
    exported: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    path, weights = exported
    content = bytearray(path.read_bytes())
    content[content.index(weights["0.weight"].numpy().tobytes()) + 9] ^= 2
    (tmp_path / "flip.pt2").write_bytes(content)
    flipped = engine.inspect_ckpt(tmp_path / "flip.pt2")
    assert flipped.is_bad
    assert flipped.verdict.startswith("damaged: graph")
    assert [found.code for found in flipped.findings] == ["K02"]
    assert "CRC mismatch in m/data/weights/weight_0" in flipped.findings[0].problem
    assert "xectool export CKPT" in flipped.findings[0].fix
    bad = weights["0.bias"].clone()
    bad[3] = float("nan")
    changes: dict[str, tuple[dict[str, bytes | None], str]] = {
        "no graph": ({"models/": None}, "the graph is missing"),
        "no weight": ({"weight_1": None}, "its bytes are missing"),
        "short": ({"weight_1": b"\0" * 8}, "needs 32 bytes"),
        "no json": ({"weights_config.json": b"{"}, "is no JSON object"),
        "odd": ({"weights_config.json": b'{"config": {"a": {"tensor_meta": {"dtype": 7}}}}'}, "is not described"),
        "nan": ({"weight_1": bad.numpy().tobytes()}, "not finite"),
    }
    for name, (change, expected) in changes.items():
        found = engine.inspect_ckpt(rewritten(path, tmp_path / f"{name}.pt2", change))
        assert found.is_bad, name
        assert any(expected in item.problem for item in found.findings), (name, found.findings)
    (tmp_path / "half.pt2").write_bytes(path.read_bytes()[:2000])
    with pytest.raises(Exception, match="truncated"):
        engine.inspect_ckpt(tmp_path / "half.pt2")


def test_code_in_a_model_of_torch_export_is_listed_and_never_run(
    exported: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    payload = b"cos\nmkdir\n(V" + str(tmp_path / "ran").encode() + b"\ntR."
    found = engine.inspect_ckpt(rewritten(exported[0], tmp_path / "x.pt2", {"sample_inputs/": payload}))
    assert [item.name for item in found.unsafe_globals] == ["os.mkdir"]
    assert found.findings[0].code == "K03"
    assert found.verdict.startswith("dangerous")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("cut", [1, 21, 100, 1500])
def test_a_model_of_torch_export_without_its_end_is_truncated_and_not_the_archive_inside_it(
    exported: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path, cut: int
) -> None:
    """Readers of zip files search the end backwards, and example inputs are an archive of their own near it."""
    content = exported[0].read_bytes()
    (tmp_path / "cut one.pt2").write_bytes(content[:-cut])
    with pytest.raises(XecError) as failed:
        engine.inspect_ckpt(tmp_path / "cut one.pt2")
    assert f"truncated after {len(content) - cut} bytes" in failed.value.problem
    assert ("of entry m/data/sample_inputs/model.pt at byte" in failed.value.problem) == (cut > 1)
    assert failed.value.fix.startswith(f"xectool export CKPT --output '{tmp_path}/cut one.pt2'")


def test_one_archive_after_the_other_is_not_truncated(
    exported: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    content = exported[0].read_bytes()
    (tmp_path / "two.pt2").write_bytes(2 * content)
    problems = [found.problem for found in engine.inspect_ckpt(tmp_path / "two.pt2").findings]
    assert f"{len(content)} bytes belong to no entry" in problems
