"""Files of torch before 1.6: pickles one after another with the bytes of the tensors behind them, or a tar archive."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Sequence
from typing import Any, Final

from xectool.checkpoint.inspection.archive import Problem
from xectool.checkpoint.inspection.contents import Contents
from xectool.checkpoint.inspection.embedded import globals_behind, globals_of, tar_members
from xectool.checkpoint.inspection.opcodes import Pickle, read_pickle
from xectool.checkpoint.inspection.rebuild import dtype_of_storage
from xectool.checkpoint.inspection.sniff import GIVE_ANOTHER
from xectool.checkpoint.inspection.symbols import BadTensor, StorageRef, TensorRef, item_size
from xectool.checkpoint.inspection.trust import Trust, UnsafeGlobal
from xectool.checkpoint.inspection.window import Content, unreadable

MAGIC_NUMBER: Final = 0x1950A86A20F9469CFC6C  # torch.serialization.MAGIC_NUMBER
_TAR_PARTS = ("sys_info", "pickle", "storages", "tensors")
_JOBLIB: Final = "joblib.numpy_pickle."
_COUNT = struct.Struct("<q")


def read_pickles(content: Content) -> Contents:
    """Read a file that begins with a pickle: of torch before 1.6, or of anything else.

    Raises:
        CheckpointError: It is truncated.
    """
    data = content.data
    first = read_pickle(data)
    if first.value != MAGIC_NUMBER:
        return _plain(content, first)
    storages: dict[str, StorageRef] = {}
    heads = [first]
    for _ in range(2):  # protocol version, system
        heads.append(read_pickle(data, heads[-1].end))
    big_endian = isinstance(heads[2].value, dict) and heads[2].value.get("little_endian") is False
    tree = read_pickle(data, heads[2].end, storage_of=lambda identity: _storage(storages, identity, big_endian))
    keys = read_pickle(data, tree.end)
    out = Contents(content.path, "torch-legacy", content.sha256, content.size_bytes)
    out.checksums = f"{content.packing} checksum" if content.packing else ""
    for part in (*heads, tree, keys):
        out.unsafe += globals_of(part, "", 0 if not content.packing else None)
    damaged = next((part for part in (*heads, tree, keys) if part.problem), None)
    if damaged is not None:
        if damaged.end >= len(data):
            raise unreadable(content.path, f"the file is truncated after {len(data)} bytes, inside its description")
        out.problems.append(Problem(f"the description is damaged: {damaged.problem}", f"byte {damaged.start}"))
    else:
        _place_bytes(out, content, storages, keys)
    out.fill(tree.value)
    return out


def _plain(content: Content, found: Pickle) -> Contents:
    out = Contents(content.path, "pickle", content.sha256, content.size_bytes)
    out.checksums = f"{content.packing} checksum" if content.packing else ""
    base = 0 if not content.packing else None
    out.unsafe += [*globals_of(found, "", base), *globals_behind(content.data, found.end, "", base)]
    if any(item.name.startswith(_JOBLIB) for item in out.unsafe) and not _is_dangerous(out.unsafe):
        raise unreadable(content.path, "this is a joblib file of NumPy arrays, not a checkpoint", GIVE_ANOTHER)
    if found.problem and found.end >= len(content.data) and not out.unsafe:
        raise unreadable(content.path, f"the pickle is truncated after {len(content.data)} bytes ({found.problem})")
    if found.problem:
        out.problems.append(Problem(f"the pickle is damaged: {found.problem}", f"bytes 0 to {found.end}"))
    out.fill(found.value)
    return out


def _is_dangerous(found: Sequence[UnsafeGlobal]) -> bool:
    """Return whether a file asks for more than joblib's own arrays and plain values."""
    return any(item.trust != Trust.INERT.value and not item.name.startswith(_JOBLIB) for item in found)


def _storage(known: dict[str, StorageRef], identity: Any, big_endian: bool) -> StorageRef | None:
    """Return the storage of ``("storage", type, key, device, elements, view)``."""
    if not (isinstance(identity, tuple) and len(identity) >= 5 and identity[0] == "storage"):
        return None
    key, count = str(identity[2]), identity[4]
    if key not in known:
        dtype, elements = dtype_of_storage(identity[1]), count if isinstance(count, int) else -1
        known[key] = StorageRef(key, dtype, str(identity[3]), elements, where=f"storage {key}", big_endian=big_endian)
    return known[key]


