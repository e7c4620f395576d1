"""The cache files of one data set: serves what is in them, and leaves the rest to the ROOT files."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.config.platform import most_mapped_bytes
from xectool.data.blocks import Piece, SourceFile
from xectool.data.cache.cached_file import CachedFile
from xectool.data.cache.codec import NPHO, TIME, Codec, Compact, Lossless
from xectool.data.cache.identity import cache_identity, digest_of
from xectool.data.cache.store import CacheStore
from xectool.data.events import EventSource
from xectool.data.window import WindowArrays
from xectool.detector.constants import NUM_SENSORS

IntArray = npt.NDArray[np.int64]

_LOG = logging.getLogger(__name__)

# Cache files a process keeps open.
_KEPT_FILES: Final = 64
# Events that are checked at once.
_CHECKED_EVENTS: Final = 512
# A file is kept as it is if more of its first readings than this would be exceptions.
_PROBED_EVENTS, _MOST_EXCEPTIONS = 64, 0.01


class CachedEvents:
    """Serves events of a source from cache files; safe to use from threads, can go to other processes.

    What is served depends on the configuration alone and never on which files happen to be built: where readings are
    stored as codes, those of the ROOT files are rounded in the same way.

    Args:
        source: Reads the ROOT files.
        codec: How readings are stored.
        store: Where cache files lie; None where none are kept.
        note: What was decided about the cache, for the user.
        builds: Whether files that are missing are built while training runs.

    Raises:
        OSError: A file of the source is gone.

    Attributes:
        digests: Of the identity of each file; None for one that is not kept.
        kept: Digests of all copies the run needs, also those of other data sets: none makes room for another.
    """

    def __init__(
        self, source: EventSource, codec: Codec, store: CacheStore | None, note: str = "", builds: bool = True
    ) -> None:
        self.store, self.note, self.builds = store, note, builds and store is not None
        self._source, self._codec = source, codec
        self._identities: list[dict[str, Any] | None] = [
            cache_identity(file, source.branches, codec) if store and file.num_selected else None
            for file in source.files
        ]
        row_bytes = 2 * NUM_SENSORS * codec.dtype.itemsize
        whole = row_bytes * sum(file.num_selected for file in source.files)
        self.maps_readings = whole <= most_mapped_bytes()
        self.digests = [None if identity is None else digest_of(identity) for identity in self._identities]
        self.kept = frozenset(digest for digest in self.digests if digest)
        self._start()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def _start(self) -> None:
        self._open: OrderedDict[int, CachedFile] = OrderedDict()
        self._verified: dict[int, tuple[int, npt.NDArray[np.bool_]]] = {}
        self._damaged: dict[int, int] = {}  # number of the file last found damaged
        self._tried: dict[int, int] = {}  # number of the file that was at the place when it was last opened
        self._told: set[int] = set()  # files whose copy could not be opened
        self._codecs: dict[int, Codec] = {}
        self._lock = threading.Lock()

    @property
    def source(self) -> EventSource:
        """Reads the ROOT files."""
        return self._source

    def identity(self, index: int) -> dict[str, Any]:
        """Return what the cache of a file is a copy of; empty for a file that is not kept."""
        return self._identities[index] or {}

    def file(self, index: int) -> CachedFile | None:
        """Return the cache file of a source file, None where there is none (any more).

        One that was thrown away as damaged goes on serving the events of it that are sound until it is built again:
        one that comes from a ROOT file by itself costs the inflation of baskets, 27 ms of CPU in place of 10 us.
        What lies at its place is opened once: whatever may be neither used nor removed costs no more than a look.
        """
        identity, digest = self._identities[index], self.digests[index]
        if self.store is None or identity is None or digest is None:
            return None
        with self._lock:
            found = self._open.pop(index, None)
            if found is None or found.thrown_away:
                there = self.store.inode(digest)
                if self._tried.get(index) != there:
                    found = self._found(index, identity, there) or found
            if found is None:
                return None
            self._open[index] = found
            while len(self._open) > _KEPT_FILES:
                # Only forgotten, not closed: another thread may still read from it.
                self._tried.pop(self._open.popitem(last=False)[0], None)
            return found

    def _found(self, index: int, identity: dict[str, Any], there: int) -> CachedFile | None:
        """Look for a cache file of number ``there``; one that cannot be opened is looked for again, and told once."""
        digest = self.digests[index]
        assert self.store is not None
        assert digest is not None
        try:
            found = self._opened(index, self.store.find(digest, identity, self.maps_readings))
        except OSError as error:  # too many open files, a disk or server that fails: says nothing of what lies there
            if index not in self._told:
                place = self.store.path(digest)
                _LOG.warning("XT-CACHE-PLACE: %s cannot be read (%s): events are read from the ROOT file", place, error)
            self._told.add(index)
            return None
        # What was removed leaves its number to the next file.
        self._tried[index] = there if self.store.inode(digest) == there else 0
        return found

    def _opened(self, index: int, found: CachedFile | None) -> CachedFile | None:
        """Return a file that was just opened, with what is known of its events."""
        if found is not None:
            inode, verified = self._verified.get(index, (0, found.verified))
            if inode == found.inode:
                found.verified = verified
            self._verified[index] = (found.inode, found.verified)
            found.thrown_away |= self._damaged.get(index) == found.inode  # what may not be thrown away is said once
        return found

    def close(self) -> None:
        """Forget the open files; they are opened again when they are needed."""
        with self._lock:
            self._open.clear()
            self._tried.clear()

    def is_there(self, index: int) -> bool:
        """Return whether a file has a cache file, whatever is in it."""
        digest = self.digests[index]
        return self.store is not None and digest is not None and self.store.path(digest).exists()

    def missing(self) -> list[int]:
        """Return the files with events whose cache file could be built and is not there."""
        kept = [index for index, digest in enumerate(self.digests) if digest is not None]
        return [index for index in kept if not self.is_there(index)]

    def unusable(self) -> list[str]:
        """Return the paths of files with events that have no cache file, or a damaged one; opens each."""
        kept = [index for index, digest in enumerate(self.digests) if digest is not None]
        found = {index: self.file(index) for index in kept}
        return [self._source.files[i].path for i, file in found.items() if file is None or file.thrown_away]

    @property
    def is_complete(self) -> bool:
        """Whether every file with events has its cache file."""
        served = sum(file.num_selected > 0 for file in self._source.files)
        kept = sum(digest is not None for digest in self.digests)
        return self.store is not None and served == kept and not self.missing()

    def is_sound(self, index: int, found: CachedFile, rows: IntArray) -> npt.NDArray[np.bool_]:
        """Return which events of a cache file are what was written; a damaged file is thrown away, and said so."""
        sound = found.sound(rows)
        if not sound.all():
            self._discard(index, found, f"event {int(rows[~sound][0])} of {self._source.files[index].path}")
        return sound

    def is_damaged(self, index: int) -> bool:
        """Read every event of a file's copy; a damaged one is thrown away where that is allowed, and said so."""
        was_there, found = self.is_there(index), self.file(index)
        if found is None or found.thrown_away:
            return was_there
        blocks = (np.arange(first, min(first + _CHECKED_EVENTS, found.num_events))
                  for first in range(0, found.num_events, _CHECKED_EVENTS))  # fmt: skip
        return not all(self.is_sound(index, found, rows).all() for rows in blocks)

    def _discard(self, index: int, found: CachedFile, reason: str) -> None:
        digest = self.digests[index]
        with self._lock:
            known, found.thrown_away = found.thrown_away, True
            self._damaged[index] = found.inode
        if not known and self.store is not None and digest is not None:
            self.store.discard(digest, found.inode, reason)

    def read(self, piece: Piece, window: WindowArrays) -> bool:
        """Fill all rows of a window with a run of events; False where they are not in the cache."""
        entries = np.arange(piece.entry_start, piece.entry_stop) if piece.selected is None else piece.selected
        rows = served_rows(self._source.files[piece.file_index], entries)
        if not self.fill(piece.file_index, rows, window):
            return False
        window.identity[:, 0], window.identity[:, 1] = piece.file_index, entries
        return True

    def fill(self, index: int, rows: IntArray, out: WindowArrays, places: IntArray | None = None) -> bool:
        """Fill ``out`` with events of a file as `CachedFile.read` does; False where they are not all in the cache."""
        found = self.file(index)
        if found is None or not self.is_sound(index, found, rows).all():
            return False
        try:
            found.read(rows, out, places)
        except EOFError as error:
            self._discard(index, found, str(error))
            return False
        return True

    def settle(self, file_index: int, window: WindowArrays) -> None:
        """Give readings that come from a ROOT file the values they have in the cache."""
        codec = self.codec_of(file_index)
        codec.round_trip(NPHO, window.npho)
        codec.round_trip(TIME, window.time)

    def codec_of(self, file_index: int) -> Codec:
        """Return how the readings of a file are stored: a function of the file alone."""
        if not isinstance(self._codec, Compact):
            return self._codec
        if file_index not in self._codecs:
            self._codecs[file_index] = self._codec if self._fits(file_index, self._codec) else Lossless()
        return self._codecs[file_index]

    def truth(self, file_index: int, task: str) -> npt.NDArray[np.float32] | None:
        """Return the truth of a task for the served entries of a file, None where it is not in the cache."""
        found = self._whole(file_index)
        return None if found is None else found.truth(task)

    def run_event_numbers(self, file_index: int) -> IntArray | None:
        """Return run and event number of the served entries of a file, None where they are not in the cache."""
        found = self._whole(file_index)
        return None if found is None else found.numbers()

    def _whole(self, file_index: int) -> CachedFile | None:
        found = self.file(file_index)
        return found if found is not None and found.numbers_are_sound() else None

    def _fits(self, file_index: int, codec: Compact) -> bool:
        file = self._source.files[file_index]
        entries = np.arange(file.num_entries) if file.selected is None else file.selected
        entries = entries[:_PROBED_EVENTS]
        whole = Piece(file_index, int(entries[0]), int(entries[-1]) + 1, entries, 0, 0)
        window = WindowArrays.empty(len(entries), self._source.widths)
        self._source.read_root(whole, window)
        for channel, values in ((NPHO, window.npho), (TIME, window.time)):
            if len(codec.encode(channel, values).exceptions) > _MOST_EXCEPTIONS * values.size:
                return False
        return True


_OWN: Final = ("_open", "_verified", "_damaged", "_tried", "_told", "_codecs", "_lock")


def served_rows(file: SourceFile, entries: IntArray) -> IntArray:
    """Return the places of entries, shape (n,), among the served entries of a file."""
    return entries if file.selected is None else np.searchsorted(file.selected, entries)
