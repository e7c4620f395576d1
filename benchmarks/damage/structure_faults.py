"""Faults of files, trees and branches: DAT-01 to DAT-06."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import awkward as ak
import numpy as np
import uproot
from xectool.rootio.writer import TreeWriter

from benchmarks.damage.catalogue import Question, case
from benchmarks.damage.lab import LIGHT, Lab, event_place, flip, words_of
from benchmarks.diagnosis.files import Rows

BASKET = 20
KEY_BYTES = 100  # of the head of a basket, at most
TOP_OF_EXPONENT = 0x40
STRANGERS = {
    "an empty file": (b"", "empty"),
    "a text file": (b"run,event,energy\n1,2,3\n" * 9, "text"),
    "a web page": (b"<!DOCTYPE html><html><body>please log in</body></html>", "web page"),
    "an LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "LFS"),
    "nothing but zeros": (bytes(5000), "zero"),
    "an HDF5 file": (b"\x89HDF\r\n\x1a\n" + bytes(500), "HDF5"),
}


def check(lab: Lab, damaged: Path, *place: str, named: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> Question:
    """Ask for a deep check of a damaged file among good ones; the file has to be named."""
    words = words_of("check-data", "--deep", *options, files=lab.among_good(damaged))
    return Question(words, (str(damaged), *place), named)


def _stranger(name: str, content: bytes, word: str) -> None:
    @case(f"{name} named .root", "data", "DAT-01")
    def build(lab: Lab) -> Question:
        path = lab.directory / lab.good.train[lab.victim].name
        path.write_bytes(content)
        return check(lab, path, named=(word,))


for stranger, (content, word) in STRANGERS.items():
    _stranger(stranger, content, word)


def _cut(name: str, low: float, high: float, **options: str) -> None:
    @case(f"truncated to {name}", "data", "DAT-01")
    def build(lab: Lab) -> Question:
        path = lab.write(lab.rows(), **options)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(lab.rng.uniform(low, high) * len(whole))])
        return check(lab, path, named=("truncated",))


_cut("1 to 30 %", 0.01, 0.3)
_cut("30 to 95 %", 0.3, 0.95)
_cut("all but its last bytes", 0.9995, 0.9999)
_cut("20 to 90 %, an RNTuple", 0.2, 0.9, format="rntuple")


def _flipped(kind: str, compression: str, digest: bool, **options: str) -> None:
    @case(f"a flipped bit in a basket, {kind}{', with recorded hashes' if digest else ''}", "data", "DAT-02")
    def build(lab: Lab) -> Question:
        branch = lab.choose(["npho", "relative_time"])
        path = lab.write(lab.rows(), basket=0 if options else BASKET, compression=compression, **options)
        if digest:
            lab.run("check-data", path, "--deep", "--write-digest")
        index, units = lab.drawn_basket(path, branch)
        share = lab.rng.uniform(0.05, 0.95)
        offset = int(units.offset[index] + KEY_BYTES + share * (units.num_bytes[index] - KEY_BYTES))
        flip(path, offset, 1 << int(lab.rng.integers(8)))
        return check(lab, path, f"branch {branch}", f"entries [{units.start[index]}, {units.stop[index]})")


_flipped("zlib", "zlib:1", digest=False)
_flipped("lz4", "lz4:4", digest=False)
_flipped("lzma", "lzma:1", digest=False)
_flipped("zlib", "zlib:1", digest=True)
_flipped("zstd", "zstd:5", digest=True)
_flipped("not compressed", "none", digest=True)
_flipped("zlib, an RNTuple", "zlib:1", digest=False, format="rntuple")
_flipped("zstd, an RNTuple", "zstd:5", digest=True, format="rntuple")


@case("the top bit of an exponent in a plain basket", "data", "DAT-02")
def exponent(lab: Lab) -> Question:
    rows = lab.rows()
    entry, sensor = lab.entry(rows), lab.sensor(rows)
    path = lab.write(rows, basket=BASKET, compression="none")
    _, units = lab.drawn_basket(path, "npho")
    index = int(np.searchsorted(units.stop, entry, side="right"))
    window = rows["npho"][entry, sensor : sensor + 4].astype(">f4").tobytes()
    at = path.read_bytes().index(window, int(units.offset[index]))
    flip(path, at, TOP_OF_EXPONENT)
    return check(lab, path, *event_place(path, "npho", rows, entry, sensor))


@case("the second half of a basket is zeros", "data", "DAT-02")
def zeroed(lab: Lab) -> Question:
    path = lab.write(lab.rows(), basket=BASKET)
    index, units = lab.drawn_basket(path, "relative_time")
    data, half = bytearray(path.read_bytes()), int(units.num_bytes[index]) // 2
    data[units.offset[index] + half : units.offset[index] + units.num_bytes[index]] = bytes(
        int(units.num_bytes[index]) - half
    )
    path.write_bytes(data)
    return check(lab, path, "branch relative_time", f"entries [{units.start[index]}, {units.stop[index]})")


@case("two baskets that changed places", "data", "DAT-02")
def swapped(lab: Lab) -> Question:
    path = lab.write(lab.rows(), basket=BASKET, compression="none")
    first, units = lab.drawn_basket(path, "npho")
    second = (first + 1) % (len(units) - 1)  # the last basket is shorter
    first %= len(units) - 1
    data = bytearray(path.read_bytes())
    parts = [slice(int(units.offset[i]), int(units.offset[i] + units.num_bytes[i])) for i in (first, second)]
    data[parts[0]], data[parts[1]] = data[parts[1]], data[parts[0]]
    path.write_bytes(data)
    return check(lab, path, "branch npho", f"entries [{units.start[min(first, second)]},")


@case("a basket that counts other entries", "data", "DAT-02")
def miscounted(lab: Lab) -> Question:
    rows = lab.rows()
    path = lab.write(rows, basket=BASKET)
    index, units = lab.drawn_basket(path, "energyTruth")
    data, offset = path.read_bytes(), int(units.offset[index])
    at = offset + struct.unpack_from(">h", data, offset + 14)[0] - 9  # fNevBuf, fLast and a flag byte end the key
    path.write_bytes(data[:at] + struct.pack(">i", int(lab.rng.integers(1, 15))) + data[at + 4 :])
    return check(lab, path, "branch energyTruth", f"entries [{units.start[index]}, {units.stop[index]})")


def _reading(name: str, branch: str, low: float, high: float) -> None:
    @case(name, "data", "DAT-02")
    def build(lab: Lab) -> Question:
        rows = lab.rows()
        entry, sensor = lab.entry(rows), lab.sensor(rows)
        bright = np.flatnonzero((rows["npho"][entry] > 200) & (rows["npho"][entry] < LIGHT))
        sensor = sensor if branch == "npho" else int(lab.choose(bright))
        rows[branch][entry, sensor] = np.exp(lab.rng.uniform(np.log(low), np.log(high)))
        path = lab.write(rows)
        return check(lab, path, *event_place(path, branch, rows, entry, sensor))


_reading("a photon number no sensor delivers", "npho", 1e8, 1e9)
_reading("a time of 10 ms to 1 s", "relative_time", 0.01, 1.0)


@case("the tree has another name", "data", "DAT-03")
def other_tree(lab: Lab) -> Question:
    name = lab.choose(["events", "rec", "XEC"])
    path = lab.write(lab.rows(), tree=name)
    return check(lab, path, named=(name,))


@case("a foreign file of histograms", "data", "DAT-03")
def foreign(lab: Lab) -> Question:
    path = lab.directory / lab.good.train[lab.victim].name
    with uproot.recreate(path) as file:
        file["energy"] = np.histogram(lab.rng.normal(size=500), bins=20)
    return check(lab, path)


def _branches(name: str, code: str, branch: str, change: Callable[[Lab, Rows], object], *words: str) -> None:
    @case(name, "data", code)
    def build(lab: Lab) -> Question:
        path = lab.spoil(lambda rows: change(lab, rows))
        options = ("--config", str(lab.good.config)) if "config" in words else ()
        return check(lab, path, f"branch {branch}", options=options)


_branches("no branch of photons", "DAT-04", "npho", lambda lab, rows: rows.pop("npho"))
_branches("no branch of times", "DAT-04", "relative_time", lambda lab, rows: rows.pop("relative_time"))
_branches("no run numbers", "DAT-04", "run", lambda lab, rows: rows.pop("run"))
_branches("no truth of a task", "DAT-04", "energyTruth", lambda lab, rows: rows.pop("energyTruth"), "config")
_branches(
    "photons as whole numbers", "DAT-04", "npho",
    lambda lab, rows: rows.update(npho=np.clip(rows["npho"], -1000, 1e6).astype("i4")),
)  # fmt: skip
_branches(
    "4700 to 4759 sensors", "DAT-05", "npho",
    lambda lab, rows: rows.update(npho=rows["npho"][:, : int(lab.rng.integers(4700, 4760))]),
)  # fmt: skip
_branches(
    "a position of two numbers", "DAT-05", "uvwTruth", lambda lab, rows: rows.update(uvwTruth=rows["uvwTruth"][:, :2])
)


@case("readings of varying width", "data", "DAT-05")
def jagged(lab: Lab) -> Question:
    rows = lab.rows()
    path = lab.directory / lab.good.train[lab.victim].name
    widths = lab.rng.integers(4500, 4761, len(rows["run"]))
    values = ak.unflatten(
        np.concatenate([row[:width] for row, width in zip(rows["npho"], widths, strict=True)]), widths
    )
    specs = {name: (array.dtype, array.shape[1:]) for name, array in rows.items()} | {"npho": "var * float32"}
    with TreeWriter(path, specs) as writer:
        writer.extend({name: values if name == "npho" else array for name, array in rows.items()})
    return check(lab, path, "branch npho")


@case("a tree without entries", "data", "DAT-06")
def empty(lab: Lab) -> Question:
    path = lab.write({name: values[:0] for name, values in lab.rows().items()})
    return check(lab, path)


@case("fewer events than a batch", "data", "DAT-06")
def few(lab: Lab) -> Question:
    options = ("--set", f"data.batch_size={lab.rng.integers(2000, 9000)}", "--set", "data.drop_last=true")
    words = words_of("check-data", "--config", lab.good.config, *options, files=lab.good.train)
    return Question(words, named=("data.batch_size",))