def _place_bytes(out: Contents, content: Content, storages: dict[str, StorageRef], keys: Pickle) -> None:
    """Find the bytes of each storage: a count of elements, then the elements, in the order of the keys.

    Raises:
        CheckpointError: The file ends before they do.
    """
    at, data = keys.end, content.data
    for key in keys.value if isinstance(keys.value, list) else ():
        ref = storages.get(str(key))
        if ref is None:
            out.problems.append(Problem(f"storage {key} belongs to no tensor", f"byte {at}"))
            return
        if at + _COUNT.size > len(data):
            raise unreadable(content.path, f"the file is truncated after {len(data)} bytes, before storage {key}")
        (count,) = _COUNT.unpack_from(data, at)
        start = at + _COUNT.size
        try:
            end = start + count * item_size(ref.dtype)
        except BadTensor as error:
            out.problems.append(Problem(f"storage {key}: {error}", f"byte {at}", "K07"))
            return
        ref.where = f"storage {key}, bytes {start} to {end}"
        if count < 0 or count != ref.num_elements:
            out.problems.append(
                Problem(f"storage {key} says {count} elements, its tensor {ref.num_elements}", f"byte {at}")
            )
            return
        if end > len(data):
            raise unreadable(
                content.path, f"the file is truncated after {len(data)} bytes; storage {key} ends at byte {end}"
            )
        ref.data, at = data[start:end], end
    if at < len(data):
        out.problems.append(Problem(f"{len(data) - at} bytes follow the last tensor", f"byte {at}"))
        out.unsafe += globals_behind(data, at, "", 0 if not content.packing else None)


def read_tar(content: Content) -> Contents:
    """Read a tar archive of torch before 0.1.10.

    Raises:
        CheckpointError: It is damaged, or a tar archive of something else.
    """
    try:
        members = tar_members(content.data)
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        raise unreadable(content.path, f"the tar archive is truncated or damaged: {error}") from error
    if not set(_TAR_PARTS) <= members.keys():
        shown = ", ".join(sorted(members)[:4]) or "nothing"
        problem = f"this is a tar archive of something else, not a checkpoint; it holds {shown}"
        raise unreadable(content.path, problem, "tar xf FILE")
    out = Contents(content.path, "torch-tar", content.sha256, content.size_bytes)
    storages = _tar_storages(out, members["storages"])
    tensors = _tar_tensors(out, members["tensors"], storages)
    tree = read_pickle(members["pickle"], storage_of=lambda identity: tensors.get(str(identity)))  # type: ignore[arg-type, return-value]
    out.unsafe += [*globals_of(tree, "pickle", None), *globals_behind(members["pickle"], tree.end, "pickle", None)]
    out.unsafe += globals_behind(members["sys_info"], 0, "sys_info", None)
    if tree.problem:
        out.problems.append(Problem(f"the description is damaged: {tree.problem}", "entry pickle"))
    out.fill(tree.value)
    return out


def _tar_storages(out: Contents, data: memoryview) -> dict[str, StorageRef]:
    """Return the storages by key: a pickled count, then for each ``(key, device, type)`` pickled, and the bytes."""
    found: dict[str, StorageRef] = {}
    count = read_pickle(data)
    at = count.end
    for _ in range(count.value if isinstance(count.value, int) else 0):
        head = read_pickle(data, at)
        out.unsafe += globals_of(head, "storages", None)
        if head.problem or not (isinstance(head.value, tuple) and len(head.value) == 3):
            out.problems.append(Problem("the list of storages is damaged", f"entry storages, byte {at}"))
            break
        key, device, kind = head.value
        ref = StorageRef(str(key), dtype_of_storage(kind), str(device), 0, where=f"entry storages, byte {head.end}")
        at = _tar_bytes(ref, data, head.end)
        found[ref.key] = ref
        if at < 0:
            out.problems.append(Problem(f"the bytes of storage {key} are cut short", ref.where))
            break
    return found


def _tar_bytes(ref: StorageRef, data: memoryview, at: int) -> int:
    """Give a storage its bytes and return the byte after them; -1 where they are not all there."""
    if at + _COUNT.size > len(data):
        return -1
    (ref.num_elements,) = _COUNT.unpack_from(data, at)
    try:
        end = at + _COUNT.size + ref.num_elements * item_size(ref.dtype)
    except BadTensor:
        return -1
    if ref.num_elements < 0 or end > len(data):
        return -1
    ref.data = data[at + _COUNT.size : end]
    return end


def _tar_tensors(out: Contents, data: memoryview, storages: dict[str, StorageRef]) -> dict[str, TensorRef]:
    """Return tensors by key: a pickled count, then ``(key, storage, type)`` pickled, axes, sizes, strides, offset."""
    found: dict[str, TensorRef] = {}
    count = read_pickle(data)
    at = count.end
    for _ in range(count.value if isinstance(count.value, int) else 0):
        head = read_pickle(data, at)
        out.unsafe += globals_of(head, "tensors", None)
        is_whole = not head.problem and isinstance(head.value, tuple) and len(head.value) == 3
        axes = struct.unpack_from("<i", data, head.end)[0] if is_whole and head.end + 8 <= len(data) else -1
        end = head.end + 8 + 8 * (2 * axes + 1)
        if not 0 <= axes <= 64 or end > len(data):
            out.problems.append(Problem("the list of tensors is damaged", f"entry tensors, byte {at}"))
            break
        numbers = struct.unpack_from(f"<{2 * axes + 1}q", data, head.end + 8)
        storage = storages.get(str(head.value[1]))
        if storage is not None:
            found[str(head.value[0])] = TensorRef(
                storage, storage.dtype, numbers[:axes], numbers[axes : 2 * axes], numbers[-1]
            )
        at = end
    return found
