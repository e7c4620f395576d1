"""Files that claim to be more than they are: few bytes that inflate to gigabytes, counts that no page stands behind."""

from __future__ import annotations

import ctypes
import io
import lzma
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pytest
import uproot
import xxhash
from xectool.checks.probing import probe
from xectool.config.data import DataConfig
from xectool.data.source import open_source
from xectool.errors import DataFileError
from xectool.rootio.files import open_errors
from xectool.rootio.inflate import INFLATE_ERRORS, inflate_range, require_bounded

SIZE = 64 << 20
ALLOWED = 16 << 20
CLAIMED = 1000
Rows = dict[str, np.ndarray]


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) * 1024


def grown_by(action: Callable[[], object]) -> int:
    """Return by how much the largest resident memory grew; what other tests freed is given back first."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    action()
    return peak_bytes() - before


def zeros(algorithm: str) -> bytes:
    """Return 64 MiB of zeros as the body of one of ROOT's blocks."""
    pieces = [bytes(1 << 20)] * (SIZE >> 20)
    if algorithm == "L4":
        packed = bytes(cramjam.lz4.compress_block(b"".join(pieces), store_size=False))
        return xxhash.xxh64_intdigest(packed).to_bytes(8, "big") + packed
    maker: Any = {
        "ZL": lambda: zlib.compressobj(6),
        "CS": lambda: zlib.compressobj(6, wbits=-15),
        "XZ": lambda: lzma.LZMACompressor(preset=0),
        "ZS": lambda: cramjam.zstd.Compressor(level=3),
    }[algorithm]()
    out = b"".join(bytes(maker.compress(piece) or b"") for piece in pieces) if algorithm != "ZS" else b""
    if algorithm == "ZS":
        for piece in pieces:
            maker.compress(piece)
        return bytes(maker.finish())
    return out + bytes(maker.flush())


def block(algorithm: str, body: bytes, size: int = CLAIMED) -> bytes:
    return algorithm.encode() + b"\x01" + len(body).to_bytes(3, "little") + size.to_bytes(3, "little") + body


@pytest.fixture(scope="module")
def bombs() -> dict[str, bytes]:
    return {algorithm: block(algorithm, zeros(algorithm)) for algorithm in ("ZL", "CS", "L4", "ZS", "XZ")}


@pytest.mark.parametrize("algorithm", ["ZL", "CS", "L4", "ZS", "XZ"])
def test_a_block_never_inflates_beyond_what_it_says(bombs: dict[str, bytes], algorithm: str) -> None:
    def inflate() -> None:
        with pytest.raises(INFLATE_ERRORS):
            inflate_range(bombs[algorithm], 0, CLAIMED)

    assert grown_by(inflate) < ALLOWED


def test_without_a_bound_it_would(bombs: dict[str, bytes]) -> None:
    """The control: what the libraries make of the same bytes."""
    assert grown_by(lambda: lzma.decompress(bombs["XZ"][9:])) > 3 * ALLOWED
    assert grown_by(lambda: cramjam.zstd.decompress(bombs["ZS"][9:], output_len=CLAIMED)) > 3 * ALLOWED


@pytest.mark.parametrize("algorithm", ["XZ", "ZS", "ZL"])
def test_uproot_inflates_nothing_that_is_not_bounded(bombs: dict[str, bytes], algorithm: str) -> None:
    """Metadata, and branches of variable length, are inflated by uproot."""
    body = zeros(algorithm) * (1 + (300_000 if algorithm == "ZL" else 60_000) // len(bombs[algorithm]))
    data = np.frombuffer(block(algorithm, body), np.uint8)
    source = uproot.source.file.MemmapSource  # only its name is asked for
    chunk = uproot.source.chunk.Chunk.wrap(source, data)

    def inflate() -> None:
        with pytest.raises(open_errors()):
            uproot.compression.decompress(chunk, uproot.source.cursor.Cursor(0), {}, len(data), CLAIMED)

    assert grown_by(inflate) < ALLOWED


def test_few_bytes_that_claim_to_be_gigabytes_are_refused() -> None:
    with pytest.raises(ValueError, match="claim to hold 2147483647"):
        require_bounded(memoryview(block("XZ", b"abc") * 100), 2**31 - 1)


def test_a_basket_of_a_bomb_is_found(
    bombs: dict[str, bytes], rows: Rows, write: Any, check: Any, tmp_path: Path
) -> None:
    path = write(tmp_path / "bomb.root", rows, compression="zstd:1")
    units = probe(str(path)).branches["npho"].units
    content = bytearray(path.read_bytes())
    at = content.find(b"ZS", int(units.offset[-1]))
    content[at : at + 2] = b"XZ"
    content[at + 9 : at + 9 + len(bombs["XZ"]) - 9] = bombs["XZ"][9:]
    path.write_bytes(content)
    reports: list[Any] = []
    assert grown_by(lambda: reports.append(check(path))) < 4 * ALLOWED  # the blocks of readings take some
    (found,) = [item for item in reports[0].findings if item.severity.value == "error"]
    assert found.code == "DAT-02"
    assert "branch npho entries" in found.where


LIES = {"no entry": 0, "one more": 121, "too many": 2**31 - 1, "beyond all": 2**40}


def test_counts_that_no_page_stands_behind_are_refused(good_rows: Rows, write: Any, check: Any, tmp_path: Path) -> None:
    """The number of entries of the only cluster, and that of the numbers of a page, replaced in the page list."""
    honest = write(tmp_path / "honest.root", good_rows, format="rntuple", compression="none").read_bytes()
    paths = []
    for name, lie in LIES.items():
        at = honest.find(struct.pack("<q", 120))
        content = io.BytesIO(honest)
        content.seek(at)
        content.write(struct.pack("<q", lie))
        paths.append(tmp_path / f"cluster {name}.root")
        paths[-1].write_bytes(content.getvalue())
        numbers = honest.find(struct.pack("<i", 120 * 4760), at)
        content = io.BytesIO(honest)
        content.seek(numbers)
        content.write(struct.pack("<i", min(lie * 4760, 2**31 - 1)))
        paths.append(tmp_path / f"page {name}.root")
        paths[-1].write_bytes(content.getvalue())
    report = check(*paths, deep=True, time_limit_s=60.0)
    for path in paths:
        errors = [item for item in report.findings if item.severity.value == "error" and str(path) in item.where]
        assert errors, path
        assert {item.code for item in errors} <= {"DAT-01", "DAT-02", "DAT-06"}
        with pytest.raises(DataFileError, match="is damaged"):
            open_source(DataConfig(), [str(path)], (), require_truth=False)
