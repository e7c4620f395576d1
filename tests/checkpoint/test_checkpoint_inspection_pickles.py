"""A pickle that runs code never runs, and every name it asks for is listed with its place."""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import io
import lzma
import os
import pickle
import pickletools
import struct
import tarfile
import time
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.checkpoint import store
from xectool.checkpoint.inspection.opcodes import read_pickle
from xectool.checkpoint.inspection.tree import resolve
from xectool.engine.inspection import CheckpointInspected
from xectool.errors import CheckpointError

Inspect = Callable[..., CheckpointInspected]


class Runs:
    """Runs a command when it is unpickled."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def payloads(marker: Path) -> dict[str, bytes]:
    """Pickles that touch a file, each by another way to reach a function."""
    command = f"touch {marker}"
    shell = text(command) + b"\x85R"
    return {
        "reduce": pickle.dumps(Runs(os.system, command)),
        "protocol 0": f"cos\nsystem\n(S'{command}'\ntR.".encode(),
        "stack_global": b"\x80\x04" + text("os") + text("system") + b"\x93" + shell + b".",
        "memo": b"\x80\x04" + text("os") + b"q\x00" + text("system") + b"q\x010" + b"0h\x00h\x01\x93" + shell + b".",
        "inst": f"(S'{command}'\nios\nsystem\n.".encode(),
        "obj": b"(cos\nsystem\n" + text(command) + b"o.",
        "newobj": b"\x80\x02csubprocess\nPopen\n(" + text(command) + b"K\xffNNNNKtR.",
        "build": b"\x80\x02ctypes\nSimpleNamespace\n)R}" + text("x") + b"cos\nsystem\n" + shell + b"sb.",
        "computed name": b"\x80\x04" + text("os") + b"cbuiltins\nstr\n" + text("system") + b"\x85R\x93" + shell + b".",
        "thrown away": b"\x80\x02cos\nsystem\n" + shell + b"0}.",
        "broken afterwards": b"\x80\x02cos\nsystem\n" + shell + b"\xff\xff",
        "eval": pickle.dumps(Runs(eval, f"__import__('os').system({command!r})")),
        "getattr": b"\x80\x02cbuiltins\ngetattr\ncos\n__dict__\n" + text("system") + b"\x86R" + shell + b".",
        "dotted": b"\x80\x04" + text("torch._utils") + text("os.system") + b"\x93" + shell + b".",
        "partial": pickle.dumps(Runs(functools.partial(os.system, command))),
        "nested": pickle.dumps(Runs(pickle.loads, pickle.dumps(Runs(os.system, command)))),
        "extension": b"\x80\x02\x82\x01)R.",
        "protocol 0 by name": b"\x80\x00cos\nsystem\n" + shell + b".",
        "torch.load": b"\x80\x02ctorch\nload\n" + shell + b".",
    }


NAMES = sorted(payloads(Path("marker")))


def in_checkpoint(content: bytes, entry: str = "archive/data.pkl") -> bytes:
    """Return a torch archive whose description, or another entry, is replaced."""
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(6.0)}, buffer)
    out = io.BytesIO()
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(out, "w") as target:
        for info in source.infolist():
            target.writestr(info.filename, content if info.filename == entry else source.read(info.filename))
        if entry not in source.namelist():
            target.writestr(entry, content)
    return out.getvalue()


def refused(result: CheckpointInspected) -> bool:
    return result.is_bad and any(found.code == "K03" for found in result.findings)


BITES = sorted(set(NAMES) - {"extension", "torch.load", "getattr", "dotted", "newobj", "partial"})


@pytest.mark.parametrize("name", BITES)
def test_the_payload_bites_a_loader_that_trusts_it(name: str, tmp_path: Path) -> None:
    """The control: these really run when they are unpickled, also those that end in an error."""
    marker = tmp_path / "ran"
    with contextlib.suppress(pickle.UnpicklingError, TypeError, AttributeError):
        pickle.loads(payloads(marker)[name])
    for _ in range(6000):  # a subprocess takes a moment
        if marker.exists():
            break
        time.sleep(0.01)
    assert marker.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_in_a_plain_pickle_never_runs(name: str, tmp_path: Path, inspected: Inspect) -> None:
    marker = tmp_path / "ran"
    assert refused(inspected(payloads(marker)[name], "weights.pkl"))
    assert not marker.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_in_a_checkpoint_never_runs(name: str, tmp_path: Path, inspected: Inspect) -> None:
    marker = tmp_path / "ran"
    result = inspected(in_checkpoint(payloads(marker)[name]))
    assert refused(result)
    assert result.unsafe_globals[0].entry == "archive/data.pkl"
    assert not any(item.possible for item in result.fit_for)
    assert not marker.exists()


def packed(content: bytes, way: str) -> bytes:
    """Return bytes inside an archive."""
    out = io.BytesIO()
    if way == "zip":
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inner.pkl", content)
    elif way == "tar":
        with tarfile.open(fileobj=out, mode="w") as archive:
            info = tarfile.TarInfo("inner.pkl")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    else:
        out.write({"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[way](content))
    return out.getvalue()


@pytest.mark.parametrize("way", ["zip", "tar", "gzip", "bz2", "xz"])
def test_a_payload_hidden_in_a_nested_archive_is_listed(way: str, tmp_path: Path, inspected: Inspect) -> None:
    marker = tmp_path / "ran"
    inner = packed(packed(payloads(marker)["reduce"], way), "zip")
    result = inspected(in_checkpoint(inner, "archive/extra/notes.bin"))
    assert refused(result)
    assert "archive/extra/notes.bin > " in result.unsafe_globals[0].entry
    assert not marker.exists()


def test_a_second_description_is_read_too_and_called_ambiguous(tmp_path: Path, inspected: Inspect) -> None:
    content = io.BytesIO(in_checkpoint(pickle.dumps({}, protocol=2)))
    with zipfile.ZipFile(content, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("archive/data.pkl", payloads(tmp_path / "ran")["reduce"])
    result = inspected(content.getvalue())
    assert refused(result)
    assert any("2 entries are called archive/data.pkl" in found.problem for found in result.findings)


def legacy() -> bytes:
    out = io.BytesIO()
    torch.save({"a": torch.arange(6.0)}, out, _use_new_zipfile_serialization=False)
    return out.getvalue()


BEFORE: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda late: pickle.dumps({"a": 1}, protocol=2) + late,
    "twenty others": lambda late: pickle.dumps({"a": 1}) * 20 + late,
    "legacy": lambda late: legacy() + late,
    "description": lambda late: in_checkpoint(pickle.dumps({"a": 1}, protocol=2) + late),
}


@pytest.mark.parametrize("way", BEFORE)
@pytest.mark.parametrize("name", ["reduce", "protocol 0", "broken afterwards"])
def test_a_payload_behind_a_sound_pickle_is_listed(way: str, name: str, tmp_path: Path, inspected: Inspect) -> None:
    """One that loads what follows, too, runs it: two calls of ``pickle.load`` do."""
    marker = tmp_path / "ran"
    result = inspected(BEFORE[way](payloads(marker)[name]), "late.pt")
    assert refused(result)
    assert {item.name for item in result.unsafe_globals} <= {"posix.system", "os.system"}
    assert not marker.exists()
    for sound in (b"", pickle.dumps({"b": 2}), b"cat\nis no pickle", b"\x80\x04junk"):  # the controls
        assert not inspected(BEFORE[way](sound), "sound.pt").unsafe_globals


@pytest.mark.parametrize("packing", ["archive", "deflated", "legacy", "second entry"])
def test_what_loads_a_checkpoint_says_that_it_is_unsafe_not_damaged(packing: str, tmp_path: Path) -> None:
    """PyTorch lists the names of its own archives only."""
    marker, path = tmp_path / "ran", tmp_path / "nested.pt"
    payload = payloads(marker)["reduce"]
    if packing == "legacy":
        path.write_bytes(payload)
    elif packing == "archive":
        path.write_bytes(in_checkpoint(payload))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packing == "deflated" else zipfile.ZIP_STORED) as out:
            out.writestr("archive/data.pkl", payload)
            out.writestr("archive/version", "3\n")
            out.writestr("archive/inner.pt", in_checkpoint(payload))
    with pytest.raises(CheckpointError, match=r"would run code when loaded.*posix\.system") as caught:
        store.load(path)
    assert caught.value.code == "XT-CKPT-UNSAFE"
    path.write_bytes(in_checkpoint(b"\x80\x02}q"))  # the control: broken, and harmless
    with pytest.raises(CheckpointError, match="damaged") as caught:
        store.load(path)
    assert caught.value.code == "XT-CKPT-CORRUPT"
    assert not marker.exists()


def test_bytes_inside_a_pickle_are_looked_into(tmp_path: Path, inspected: Inspect) -> None:
    result = inspected(pickle.dumps({"blob": payloads(tmp_path / "ran")["stack_global"]}), "a.pkl")
    assert result.unsafe_globals[0].name in ("os.system", "posix.system")
    assert result.unsafe_globals[0].entry.endswith("bytes")


def test_the_offset_in_the_file_points_at_the_opcode(tmp_path: Path, inspected: Inspect) -> None:
    content = in_checkpoint(payloads(tmp_path / "ran")["protocol 0"])
    found = inspected(content).unsafe_globals[0]
    assert (found.name, found.offset) == ("os.system", 0)
    assert found.file_offset is not None
    assert content[found.file_offset :].startswith(b"cos\nsystem\n")


def test_the_offset_counts_the_pickles_before_it_in_a_legacy_file(tmp_path: Path, inspected: Inspect) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(2), "b": Runs(os.system, "true")}, buffer, _use_new_zipfile_serialization=False)
    content = buffer.getvalue()
    result = inspected(content, "legacy.pth")
    assert refused(result)
    assert result.container == "torch-legacy"
    place = result.unsafe_globals[0].file_offset
    assert place is not None
    assert content[place:].startswith(b"cposix\nsystem\n")


def test_values_of_other_libraries_are_a_warning_and_the_weights_stay_readable(inspected: Inspect) -> None:
    import numpy as np

    buffer = io.BytesIO()
    torch.save({"state_dict": {"a": torch.ones(3)}, "loss": np.float64(1.5), "path": Path("/x")}, buffer)
    result = inspected(buffer.getvalue())
    assert not result.is_bad
    assert [found.severity.value for found in result.findings if found.code == "K03"] == ["warning"]
    assert result.parameters == 3


def test_a_whole_module_is_not_built_but_its_weights_are_seen(inspected: Inspect) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    buffer = io.BytesIO()
    torch.save(network, buffer)
    result = inspected(buffer.getvalue(), tensors=True)
    assert refused(result)
    assert result.kind == "torch.nn.modules.container.Sequential"
    assert result.parameters == sum(v.numel() for v in network.state_dict().values() if v.is_floating_point())
    assert "state_dict" in result.next


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=6)
    | st.binary(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(PLAIN, st.integers(0, 5))
def test_plain_values_are_read_as_python_reads_them(value: Any, protocol: int) -> None:
    content = pickle.dumps(value, protocol)
    found = read_pickle(memoryview(content))
    assert found.problem == ""
    assert found.end == len(content)
    assert resolve(found.value).payload == value


def test_shared_and_ordered_dictionaries_keep_their_content() -> None:
    shared = [1, 2]
    value = OrderedDict([("b", shared), ("a", shared), ("c", {"d": (shared, None)})])
    found = resolve(read_pickle(memoryview(pickle.dumps(value))).value).payload
    assert list(found) == ["b", "a", "c"]
    assert found["c"]["d"] == ([1, 2], None)


def test_a_list_inside_itself_ends() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert len(resolve(read_pickle(memoryview(pickle.dumps(loop))).value).payload) == 1


def test_a_structure_that_doubles_itself_sixty_times_ends() -> None:
    content = b"\x80\x02]q\x00" + b"".join(
        b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(60)
    )
    found = resolve(read_pickle(memoryview(content + b".")).value)
    assert any("repeats itself" in problem.what for problem in found.problems)


@pytest.mark.parametrize(
    "opcode", [b"X\xff\xff\xff\x7f", b"\x8d" + b"\xff" * 8, b"\x8e" + b"\x7f" * 8, b"\x8b\xff\xff\xff\x7f"]
)
def test_a_length_beyond_the_file_takes_no_memory(opcode: bytes, inspected: Inspect) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(CheckpointError):
            assert inspected(b"\x80\x04" + opcode + b"abc", "a.pkl").is_bad
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_every_opcode_of_python_has_a_meaning_here() -> None:
    from xectool.checkpoint.inspection.opcodes import _HANDLERS

    silent = {"PROTO", "FRAME", "READONLY_BUFFER"}
    assert {opcode.name for opcode in pickletools.opcodes} - set(_HANDLERS) == silent
