"""Builds the cache files that are missing, in a thread beside the training or in the foreground."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from xectool.config.host_memory import CACHED_EVENTS
from xectool.data.blocks import Piece, cut_blocks
from xectool.data.cache.cached_events import CachedEvents
from xectool.data.cache.layout import cache_bytes
from xectool.data.cache.writing import CacheWriter
from xectool.data.window import WindowArrays
from xectool.errors import DataFileError

_LOG = logging.getLogger(__name__)


class _StoppedError(Exception):
    """The builder is not wanted any more."""


@dataclass(frozen=True)
class BuildResult:
    """What became of the files.

    Attributes:
        built: Files that were built.
        failed: Why a file was not built, by its path.
    """

    built: int
    failed: dict[str, str]


def build_missing(
    cache: CachedEvents,
    first: int = 0,
    stopped: Callable[[], bool] = lambda: False,
    advanced: Callable[[int], None] = lambda _: None,
) -> BuildResult:
    """Build all cache files of a data set that are missing.

    Args:
        cache: The data set.
        first: File to begin with, so that several processes begin in different places.
        stopped: Asked after each block whether to stop.
        advanced: Told the events of each block.
    """
    built, failed = 0, {}
    missing = cache.missing()
    begin = next((at for at, index in enumerate(missing) if index >= first), 0)
    for index in missing[begin:] + missing[:begin]:
        path = cache.source.files[index].path
        try:
            built += _build(cache, index, stopped, advanced)
        except _StoppedError:
            break
        except OSError as error:
            failed[path] = error.strerror or str(error)
        except DataFileError as error:  # said where the training reads it
            failed[path] = error.problem
    for path, reason in failed.items():
        _LOG.warning("XT-CACHE-NOT-BUILT: the cache of %s is not built: %s", path, reason)
    return BuildResult(built, failed)


def _build(cache: CachedEvents, index: int, stopped: Callable[[], bool], advanced: Callable[[int], None]) -> bool:
    """Build one file; False where another process does or did.

    Raises:
        OSError: There is no room, or the disk fails.
    """
    store, digest = cache.store, cache.digests[index]
    if store is None or digest is None:
        return False
    file, widths, codec = cache.source.files[index], cache.source.widths, cache.codec_of(index)
    with store.building(digest) as mine:
        if not mine:
            return False
        needed = cache_bytes(file.num_selected, codec.dtype.itemsize, sum(widths.values()))
        if not store.make_room(needed, cache.kept):
            raise OSError(0, f"{needed / 1e9:.3g} GB do not fit {store.shortage()}")
        writer, whole = CacheWriter(store.path(digest), file.num_selected, codec, widths), False
        try:
            _copy(cache, index, writer, stopped, advanced)
            writer.finish(cache.identity(index))
            whole = True
            store.replaced(digest)
        finally:
            writer.close(keep=whole)
    return True


def _copy(
    cache: CachedEvents, index: int, writer: CacheWriter, stopped: Callable[[], bool], advanced: Callable[[int], None]
) -> None:
    source = cache.source
    file = source.files[index]
    blocks = cut_blocks([file], CACHED_EVENTS)
    buffer = WindowArrays.empty(int(blocks.num_events.max()), source.widths)
    for first, count in zip(blocks.first.tolist(), blocks.num_events.tolist(), strict=True):
        start, stop, chosen = first, first + count, None
        if file.selected is not None:
            chosen = file.selected[first : first + count]
            start, stop = int(chosen[0]), int(chosen[-1]) + 1
        window = buffer.rows(0, count)
        source.read_root(Piece(index, start, stop, chosen, 0, 0), window)
        writer.append(window)
        advanced(count)
        if stopped():
            raise _StoppedError


class BackgroundBuilder:
    """Builds what is missing in a thread of this process.

    Args:
        cache: The data set.
        share: Place of this process among those that read the data set, in [0, 1): where it begins.
    """

    def __init__(self, cache: CachedEvents, share: float = 0.0) -> None:
        self._cache = cache
        self._left = set(cache.missing())
        self._first = int(share * len(cache.digests))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xectool-cache", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def leaves(self, missing: Collection[int]) -> bool:
        """Return whether it is done and files are missing that it did not try in vain, such as damaged ones."""
        return not self._thread.is_alive() and not self._left.issuperset(missing)

    def stop(self) -> None:
        """Stop after the block that is being read, and throw away what is not whole."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        store = self._cache.store
        with contextlib.suppress(OSError):
            if store is not None:
                store.clean()
        build_missing(self._cache, self._first, self._stop.is_set)
        self._left.intersection_update(self._cache.missing())


def builder_bytes(event_bytes: int, num_events: int) -> int:
    """Return the memory a builder takes: its block of events, their codes, and what reading them needs."""
    return 2 * min(CACHED_EVENTS, num_events) * event_bytes * 2
