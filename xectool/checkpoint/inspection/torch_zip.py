"""Archives of ``torch.save``, TorchScript and ``torch.export``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xectool.checkpoint.inspection.archive import Archive, DamagedArchive, Entry, Problem
from xectool.checkpoint.inspection.archive_digest import archive_changes
from xectool.checkpoint.inspection.contents import Contents
from xectool.checkpoint.inspection.embedded import globals_behind, globals_of, hidden_globals
from xectool.checkpoint.inspection.opcodes import read_pickle
from xectool.checkpoint.inspection.rebuild import StorageOf, dtype_of_storage
from xectool.checkpoint.inspection.sniff import archive_of
from xectool.checkpoint.inspection.symbols import BadTensor, StorageRef, item_size
from xectool.checkpoint.inspection.torch_export import read_export, root_of
from xectool.checkpoint.inspection.tree import Opaque
from xectool.checkpoint.inspection.trust import UnsafeGlobal
from xectool.checkpoint.inspection.window import Content, unreadable

_SCRIPT_MODULES = ("__torch__", "torch.jit._pickle")
_VERSION_OFFSET_LIMIT = 64


def read_zip(content: Content) -> Contents:
    """Read an archive of torch.

    Raises:
        CheckpointError: It is truncated, or an archive of something else.
    """
    try:
        archive = Archive(content.data)
    except DamagedArchive as error:
        raise unreadable(content.path, f"cannot read the checkpoint: {error}") from error
    names = [entry.name for entry in archive.entries]
    exported = root_of(names)
    if exported is not None:
        return read_export(content, archive, exported)
    root = _root(names)
    if root is None:
        raise unreadable(content.path, *archive_of(names))
    is_script = f"{root}constants.pkl" in archive.by_name
    allowed = _SCRIPT_MODULES if is_script else ()
    out = Contents(content.path, "torchscript" if is_script else "torch-zip", content.sha256, content.size_bytes)
    out.problems += [*archive.problems, *archive.verify()]
    out.checksums = _protection(archive, content)
    out.facts = _facts(archive, root, names)
    _read_tree(out, archive, root, allowed)
    out.unsafe += _elsewhere(archive, root, allowed)
    if is_script:
        out.changed = archive_changes(archive)
        parts = {"code_files": f"{root}code/", "extra_files": f"{root}extra/"}
        found = {key: sorted(name for name in names if name.startswith(start)) for key, start in parts.items()}
        out.facts = {**out.facts, **found}
        out.problems += _without_code(out.payload, root, archive)
    return out


def _without_code(payload: Any, root: str, archive: Archive) -> Iterator[Problem]:
    """Yield the file with the code of a script's own class where it is gone: the program cannot be run."""
    if isinstance(payload, Opaque) and payload.name.startswith("__torch__."):
        module = payload.name.rpartition(".")[0].replace(".", "/")
        if f"{root}code/{module}.py" not in archive.by_name:
            problem = f"the code of {payload.name} is missing from the archive"
            yield Problem(problem, f"{root}code/{module}.py")


def _root(names: list[str]) -> str | None:
    """Return what stands before ``data.pkl``, the folder of the archive; None without one."""
    found = sorted((name for name in names if name == "data.pkl" or name.endswith("/data.pkl")), key=len)
    return found[0].removesuffix("data.pkl") if found else None


def _protection(archive: Archive, content: Content) -> str:
    if content.packing:
        return f"{content.packing} checksum and CRC of {len(archive.entries)} entries"
    return f"CRC of {len(archive.entries)} entries" if archive.has_checksums else ""


def _facts(archive: Archive, root: str, names: list[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"entries": len(names)}
    for key in ("version", "byteorder", ".format_version", ".data/serialization_id"):
        entry = archive.by_name.get(f"{root}{key}")
        if entry is not None and entry.size <= _VERSION_OFFSET_LIMIT:
            facts[key.lstrip(".")] = _text(archive, entry)
    return facts


def _text(archive: Archive, entry: Entry) -> str:
    try:
        return bytes(archive.read(entry)).decode("ascii", "replace").strip()
    except ValueError:
        return ""


def _read_tree(out: Contents, archive: Archive, root: str, allowed: tuple[str, ...]) -> None:
    entry = archive.by_name[f"{root}data.pkl"]
    big_endian = out.facts.get("byteorder") == "big"
    try:
        data = archive.read(entry)
    except ValueError:
        return  # verify() has said it
    found = read_pickle(data, storage_of=_storages(archive, root, out.problems, big_endian))
    if found.problem:
        out.problems.append(Problem(f"{entry.name} is damaged: {found.problem}", entry.place))
    elif found.end < len(data):
        out.problems.append(Problem(f"{len(data) - found.end} bytes follow the end of {entry.name}", entry.place))
    base = entry.start if not entry.method else None
    out.unsafe += globals_of(found, entry.name, base, 0, allowed)
    out.unsafe += globals_behind(data, found.end, entry.name, base, allowed)
    out.fill(found.value)


def _storages(archive: Archive, root: str, problems: list[Problem], big_endian: bool) -> StorageOf:
    """Return the look-up of persistent ids ``("storage", type, key, device, elements)``."""
    known: dict[str, StorageRef] = {}

    def storage_of(identity: Any) -> StorageRef | None:
        if not (isinstance(identity, tuple) and len(identity) >= 5 and identity[0] == "storage"):
            return None
        key, count = str(identity[2]), identity[4]
        if key not in known:
            dtype = dtype_of_storage(identity[1])
            known[key] = _storage(archive, f"{root}data/{key}", dtype, str(identity[3]), count)
            known[key].key, known[key].big_endian = key, big_endian
            _check_size(known[key], problems)
        return known[key]

    return storage_of


def _storage(archive: Archive, name: str, dtype: str, device: str, count: Any) -> StorageRef:
    entry = archive.by_name.get(name)
    elements = count if isinstance(count, int) else -1
    ref = StorageRef(name, dtype, device, elements, where=name)
    if entry is not None:
        ref.where = entry.place
        try:
            ref.data = archive.read(entry)
        except ValueError:
            ref.data = None
    return ref


def _check_size(ref: StorageRef, problems: list[Problem]) -> None:
    if ref.data is None:
        problems.append(Problem(f"the bytes of storage {ref.key} are missing from the archive", ref.where))
        return
    try:
        expected = ref.num_elements * item_size(ref.dtype)
    except BadTensor as error:
        problems.append(Problem(f"storage {ref.key}: {error}", ref.where, "K07"))
        return
    if expected != len(ref.data):
        problem = f"storage {ref.key} has {len(ref.data)} bytes; {ref.num_elements} x {ref.dtype} are {expected}"
        problems.append(Problem(problem, ref.where))


def _elsewhere(archive: Archive, root: str, allowed: tuple[str, ...]) -> Iterator[UnsafeGlobal]:
    """Yield the unsafe names in every other entry; only raw tensor bytes are left out."""
    for entry in archive.entries:
        is_tensor = (
            entry.name.startswith((f"{root}data/", f"{root}constants/")) and entry.name.rsplit("/")[-1].isdigit()
        )
        is_tree = entry is archive.by_name.get(f"{root}data.pkl")
        if is_tensor or is_tree:
            continue
        try:
            content = archive.read(entry)
        except ValueError:
            continue
        yield from hidden_globals(content, entry.name, entry.start if not entry.method else None, 1, allowed)
