"""Pickles that would run a command (K03): each is listed, and none of them runs."""

from __future__ import annotations

import functools
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.damage.catalogue import Question, case
from benchmarks.damage.lab import Lab, words_of


class _Runs:
    """Runs a function when it is unpickled."""

    def __init__(self, function: Any, *given: Any) -> None:
        self.call = (function, given)

    def __reduce__(self) -> Any:
        return self.call


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _in_archive(description: bytes, whole: bytes) -> bytes:
    """Return a checkpoint whose description is replaced by a pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as source, zipfile.ZipFile(out, "w") as target:
        for info in source.infolist():
            is_description = info.filename.endswith("data.pkl")
            target.writestr(info.filename, description if is_description else source.read(info))
    return out.getvalue()


def _hostile(name: str, pickled: Callable[[str], bytes], plain: bool = False, named: str = "system") -> None:
    @case(name, "checkpoints", "K03")
    def build(lab: Lab) -> Question:
        marker, path = lab.directory / "it_ran", lab.directory / "checkpoint.pt"
        content = pickled(f"touch {marker}")
        whole = lab.good.checkpoints["mae"].read_bytes()
        path.write_bytes(content if plain else _in_archive(content, whole))
        return Question(words_of("inspect-ckpt", path), named=(named,), absent=(marker,))


def _stacked(command: str) -> bytes:
    return b"\x80\x04" + _text("os") + _text("system") + b"\x93" + _text(command) + b"\x85R."


def _nested(command: str) -> bytes:
    return pickle.dumps(_Runs(pickle.loads, pickle.dumps(_Runs(os.system, command))))


_hostile("os.system in a checkpoint", lambda command: pickle.dumps(_Runs(os.system, command)))
_hostile("os.system by names on the stack", _stacked)
_hostile("os.system, then broken", lambda command: _stacked(command)[:-1] + b"0\xff\xff")
_hostile("os.system in a plain pickle of protocol 0", lambda c: f"cos\nsystem\n(S'{c}'\ntR.".encode(), plain=True)
_hostile("eval", lambda c: pickle.dumps(_Runs(eval, f"__import__('os').system({c!r})")), named="eval")
_hostile("a pickle in a pickle", _nested, named="loads")
_hostile("functools.partial", lambda c: pickle.dumps(_Runs(functools.partial(os.system, c))), named="partial")


@case("a whole module in place of weights", "checkpoints", "K03")
def whole_module(lab: Lab) -> Question:
    path: Path = lab.directory / "checkpoint.pt"
    torch.save(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), path)
    return Question(words_of("inspect-ckpt", path), named=("Sequential",))
