"""Faults of the bytes and of the content of checkpoints: K01 to K20."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from xectool.checkpoint import format
from xectool.checkpoint.seals import seals

from benchmarks.damage.catalogue import Question, case
from benchmarks.damage.lab import Lab, flip, words_of
from benchmarks.damage.structure_faults import STRANGERS

KINDS = ("regressor", "mae", "inpainter")
SECTIONS = ("meta", "model", "ema", "training")
UNREADABLE = "XT-CKPT-CORRUPT"  # K01 in the answer of a file that is no checkpoint
Payload = dict[str, Any]


def ask_of(path: Path, *place: str, named: tuple[str, ...] = (), options: tuple[object, ...] = ()) -> Question:
    """Ask what a checkpoint is."""
    return Question(words_of("inspect-ckpt", path, *options), place, named)


def _bytes(name: str, code: str, content: Callable[[Lab, bytes], bytes], *named: str) -> None:
    @case(name, "checkpoints", code)
    def build(lab: Lab) -> Question:
        path = lab.directory / "checkpoint.pt"
        path.write_bytes(content(lab, lab.good.checkpoints[lab.choose(KINDS)].read_bytes()))
        return ask_of(path, "checkpoint.pt", named=named)


def _zip(**entries: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return out.getvalue()


def _cut(low: float, high: float) -> Callable[[Lab, bytes], bytes]:
    return lambda lab, content: content[: int(lab.rng.uniform(low, high) * len(content))]


for stranger, (content, word) in STRANGERS.items():
    said = {"a web page": "HTML"}.get(stranger, word)
    _bytes(f"{stranger} named .pt", UNREADABLE, lambda lab, _, content=content: content, said)
_bytes(
    "a zip of something else", UNREADABLE, lambda lab, _: _zip(**{"readme.txt": b"hello"}), "zip archive of something"
)
_bytes("a NumPy archive", UNREADABLE, lambda lab, _: _zip(**{"a.npy": b"\x93NUMPY"}), "NumPy")
_bytes("a ROOT file named .pt", UNREADABLE, lambda lab, _: lab.good.val.read_bytes(), "ROOT")
_bytes("checkpoint cut to 1 to 30 %", UNREADABLE, _cut(0.01, 0.3), "truncated")
_bytes("checkpoint cut to 30 to 95 %", UNREADABLE, _cut(0.3, 0.95), "truncated")
_bytes("checkpoint without its last bytes", UNREADABLE, _cut(0.9995, 0.9999), "truncated")
_bytes(
    "checkpoint without its first bytes", UNREADABLE, lambda lab, b: b[int(lab.rng.integers(10, 5000)) :], "beginning"
)


def _span(path: Path, lab: Lab, suffix: str = "") -> tuple[str, int, int]:
    """Return the name, the first byte and the size of a drawn entry of an archive that holds a tensor of some size."""
    with zipfile.ZipFile(path) as archive:
        held = [info for info in archive.infolist() if "/data/" in info.filename and info.file_size > 256]
        info = lab.choose(held)
        content, whole = archive.read(info), path.read_bytes()
    return info.filename, whole.index(content, info.header_offset), len(content)


@case("a flipped bit in a tensor", "checkpoints", "K02")
def bit(lab: Lab) -> Question:
    path = lab.copied(lab.choose(KINDS))
    name, start, size = _span(path, lab)
    flip(path, start + int(lab.rng.integers(size)), 1 << int(lab.rng.integers(8)))
    return ask_of(path, f"bytes {start} to {start + size}", named=(name,))


@case("zeros in the middle of a tensor", "checkpoints", "K02")
def zeros(lab: Lab) -> Question:
    path = lab.copied(lab.choose(KINDS))
    name, start, size = _span(path, lab)
    data, first = bytearray(path.read_bytes()), start + size // 4
    data[first : first + size // 2] = bytes(size // 2)
    path.write_bytes(data)
    return ask_of(path, f"bytes {start} to {start + size}", named=(name,))


@case("a flipped bit in safetensors of ours", "checkpoints", "K02")
def safetensors_bit(lab: Lab) -> Question:
    path = lab.directory / "checkpoint.safetensors"
    lab.run("export", lab.good.checkpoints[lab.choose(KINDS)], "--to", "safetensors", "--output", path)
    data = path.read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    flip(path, int(lab.rng.integers(length, len(data))), 1 << int(lab.rng.integers(8)))
    return ask_of(path, "bytes", named=("model.",))


@case("a file other than its .sha256 says", "checkpoints", "K02")
def sidecar(lab: Lab) -> Question:
    path = lab.copied(lab.choose(KINDS))
    other = hashlib.sha256(lab.rng.bytes(8)).hexdigest()
    path.with_name(f"{path.name}.sha256").write_text(f"{other}  {path.name}\n")
    return ask_of(path, f"{path.name}.sha256")


def _rezipped(name: str, code: str, change: Callable[[Lab, dict[str, bytes]], str]) -> None:
    """Register a change of the entries of the archive, whose checksums are then right."""

    @case(name, "checkpoints", code)
    def build(lab: Lab) -> Question:
        path = lab.copied(lab.choose(KINDS))
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename: archive.read(info) for info in archive.infolist()}
        named = change(lab, entries)
        with zipfile.ZipFile(path, "w") as archive:
            for entry, content in entries.items():
                archive.writestr(entry, content)
        return ask_of(path, named=(named,))


def _shortened(lab: Lab, entries: dict[str, bytes]) -> str:
    name = str(lab.choose([name for name in entries if "/data/" in name and len(entries[name]) > 256]))
    entries[name] = entries[name][: -4 * int(lab.rng.integers(1, 20))]
    return name.rpartition("/")[2]


def _other_device(_: Lab, entries: dict[str, bytes]) -> str:
    name = next(name for name in entries if name.endswith("data.pkl"))
    entries[name] = entries[name].replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cudb:0")
    return "cudb:0"


_rezipped("a tensor of fewer bytes than its shape", "K02", _shortened)
_rezipped("tensors of a device that is none", "K04", _other_device)


def _changed(
    name: str, code: str, change: Callable[[Lab, Payload], str], kinds: tuple[str, ...] = KINDS, **how: bool
) -> None:
    """Register a change of the content; the digest and the checksums of its parts are made to fit unless it is sealed.

    Args:
        name: What was done.
        code: Row that has to name it.
        change: Changes the payload and returns what has to be named.
        kinds: Kinds it can be done to.
        how: ``sealed`` leaves the digest as it was; ``notes`` takes a note for found.
    """

    @case(name, "checkpoints", code)
    def build(lab: Lab) -> Question:
        path = lab.copied(lab.choose(kinds))
        payload = torch.load(path, weights_only=True)
        named = change(lab, payload)
        content = {part: payload[part] for part in SECTIONS}
        fitting = {} if how.get("sealed") else {"digest": format.digest(content), "seals": seals(content)}
        torch.save(payload | fitting, path)
        return replace(ask_of(path, named=(named,)), notes=how.get("notes", False))


def weight_of(lab: Lab, payload: Payload, section: str = "model") -> str:
    """Return the name of a drawn weight matrix of a section."""
    held: dict[str, torch.Tensor] = payload[section]
    names = [name for name, value in held.items() if value.is_floating_point() and value.ndim >= 2 and len(value) > 1]
    return str(lab.choose([name for name in names if name.endswith("weight") and held[name].numel() > 200]))


def _value(value: Callable[[Lab], float], section: str = "model") -> Callable[[Lab, Payload], str]:
    def change(lab: Lab, payload: Payload) -> str:
        name = weight_of(lab, payload, section)
        place = tuple(int(lab.rng.integers(size)) for size in payload[section][name].shape)
        payload[section][name][place] = value(lab)
        return f"{name}{list(place)}" if abs(value(lab)) < torch.inf else name

    return change


def _replaced(make: Callable[[torch.Tensor], torch.Tensor], both: bool = False) -> Callable[[Lab, Payload], str]:
    def change(lab: Lab, payload: Payload) -> str:
        name = weight_of(lab, payload)
        for section in ("model", "ema") if both else ("model",):
            payload[section][name] = make(payload[section][name])
        return name

    return change


def _facts(change: Callable[[Payload], object], named: str) -> Callable[[Lab, Payload], str]:
    def run(lab: Lab, payload: Payload) -> str:
        meta = json.loads(payload["meta"])
        change(meta)
        payload["meta"] = json.dumps(meta)
        return named

    return run


def _state(change: Callable[[Lab, dict[int, Any], int], object], named: str = "") -> Callable[[Lab, Payload], str]:
    def run(lab: Lab, payload: Payload) -> str:
        states = payload["training"]["optimizer"]["state"]
        index = int(lab.choose([key for key, state in states.items() if state["exp_avg"].numel() > 20]))
        change(lab, states, index)
        return named or f"state.{index}"

    return run


def _wrapped(lab: Lab, payload: Payload) -> str:
    payload["model"] = {f"module.{name}": value for name, value in payload["model"].items()}
    return "module."


def _partly_wrapped(lab: Lab, payload: Payload) -> str:
    names = list(payload["model"])
    chosen = set(names[: int(lab.rng.integers(1, len(names) - 1))])
    payload["model"] = {f"_orig_mod.{k}" if k in chosen else k: v for k, v in payload["model"].items()}
    return "_orig_mod."


def _without(section: str) -> Callable[[Lab, Payload], str]:
    def change(lab: Lab, payload: Payload) -> str:
        name = weight_of(lab, payload)
        del payload[section][name]
        return name

    return change


def _table(lab: Lab, payload: Payload) -> str:
    tables = [name for name, value in payload["model"].items() if name.endswith(("hex_indices", "hex_edge_index"))]
    name = str(lab.choose(tables))
    for section in ("model", "ema"):
        payload[section][name] = payload[section][name].roll(int(lab.rng.integers(1, 5)))
    return name


def _head(lab: Lab, payload: Payload) -> str:
    for section in ("model", "ema"):
        name = "heads.energy.6.weight"
        payload[section][name] = torch.cat([payload[section][name]] * 2)
    return "energy"


_changed("a weight times 1.01, digest as it was", "K02", _replaced(lambda value: value * 1.01), sealed=True)
_changed("a NaN weight", "K08", _value(lambda lab: float("nan")))
_changed("an infinite weight", "K08", _value(lambda lab: float("-inf")))
_changed("a weight of 1e20", "K08", _value(lambda lab: 1e20))
_changed("a NaN in the average", "K08", _value(lambda lab: float("nan"), "ema"))
_changed("a weight of another shape", "K15", _replaced(lambda value: value.flatten(), both=True))
_changed("a weight as float16", "K15", _replaced(lambda value: value.half()))
_changed("a weight is gone", "K15", _without("model"))
_changed("a weight of zeros", "K09", _replaced(torch.zeros_like))
_changed("the average lacks a weight", "K09", _without("ema"))
_changed("the average is gone", "K09", lambda lab, payload: payload.update(ema={}) or "averaged weights are gone")
_changed("another kind than its weights", "K05", _facts(lambda meta: meta.update(kind="mae"), "mae"), ("regressor",))
_changed("no weights", "K05", lambda lab, payload: payload.update(model={}, ema={}) or "no weights")
_changed("all names wrapped by DDP inside its own file", "K06", _wrapped)
_changed("some names wrapped by compile", "K06", _partly_wrapped)
_changed("a negative mean of squares", "K10", _state(lambda lab, s, i: s[i]["exp_avg_sq"].view(-1)[3:4].fill_(-1.0)))
_changed("moments of one layer lost", "K10", _state(lambda lab, s, i: s.pop(i)))
_changed("a step counter too high", "K10", _state(lambda lab, s, i: s[i].update(step=torch.tensor(777.0))))
_changed("NaN moments", "K08", _state(lambda lab, s, i: s[i]["exp_avg"].fill_(float("nan"))))
_changed("a schedule of 0 steps", "K11", _facts(lambda meta: meta["schedule"].update(steps_per_epoch=0), "0 steps"))
_changed(
    "a gradient scale of NaN", "K12",
    lambda lab, payload: payload["training"].update(scaler={"scale": float("nan")}) or "scale",
)  # fmt: skip
_changed("random states gone", "K13", lambda lab, payload: payload["training"].pop("rng") and "rng")
_changed("a negative epoch", "K14", _facts(lambda meta: meta.update(epoch=-3), "-3"))
_changed(
    "another width in its configuration", "K15",
    _facts(lambda meta: meta["config"]["model"].update(encoder_dim=64), "the configuration gives"),
)  # fmt: skip
_changed("index tables of another geometry", "K16", _table)
_changed("a head as wide as another loss", "K17", _head, ("regressor",))
_changed(
    "another sentinel in its configuration", "K18",
    _facts(lambda meta: meta["config"]["normalization"].update(sentinel_time=-2.0), "other numbers"),
)  # fmt: skip
_changed(
    "a newer torch wrote it", "K19", _facts(lambda meta: meta["versions"].update(torch="99.1.0"), "99.1.0"), notes=True
)


def _held_against(name: str, *settings: str) -> None:
    """Register a configuration (K15) that does not fit a checkpoint; CFG-46 is how its keys are told."""

    @case(name, "checkpoints", "CFG-46")
    def build(lab: Lab) -> Question:
        options = [word for setting in settings for word in ("--set", setting)]
        keys = [setting.partition("=")[0] for setting in settings]
        path = lab.good.checkpoints["regressor"]
        return ask_of(path, keys[0], options=("--config", lab.good.config, *options))


_held_against("held against another normalisation", "normalization.npho_scale=900")
_held_against("held against another pooling", "model.outer_fine_pool=[3, 3]")
_held_against("held against another width", "model.encoder_dim=64")
_held_against("held against other tasks", "tasks.angle.enabled=true")
