"""Archives and arrays with bits turned, parts cut off and parts replaced: read, or refused; never something else.

The damage is drawn until each error that Python's own readers are known to raise has been raised by one of them.
"""

from __future__ import annotations

import contextlib
import random
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.checkpoint.soundness import require_checksums
from xectool.config.rules.path import is_torchscript
from xectool.data.cache.tables import PreparedTables
from xectool.diagnosis.cases.incident_batch import outlier_lines
from xectool.engine.model_files import exported_format
from xectool.errors import XecError
from xectool.errors.unreadable import ARCHIVE_ERRORS
from xectool.export.pt2 import Pt2Format
from xectool.probes.instruments.minimal import load_batch

TRIES = 1500
READERS: dict[str, Callable[[Path], object]] = {
    "checksums": require_checksums,
    "checkpoint": store.load,
    "torchscript": is_torchscript,
    "format": exported_format,
    "pt2": Pt2Format.open,
    "batch": load_batch,
    "incident": lambda path: outlier_lines(path.parent, ()),
    "tables": lambda path: PreparedTables(path.parent).get("t", {}, lambda: {"a": np.zeros(3)}),
}


def archive(save: Callable[..., None] = np.savez) -> bytes:
    """Return small arrays as numpy writes them: a zip archive of members with headers of their own."""
    stream = BytesIO()
    save(stream, npho=np.arange(10.0), entry=np.zeros((2, 3), np.int32))
    return stream.getvalue()


def damaged(whole: bytes, chance: random.Random) -> bytes:
    data, how, place = bytearray(whole), chance.random(), chance.randrange(len(whole))
    if how < 0.6:
        data[place] ^= 1 << chance.randrange(8)
    elif how < 0.8:
        del data[place:]
    else:
        data[place : place + chance.randrange(1, 40)] = chance.randbytes(chance.randrange(40))
    return bytes(data)


@pytest.mark.parametrize("reader", READERS)
def test_damaged_archives_are_read_or_refused(tmp_path: Path, reader: str) -> None:
    path, whole, chance = tmp_path / "batch.npz", archive(), random.Random(len(reader))
    if reader == "tables":
        PreparedTables(tmp_path, writes=True).get("t", {}, lambda: {"a": np.zeros(3)})
        (path,) = tmp_path.glob("*.npz")
        whole = path.read_bytes()
    for data in (b"", *(damaged(whole, chance) for _ in range(TRIES))):
        path.write_bytes(data)
        with contextlib.suppress(XecError):
            READERS[reader](path)


def test_what_python_raises_on_such_bytes_is_more_than_it_documents() -> None:
    """The control: catching what the documentation names would let others through."""
    whole, chance, raised = archive(np.savez_compressed), random.Random(1), set[type[Exception]]()
    for _ in range(4 * TRIES):
        try:
            with zipfile.ZipFile(BytesIO(damaged(whole, chance))) as content:
                content.testzip()
        except ARCHIVE_ERRORS as error:
            raised.add(type(error))
    assert {zlib.error, EOFError, NotImplementedError} <= raised


def test_a_checkpoint_whose_bytes_are_gone_while_it_is_read_back_is_a_disk_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of the archive is whole, what it names is not: as where two write under one name."""

    def lose(read: Callable[..., bytes]) -> Callable[..., bytes]:
        return lambda file, *rest: read(file, *rest) and b""

    monkeypatch.setattr(zipfile._SharedFile, "read", lose(zipfile._SharedFile.read))
    with pytest.raises(store.DiskError, match="read back"):
        store.save(tmp_path / "a.pt", Checkpoint({"kind": "regressor", "config": {}}, {"w": torch.zeros(9)}))
    assert list(tmp_path.iterdir()) == []
