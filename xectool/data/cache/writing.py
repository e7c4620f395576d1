"""Writes one cache file to ``.part`` and gives it its name once it is whole and on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from xectool.data.cache.codec import CHANNELS, NPHO, TIME, Codec
from xectool.data.cache.layout import CHECKSUMS, NUMBERS, SCHEMA, TRUTH, CacheLayout, pack_header, row_checksums
from xectool.data.window import WindowArrays
from xectool.runlog.atomic import sync_directory

Array = np.ndarray[Any, Any]


class CacheWriter:
    """Takes the events of one source file in order.

    Nothing is written through a map, so that a full disk is an error and no signal.

    Args:
        path: The file; ``path.part`` until it is whole.
        num_events: Events that will come.
        codec: How readings are stored.
        tasks: Tasks whose truth is kept, in the order of their columns.
    """

    def __init__(self, path: Path, num_events: int, codec: Codec, tasks: Mapping[str, int]) -> None:
        self._path, self._part = path, path.with_name(path.name + ".part")
        self._codec, self._tasks = codec, dict(sorted(tasks.items()))
        self._layout = CacheLayout.of(num_events, codec.dtype, sum(tasks.values()))
        self._done = 0
        self._exceptions: dict[str, list[Array]] = {name: [] for name in CHANNELS}
        self._columns = {name: xxhash.xxh3_64() for name in (TRUTH, NUMBERS)}
        self._checksums = np.empty((num_events, self._layout.sections[CHECKSUMS].width), np.uint64)
        self._descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def append(self, window: WindowArrays) -> None:
        """Write the events of a window behind those that are there.

        Raises:
            OSError: The disk is full or fails.
        """
        parts: dict[str, Array] = {}
        num_events = len(window.npho)
        for name, values in ((NPHO, window.npho), (TIME, window.time)):
            encoded = self._codec.encode(name, values)
            parts[name] = encoded.stored
            moved = encoded.exceptions.copy()
            moved[:, 0] += self._done
            self._exceptions[name].append(moved)
        truth = [window.targets[task] for task in self._tasks]
        parts[TRUTH] = np.concatenate(truth, axis=1) if truth else np.empty((num_events, 0), np.float32)
        parts[NUMBERS] = np.ascontiguousarray(window.identity[:, 2:])
        for row in range(num_events):
            self._checksums[self._done + row] = row_checksums(parts, row)
        for name, values in parts.items():
            section = self._layout.sections[name]
            self._write(values, section.offset + self._done * section.row_bytes)
        for name, digest in self._columns.items():
            digest.update(np.ascontiguousarray(parts[name]).tobytes())
        self._done += num_events

    def finish(self, source: Mapping[str, Any]) -> None:
        """Write tables and header, bring everything to disk and give the file its name.

        Args:
            source: What the events are a copy of.

        Raises:
            OSError: The disk is full or fails.
        """
        tables = [np.concatenate(self._exceptions[name]) for name in CHANNELS]
        facts = {
            "schema": SCHEMA,
            "codec": self._codec.name,
            "num_events": self._layout.num_events,
            "tasks": self._tasks,
            "exceptions": [len(table) for table in tables],
            "columns": [digest.hexdigest() for digest in self._columns.values()],
            "tables": tables_digest([self._checksums, *tables]),
            "source": dict(source),
        }
        self._write(self._checksums, self._layout.sections[CHECKSUMS].offset)
        offset = self._layout.end
        for table in tables:
            self._write(table, offset)
            offset += table.nbytes
        os.ftruncate(self._descriptor, offset)
        self._write(np.frombuffer(pack_header(facts), np.uint8), 0)
        os.fsync(self._descriptor)
        os.replace(self._part, self._path)
        sync_directory(self._path.parent)

    def close(self, keep: bool = False) -> None:
        """Give the descriptor back, and throw away what was not finished unless it has its name."""
        os.close(self._descriptor)
        if not keep:
            self._part.unlink(missing_ok=True)

    def _write(self, values: Array, offset: int) -> None:
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        while len(data):
            written = os.pwrite(self._descriptor, data.data, offset)
            data, offset = data[written:], offset + written


def tables_digest(tables: Sequence[Array]) -> str:
    """Return the checksum of the tables of a cache file."""
    digest = xxhash.xxh3_64()
    for table in tables:
        digest.update(np.ascontiguousarray(table).tobytes())
    return digest.hexdigest()
