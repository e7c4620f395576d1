"""The digest of every entry of an archive that xectool exported: TorchScript, and ``torch.export``.

They stand in an entry of their own and count neither that nor the id that PyTorch makes of all entries. The description
of the export, which they count, says that there are some.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from xectool.checkpoint.inspection.archive import Archive

DIGESTS_FILE: Final = "xectool.sha256.json"
DESCRIPTION: Final = "extra/xectool.json"
PROMISE: Final = {"xectool.entries_sha256": DIGESTS_FILE}
"""What the description of an export says where digests were written."""
_DIGESTS: Final = f"extra/{DIGESTS_FILE}"
_UNCOUNTED: Final = (_DIGESTS, ".data/serialization_id")


def digests_of(path: Path) -> str:
    """Return the digests of a file that was just written, as JSON by entry."""
    return json.dumps(_found(_opened(path)), sort_keys=True)


def file_changes(path: Path) -> tuple[str, ...] | None:
    """Return what of a file is not what was exported, as :func:`archive_changes`."""
    return archive_changes(_opened(path))


def archive_changes(archive: Archive) -> tuple[str, ...] | None:
    """Return the entries that are not those that were exported, with their bytes; None where none ever had digests."""
    root = _root(archive)
    place = archive.by_name.get(f"{root}{_DIGESTS}")
    if place is None:
        return (f"entry {root}{_DIGESTS}, which is gone",) if _promised(archive, root) else None
    try:
        stored = json.loads(bytes(archive.read(place)))
    except (ValueError, RecursionError):
        return (f"entry {place.place}",)
    if not isinstance(stored, Mapping):
        return (f"entry {place.place}",)
    found = _found(archive)
    entries = {name: archive.by_name[f"{root}{name}"].place for name in found}
    names = sorted(name for name in found.keys() | stored.keys() if found.get(name) != stored.get(name))
    return tuple(f"entry {entries.get(name, f'{root}{name}, which is gone')}" for name in names)


def _promised(archive: Archive, root: str) -> bool:
    place = archive.by_name.get(f"{root}{DESCRIPTION}")
    try:
        stored = json.loads(bytes(archive.read(place))) if place is not None else None
    except (ValueError, RecursionError):
        return False  # as its readers say
    return isinstance(stored, Mapping) and stored.keys() >= PROMISE.keys()


def _opened(path: Path) -> Archive:
    with path.open("rb") as stream:
        return Archive(memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)))


def _found(archive: Archive) -> dict[str, str]:
    root = _root(archive)
    names = {entry.name.removeprefix(root): entry for entry in archive.by_name.values()}
    return {name: _sha256(archive, entry.name) for name, entry in names.items() if name not in _UNCOUNTED}


def _sha256(archive: Archive, name: str) -> str:
    try:
        return hashlib.sha256(archive.read(archive.by_name[name])).hexdigest()
    except ValueError:
        return ""  # damaged, as its readers say; in any case not what was exported


def _root(archive: Archive) -> str:
    """Return what PyTorch writes before every name, a folder."""
    folder, slash, _ = archive.entries[0].name.partition("/") if archive.entries else ("", "", "")
    return folder + slash if slash else ""
