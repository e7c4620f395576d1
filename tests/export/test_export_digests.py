"""TorchScript and ``.pt2`` that were edited with right checksums of the archive: found, located, and not run."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xectool import engine
from xectool.checkpoint.inspection.archive_digest import DESCRIPTION, DIGESTS_FILE, PROMISE
from xectool.errors import CheckpointError
from xectool.export.formats import FORMATS

Edit = Callable[[str, bytes], bytes | None]


def edited(source: Path, target: Path, edit: Edit) -> Path:
    """Copy an archive; ``edit`` takes name and bytes of an entry and gives those to write, or None for none."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            data = edit(entry.filename, old.read(entry))
            if data is not None:
                new.writestr(entry, data)
    return target


def largest(path: Path, ending: str = "") -> str:
    with zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(ending) or f"/{ending}" in info.filename]
        return max(infos, key=lambda info: info.file_size).filename


def one_bit(name: str) -> Edit:
    """Change the lowest bit of a mantissa, in the middle of an entry."""

    def edit(entry: str, data: bytes) -> bytes:
        if entry != name:
            return data
        middle = len(data) // 8 * 4
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]

    return edit


@pytest.fixture(scope="session")
def pt2(make_sample: Callable[..., Any]) -> Path:
    exported: Path = make_sample("regressor.pt2", "regressor", {}).path
    return exported


def test_x15_an_edited_weight_or_description_is_found_located_and_not_run(
    script_regressor: Any, tmp_path: Path
) -> None:
    for ending in ("data/", "xectool.json"):
        name = largest(script_regressor.path, ending)
        path = edited(script_regressor.path, tmp_path / "edited.pt", one_bit(name))
        found = engine.inspect_ckpt(path)
        assert (found.is_bad, found.content_digest) == (True, "does not hold")
        assert any(name in item.where and item.code == "K02" for item in found.findings), found.findings
        with pytest.raises(
            CheckpointError, match=f"does not match the digest[\\s\\S]*entry {name}[\\s\\S]*xectool export"
        ):
            FORMATS["torchscript"].open(path)


def test_x15_edited_code_is_found_located_and_not_run(script_regressor: Any, tmp_path: Path) -> None:
    def relu_less(entry: str, data: bytes) -> bytes:
        return data.replace(b"torch.relu(", b"torch.tanh(").replace(b"torch.gelu(", b"torch.tanh(")

    path = edited(script_regressor.path, tmp_path / "edited.pt", relu_less)
    found = [item for item in engine.inspect_ckpt(path).findings if "/code/__torch__/" in item.where]
    assert found
    assert all(item.fix.startswith("xectool export CKPT") for item in found)
    with pytest.raises(CheckpointError, match=r"not what was exported: entry .*/code/__torch__/"):
        FORMATS["torchscript"].open(path)


def test_x15_an_entry_that_was_added_or_is_gone_is_found(script_regressor: Any, tmp_path: Path) -> None:
    path = edited(script_regressor.path, tmp_path / "more.pt", lambda _, data: data)
    root = largest(path).partition("/")[0]
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{root}/code/__torch__/more.py", "x = 1\n")
    assert any("code/__torch__/more.py" in item.problem for item in engine.inspect_ckpt(path).findings)
    path = edited(path, tmp_path / "less.pt", lambda name, data: None if name.endswith("/version") else data)
    assert any("version, which is gone" in item.problem for item in engine.inspect_ckpt(path).findings)


def test_x15_an_edited_weight_of_a_pt2_is_found_and_located(pt2: Path, tmp_path: Path) -> None:
    assert engine.inspect_ckpt(pt2).content_digest == "verified"
    name = largest(pt2, "data/weights/")
    path = edited(pt2, tmp_path / "edited.pt2", one_bit(name))
    found = engine.inspect_ckpt(path)
    assert found.is_bad
    assert any(name in item.where and item.code == "K02" for item in found.findings), found.findings
    with pytest.raises(CheckpointError, match="does not match the digest"):
        FORMATS["pt2"].open(path)


def test_x15_an_export_before_there_were_digests_is_read_and_said_to_be_not_verified(
    script_regressor: Any, pt2: Path, tmp_path: Path
) -> None:
    def older(name: str, data: bytes) -> bytes | None:
        if name.endswith(DESCRIPTION):
            data = json.dumps({key: text for key, text in json.loads(data).items() if key not in PROMISE}).encode()
        return None if DIGESTS_FILE in name else data

    assert engine.inspect_ckpt(script_regressor.path).content_digest == "verified"
    for name, source in (("torchscript", script_regressor.path), ("pt2", pt2)):
        path = edited(source, tmp_path / source.name, older)
        found = engine.inspect_ckpt(path)
        assert (found.is_bad, found.content_digest) == (False, "not verified: none is stored"), found.findings
        FORMATS[name].open(path)


def test_x15_digests_that_were_taken_out_are_missed(script_regressor: Any, pt2: Path, tmp_path: Path) -> None:
    for name, source in (("torchscript", script_regressor.path), ("pt2", pt2)):
        path = edited(source, tmp_path / source.name, lambda name, data: None if DIGESTS_FILE in name else data)
        found = engine.inspect_ckpt(path)
        assert (found.is_bad, found.content_digest) == (True, "does not hold")
        assert any(f"{DIGESTS_FILE}, which is gone" in item.problem for item in found.findings), found.findings
        with pytest.raises(CheckpointError, match=f"{DIGESTS_FILE}, which is gone"):
            FORMATS[name].open(path)


@pytest.mark.parametrize("name", ["onnx", "torchscript", "pt2", "safetensors"])
def test_no_file_an_empty_one_and_a_folder_are_refused_by_every_format(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "empty", tmp_path / "folder", tmp_path / "missing"):
        with pytest.raises(CheckpointError, match=f"{path}"):
            FORMATS[name].open(path)
