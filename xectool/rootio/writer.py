"""Writes ROOT files in bounded memory; a file is either whole or absent."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

import numpy as np
import uproot

from xectool.errors import DiskError, UsageError, did_you_mean, in_shell
from xectool.errors.refused_writes import LIFT, size_limit
from xectool.rootio.origin import Origin
from xectool.rootio.recorded import forget_replaced

FileFormat = Literal["ttree", "rntuple"]
BranchSpec = tuple[Any, tuple[int, ...]] | str
"""``(dtype, shape of one entry)``, or ``"var * float32"`` and the like for entries of any length, or ``"string"``."""

# One basket a branch and cluster: large enough for cheap headers, small enough that a reader which
# needs a part of it wastes little (440 events of two 4760-wide float32 branches).
CLUSTER_BYTES = 16 * 1024 * 1024
MAX_CLUSTER_EVENTS = 65_536

_NO_PLACE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOENT, errno.EEXIST)
_COMPRESSIONS = {"zlib": uproot.ZLIB, "lz4": uproot.LZ4, "zstd": uproot.ZSTD, "lzma": uproot.LZMA}
_DEFAULT_LEVELS = {"zlib": 1, "lz4": 4, "zstd": 5, "lzma": 5}
_MAX_LEVELS = {"zlib": 9, "lz4": 12, "zstd": 22, "lzma": 9}


def parse_compression(text: str) -> Any:
    """Return the uproot compression for ``"name"`` or ``"name:level"``; ``"none"`` gives None.

    Raises:
        UsageError: The name is not known or the level is out of range.
    """
    name, _, level_text = text.lower().partition(":")
    if name == "none" and not level_text:
        return None
    if name not in _COMPRESSIONS:
        known = [*_COMPRESSIONS, "none"]
        raise UsageError(
            "; ".join(filter(None, (f"compression '{text}' is not known", did_you_mean(name, known)))),
            where="--compression",
            fix=f"--compression zlib:1  (known: {', '.join(known)}, each as name or name:level)",
        )
    if level_text and not (level_text.isdigit() and int(level_text) <= _MAX_LEVELS[name]):
        raise UsageError(
            f"compression level '{level_text}' is not between 0 and {_MAX_LEVELS[name]}",
            where="--compression",
            fix=f"--compression {name}:{_DEFAULT_LEVELS[name]}",
        )
    return _COMPRESSIONS[name](int(level_text) if level_text else _DEFAULT_LEVELS[name])


class TreeWriter:
    """Writes one tree to ``<path>.part`` and gives it its name once it is whole and on disk.

    Rows are collected and written in clusters of about 16 MiB, so memory does not grow with the file and
    the basket layout does not depend on how many rows each ``extend`` brings.

    Args:
        path: The file to write; missing directories are made.
        branches: Name to ``(dtype, shape of one entry)``, e.g. ``{"npho": ("f4", (4760,)), "run": ("i4", ())}``. In a
            TTree also ``"var * float32"`` (ROOT sees ``name[nname]``) and ``"string"``, given as awkward arrays.
        tree: Name of the tree.
        format: ``ttree`` or ``rntuple``.
        compression: ``zlib:1``, ``lz4``, ``zstd``, ``lzma`` or ``none``, with an optional ``:level``.
        overlapped: Compress and write a cluster in a thread while the next one is collected, in a second buffer.
        origin: What writes it, which is its title.
        texts: Texts that are kept beside the tree, by name.

    Raises:
        DiskError: The disk is full, or the place cannot be written.
        UsageError: The compression or format is not known.

    >>> with TreeWriter("/tmp/xectool_doc.root", {"run": ("i4", ())}) as writer:
    ...     writer.extend({"run": np.arange(3)})
    >>> writer.num_entries
    3
    """

    def __init__(  # noqa: PLR0913 - one argument a property of the file
        self,
        path: str | os.PathLike[str],
        branches: Mapping[str, BranchSpec],
        tree: str = "tree",
        format: FileFormat = "ttree",
        compression: str = "zlib:1",
        overlapped: bool = False,
        origin: Origin | None = None,
        texts: Mapping[str, str] | None = None,
    ) -> None:
        if format not in ("ttree", "rntuple"):
            raise UsageError(f"file format '{format}' is not known", where="--format", fix="--format ttree")
        fixed = {name: spec for name, spec in branches.items() if not isinstance(spec, str)}
        self._loose = {name: spec for name, spec in branches.items() if isinstance(spec, str)}
        if self._loose and format != "ttree":
            raise ValueError(f"entries of any length are written to a TTree only: {sorted(self._loose)}")
        self.path = Path(path)
        self.part_path = self.path.with_name(self.path.name + ".part")
        self.num_entries = 0
        self._branches = {name: (np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in fixed.items()}
        self._tree_name = tree
        self._title = "" if origin is None else str(origin)
        self._texts = dict(texts or {})
        self._format = format
        self._compression = parse_compression(compression)
        self._cluster_events = _cluster_events(self._branches)
        self._buffers: dict[str, np.ndarray[Any, Any]] = {}
        self._spare: dict[str, np.ndarray[Any, Any]] = {}
        self._thread = ThreadPoolExecutor(1, "root-writer") if overlapped else None
        self._writing: Future[None] | None = None
        self._pieces: dict[str, list[Any]] = {name: [] for name in self._loose}
        self._filled = 0
        self._stream: BinaryIO | None = None
        self._file: Any = None
        self._tree: Any = None

    def __enter__(self) -> Self:
        try:
            with _disk_errors(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._stream = open(self.part_path, "w+b")
                self._file = uproot.recreate(self._stream, compression=self._compression)
                self._tree = self._make_tree()
                for name, text in self._texts.items():
                    self._file[name] = text
        except BaseException:
            self._abort()
            raise
        self._buffers, self._spare = self._new_buffers(), self._new_buffers() if self._thread else {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._abort()
            return
        try:
            self._finish()
        except BaseException:
            self._abort()
            raise

    def extend(self, rows: Mapping[str, Any]) -> None:
        """Append rows; every branch is given, each with the same number of entries.

        Raises:
            DiskError: The disk is full.
            ValueError: A branch is missing, unknown, or of another shape.
        """
        if self._tree is None:
            raise ValueError("TreeWriter.extend is called outside of its 'with' block")
        arrays = self._checked(rows)
        total, start = len(next(iter(arrays.values()))), 0
        while start < total:
            stop = min(total, start + self._cluster_events - self._filled)
            for name, array in arrays.items():
                if name in self._loose:
                    self._pieces[name].append(array[start:stop])
                else:
                    self._buffers[name][self._filled : self._filled + stop - start] = array[start:stop]
            self._filled += stop - start
            start = stop
            if self._filled == self._cluster_events:
                self._flush_cluster()
        self.num_entries += total

    def _checked(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        names = {*self._branches, *self._loose}
        if set(rows) != names:
            missing, unknown = names - set(rows), set(rows) - names
            raise ValueError(f"missing branches {sorted(missing)}, unknown branches {sorted(unknown)}")
        arrays: dict[str, Any] = {name: np.asarray(rows[name]) for name in self._branches}
        lengths = {len(array) for array in (*arrays.values(), *(rows[name] for name in self._loose))}
        if len(lengths) != 1:
            raise ValueError(f"branches have different numbers of entries: {sorted(lengths)}")
        for name, (dtype, shape) in self._branches.items():
            array = arrays[name]
            if array.shape[1:] != shape:
                raise ValueError(f"branch '{name}' holds entries of shape {shape}, got {array.shape[1:]}")
            if not np.can_cast(array.dtype, dtype, casting="same_kind"):
                raise ValueError(f"branch '{name}' holds {dtype}, got {array.dtype}")
        return arrays | {name: rows[name] for name in self._loose}

    def _make_tree(self) -> Any:
        if self._format == "ttree":
            types = {name: np.dtype((dtype, shape)) for name, (dtype, shape) in self._branches.items()}
            return self._file.mktree(self._tree_name, types | self._loose, title=self._title)
        empty = {name: np.empty((0, *shape), dtype) for name, (dtype, shape) in self._branches.items()}
        return self._file.mkrntuple(self._tree_name, _record(empty).layout.form, self._title)

    def _flush_cluster(self) -> None:
        rows = {name: buffer[: self._filled] for name, buffer in self._buffers.items()} | self._loose_rows()
        self._wait()
        if self._thread is None:
            self._write(rows)
        else:
            self._writing = self._thread.submit(self._write, rows)
            self._buffers, self._spare = self._spare, self._buffers
        self._filled = 0

    def _write(self, rows: Mapping[str, Any]) -> None:
        with _disk_errors(self.path):
            self._tree.extend(rows if self._format == "ttree" else _record(rows))

    def _wait(self) -> None:
        """Wait for the cluster that is being written, and raise what stopped it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _new_buffers(self) -> dict[str, np.ndarray[Any, Any]]:
        return {
            name: np.empty((self._cluster_events, *shape), dtype) for name, (dtype, shape) in self._branches.items()
        }

    def _loose_rows(self) -> dict[str, Any]:
        if not self._loose:
            return {}
        import awkward as ak

        rows = {name: ak.concatenate(pieces) for name, pieces in self._pieces.items()}
        self._pieces = {name: [] for name in self._loose}
        return rows

    def _finish(self) -> None:
        if self._filled:
            self._flush_cluster()
        self._wait()
        with _disk_errors(self.path):
            self._file.close()
            # Closing the uproot file closes the stream it was given; the bytes are synced through a new one.
            with open(self.part_path, "rb") as whole:
                os.fsync(whole.fileno())
            os.replace(self.part_path, self.path)
            _sync_directory(self.path.parent)
        forget_replaced(self.path)
        self._release()

    def _abort(self) -> None:
        self._stop_thread()  # before its stream is closed
        # The half-written file is thrown away, so a second failure while closing it says nothing new.
        with contextlib.suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.close()
        with contextlib.suppress(OSError):
            self.part_path.unlink()
        self._release()

    def _stop_thread(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def _release(self) -> None:
        self._stop_thread()
        self._buffers, self._spare, self._pieces = {}, {}, {}
        self._stream = self._file = self._tree = None


def _cluster_events(branches: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> int:
    event_bytes = sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in branches.values())
    return int(np.clip(CLUSTER_BYTES // max(event_bytes, 1), 1, MAX_CLUSTER_EVENTS))


def _record(rows: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    import awkward as ak

    contents = [ak.from_numpy(np.ascontiguousarray(array), regulararray=True).layout for array in rows.values()]
    length = len(next(iter(rows.values())))
    return ak.Array(ak.contents.RecordArray(contents, list(rows), length=length))


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        limit, look, remark = size_limit(error), "df -h", "free space there, or"
        if error.errno in _NO_PLACE:
            look, remark = "ls -ld", "nothing can be written there:"
        fix = f"{look} {in_shell(path.parent)}   # {remark} name another place for the output"
        problem = f"cannot write '{path}': {limit or error.strerror or error}"
        raise DiskError(problem, where=str(path), fix=LIFT if limit else fix) from error
