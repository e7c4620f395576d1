"""A local file for uproot without a map of it, for processes whose address space is limited.

uproot maps each file it opens, whole and for as long as it is open: 40 files of 36 MB took 1.4 GB of `ulimit -v`, and
a training that was estimated to fit could not get memory for its events.
"""

from __future__ import annotations

import os
import resource
from typing import Any

import uproot


class _File(uproot.source.file.FileResource):  # type: ignore[misc]
    """An open file whose bytes several threads may read at once."""

    def get(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop``, fewer where the file ends before."""
        return os.pread(self._file.fileno(), stop - start, start)


class UnmappedSource(uproot.source.file.MultithreadedFileSource):  # type: ignore[misc]
    """Source of a local file that holds it open instead of mapping it."""

    def __init__(self, file_path: str, **options: Any) -> None:
        super().__init__(file_path, **{**options, "num_workers": 1, "use_threads": False})

    def _open(self) -> None:
        self._executor = uproot.source.futures.ResourceTrivialExecutor(_File(self._file_path))
        self._num_bytes = os.path.getsize(self._file_path)


def local_handler() -> type[Any]:
    """Return how uproot opens a local file here: mapped where address space costs nothing."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    mapped: type[Any] = uproot.source.file.MemmapSource
    return mapped if limit == resource.RLIM_INFINITY else UnmappedSource
