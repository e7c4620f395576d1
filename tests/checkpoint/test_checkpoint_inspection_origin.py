"""K04 and K19: the devices tensors lay on, the versions that wrote a file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint, pack
from xectool.errors import CheckpointError
from xectool.findings import Finding


def moved(source: Path, target: Path, device: str) -> Path:
    """The same file, as it is when its tensors lay on a device."""
    told = b"X" + len(device).to_bytes(4, "little") + device.encode()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info).replace(b"X\x03\x00\x00\x00cpu", told))
    return target


def found(path: Path, code: str) -> list[Finding]:
    result = engine.inspect_ckpt(path)
    assert not result.is_bad
    return [finding for finding in result.findings if finding.code == code]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.save({"a": torch.ones(3), "b": torch.ones(2)}, tmp_path / "weights.pth")
    return tmp_path / "weights.pth"


def test_a_device_that_is_not_here_is_told(weights: Path, tmp_path: Path) -> None:
    (note,) = found(moved(weights, tmp_path / "moved.pth", "cuda:97"), "K04")
    assert (note.severity.value, note.where) == ("info", "a")
    assert note.problem == "saved on cuda:97, which is not here; the CPU takes it"
    assert note.fix == "torch.load('moved.pth', map_location='cpu', weights_only=True)"
    assert found(weights, "K04") == []


def test_of_a_checkpoint_of_ours_nothing_is_to_do_for_its_device(tmp_path: Path) -> None:
    store.save(tmp_path / "ours.pt", Checkpoint({"kind": "mae"}, {"w": torch.ones(2)}))
    (note,) = [
        finding
        for finding in engine.inspect_ckpt(moved(tmp_path / "ours.pt", tmp_path / "moved.pt", "xla:0")).findings
        if finding.code == "K04"
    ]
    assert note.fix.startswith("nothing to do")


def test_what_is_no_device_is_a_warning(weights: Path, tmp_path: Path) -> None:
    (warned,) = found(moved(weights, tmp_path / "moved.pth", "cudb:0"), "K04")
    assert (warned.severity.value, warned.where) == ("warning", "a")
    assert "'cudb:0', where tensors are said to have lain, is no device PyTorch knows" in warned.problem


def with_versions(path: Path, versions: Any) -> list[str]:
    store.save(path, Checkpoint({"kind": "mae", "versions": versions}, {"w": torch.ones(2)}))
    return [finding.problem for finding in engine.inspect_ckpt(path).findings if finding.code == "K19"]


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("xectool", "999.0.0", "written with xectool 999.0.0, newer than the one here (0"),
        ("torch", "99.1.0+cu999", "written with torch 99.1.0+cu999, newer than the one here"),
        ("python", "3.999.1", "written with python 3.999.1, newer than the one here"),
        ("torch", "yesterday", "the version of torch that wrote it is 'yesterday', which is no version"),
        ("torch", 3, "the version of torch that wrote it is '3', which is no version"),
    ],
)
def test_newer_and_strange_versions_are_named(tmp_path: Path, name: str, version: Any, told: str) -> None:
    (problem,) = with_versions(tmp_path / "ours.pt", {name: version})
    assert told in problem


def test_versions_that_are_none_at_all_are_named(tmp_path: Path) -> None:
    assert all("'garbage', which is no version" in problem for problem in with_versions(tmp_path / "o.pt", "garbage"))
    assert len(with_versions(tmp_path / "o.pt", "garbage")) == 3


@pytest.mark.parametrize("versions", [None, {}, {"torch": "1.13.1", "numpy": "1.0"}, {"torch": str(torch.__version__)}])
def test_older_versions_and_those_of_here_are_sound(tmp_path: Path, versions: Any) -> None:
    assert with_versions(tmp_path / "ours.pt", versions) == []


@pytest.mark.parametrize("version", [99, 0, -1, "1", True])
def test_a_format_version_that_is_none_is_refused(tmp_path: Path, version: Any) -> None:
    payload = pack(Checkpoint({"kind": "mae"}, {"w": torch.ones(2)})) | {"version": version}
    torch.save(payload, tmp_path / "ours.pt")
    assert any(
        f"format version {version} is not one" in f.problem for f in engine.inspect_ckpt(tmp_path / "ours.pt").findings
    )
    with pytest.raises(CheckpointError, match=f"version {version}"):
        store.load(tmp_path / "ours.pt")
