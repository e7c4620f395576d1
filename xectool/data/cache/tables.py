"""Small results that cost much to find, kept beside the cache: found once, read by every rank and later run.

Each lies in an ``.npz`` file without pickled objects, named by what it depends on, with a checksum.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from xectool.data.cache.identity import digest_of
from xectool.runlog.arrays import read_arrays

_LOG = logging.getLogger(__name__)

Arrays = Mapping[str, npt.NDArray[Any]]
_CHECK: Final = "checksum"
_SCHEMA: Final = 3  # raised when what a table holds means something else


@dataclass(frozen=True)
class PreparedTables:
    """Tables by kind and by what they depend on.

    Attributes:
        directory: Where they lie; None keeps and finds nothing.
        writes: Whether tables that were not there are kept.
    """

    directory: Path | None = None
    writes: bool = False

    def get(self, kind: str, identity: Mapping[str, Any] | None, make: Callable[[], Arrays]) -> Arrays:
        """Return a table, made only where it is not there or damaged.

        Args:
            kind: What it holds.
            identity: All that it depends on; None for what cannot be told apart, such as urls.
            make: Makes it.
        """
        if self.directory is None or identity is None:
            return make()
        path = self.directory / f"{kind}-{digest_of({'schema': _SCHEMA, 'kind': kind, **identity})}.npz"
        found = _read(path)
        if found is None:
            found = make()
            if self.writes:
                self._write(path, found)
        return found

    def _write(self, path: Path, arrays: Arrays) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, part = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
            with os.fdopen(descriptor, "wb") as stream:
                np.savez(stream, **arrays, **{_CHECK: _checksum(arrays)})  # type: ignore[arg-type]  # numpy's own names
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, path)
        except OSError as error:
            _LOG.warning("XT-CACHE-NOT-BUILT: %s is not kept: %s", path, error.strerror or error)


def _read(path: Path) -> Arrays | None:
    try:
        arrays = read_arrays(path)
        check = arrays.pop(_CHECK, None)
        if check is None or not np.array_equal(check, _checksum(arrays)):
            raise ValueError("its checksum does not match")
    except FileNotFoundError:
        return None
    except ValueError as error:
        _LOG.warning("XT-CACHE-DAMAGED: %s is damaged (%s): it is made again", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    return arrays


def _checksum(arrays: Arrays) -> npt.NDArray[np.uint64]:
    digest = xxhash.xxh3_64()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return np.array([digest.intdigest()], np.uint64)


def text_array(value: Any) -> npt.NDArray[np.uint8]:
    """Return a value of plain types as an array of bytes."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def text_value(array: npt.NDArray[np.uint8]) -> Any:
    """Return what `text_array` was given."""
    return json.loads(array.tobytes())
