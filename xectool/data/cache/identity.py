"""What a cache file is a copy of, in facts that change when the source does."""

from __future__ import annotations

import json
import os
import stat
from functools import lru_cache
from typing import Any, Final

import xxhash

from xectool.config.inputs import is_remote
from xectool.data.blocks import SourceFile
from xectool.data.cache.codec import Codec, Compact
from xectool.data.cache.layout import SCHEMA
from xectool.data.events import SourceBranches

# ROOT writes the directory and the list of baskets at the end of a file and its position at the beginning.
_DIGESTED_BYTES: Final = 65_536


def file_facts(path: str) -> dict[str, Any] | None:
    """Return path, size, time of change and digest of both ends of a local file; None for a url, a pipe or a device.

    Raises:
        OSError: It is not there.
    """
    if is_remote(path):
        return None
    real = os.path.realpath(path)
    status = os.stat(real)
    if not stat.S_ISREG(status.st_mode):  # a pipe would wait for ever for who writes into it
        return None
    ends = _digest_of_ends(real, status.st_size, status.st_mtime_ns)
    return {"path": real, "size": status.st_size, "mtime_ns": status.st_mtime_ns, "ends": ends}


@lru_cache(maxsize=65_536)
def _digest_of_ends(path: str, size: int, _mtime_ns: int) -> str:
    digest = xxhash.xxh3_64()
    with open(path, "rb") as stream:
        digest.update(stream.read(_DIGESTED_BYTES))
        stream.seek(max(0, size - _DIGESTED_BYTES))
        digest.update(stream.read(_DIGESTED_BYTES))
    return digest.hexdigest()


def cache_identity(file: SourceFile, branches: SourceBranches, codec: Codec) -> dict[str, Any] | None:
    """Return what the cache of a file's served events depends on; None for a url, which has no size and time.

    Raises:
        OSError: The file is not there.
    """
    facts = file_facts(file.path)
    if facts is None:
        return None
    selected = None if file.selected is None else xxhash.xxh3_128_hexdigest(file.selected.tobytes())
    names = {"npho": branches.npho, "time": branches.time, "run": branches.run, "event": branches.event}
    return {
        **facts,
        "schema": SCHEMA,
        "tree": file.tree,
        "entries": file.num_entries,
        "branches": names | {f"truth/{task}": branch for task, branch in branches.truth.items()},
        "selected": selected,
        "codec": [codec.name, *(codec.thresholds if isinstance(codec, Compact) else ())],
    }


def digest_of(identity: dict[str, Any]) -> str:
    """Return the name of what has this identity.

    >>> digest_of({"path": "/a.root", "size": 1}) == digest_of({"size": 1, "path": "/a.root"})
    True
    """
    return xxhash.xxh3_128_hexdigest(json.dumps(identity, sort_keys=True).encode())
