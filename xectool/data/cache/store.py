"""The directory of cache files: finds them, has one process at a time build each, and keeps them below a limit."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xectool.config.save_places import nearest_existing, refusal_to_write, said_of
from xectool.data.cache.cached_file import CachedFile
from xectool.data.cache.layout import DamagedCacheError
from xectool.errors import DiskError
from xectool.runlog.lock import ProcessLock

_LOG = logging.getLogger(__name__)

SUFFIX: Final = ".events"
# A copy some of whose events are damaged: its sound ones are served until another one is built.
DAMAGED: Final = ".damaged"
# Without a limit of the user's, so much of the disk stays free for others: a share, of a large disk this at most.
_FREE_SHARE: Final = 0.1
_FREE_BYTES: Final = 10_000_000_000
# Locks are held by processes; threads of one process are kept apart by this.
_BUILDING: set[Path] = set()
_BUILDING_LOCK = threading.Lock()


@dataclass(frozen=True)
class CacheStore:
    """Cache files by the digest of what they are a copy of; can go to other processes.

    Attributes:
        directory: Where they lie.
        limit_bytes: What all files together may take; None leaves a tenth of the disk free, 10 GB at most.
    """

    directory: Path
    limit_bytes: int | None = None

    def path(self, digest: str) -> Path:
        """Return the place of a cache file."""
        return self.directory / f"{digest}{SUFFIX}"

    def inode(self, digest: str) -> int:
        """Return the number of the file at the place of a cache file, 0 where there is none."""
        return _inode(self.path(digest))

    def prepare(self, looks: bool = False) -> None:
        """Make the directory; where one only looks, nothing is left.

        Raises:
            DiskError: It cannot be made.
        """
        if looks:
            if refusal := self._refusal():
                raise self.refused(said_of(refusal)) from refusal
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self.refused(error.strerror or str(error)) from error

    def _refusal(self) -> OSError | None:
        """Return why the directory could not be made, which is not tried; None where it is there or could be."""
        try:
            os.stat(self.directory)
        except FileNotFoundError:
            return refusal_to_write(self.directory)
        except OSError as error:
            return error
        return None if os.path.isdir(self.directory) else refusal_to_write(self.directory)

    @property
    def is_writable(self) -> bool:
        """Whether files can be built here; what lies in a directory that cannot be written is used all the same."""
        return os.access(nearest_existing(self.directory), os.W_OK)

    def refused(self, reason: str) -> DiskError:
        """Return what to raise where files must be built and cannot be."""
        return DiskError(
            f"the cache directory cannot be used: {reason}",
            where=f"data.cache: {self.directory}",
            fix="--set data.cache=DIR   # on a local disk, or --set data.cache=off",
            code="XT-CACHE-PLACE",
        )

    def find(self, digest: str, source: dict[str, Any], maps_readings: bool = True) -> CachedFile | None:
        """Return the cache file of a source, None where there is none; one that is none of it is removed, and said so.

        A copy of which some events are damaged counts as long as no other one is built.

        Args:
            digest: Of the source.
            source: The source's identity; a file that is a copy of something else does not count.
            maps_readings: Whether its readings are touched through the map.

        Raises:
            OSError: It is there and cannot be opened.
        """
        path = self.path(digest)
        found = _opened(path, source, maps_readings)
        if found is None:
            found = _opened(path.with_suffix(DAMAGED), source, maps_readings)
            if found is not None:
                found.thrown_away = True
        return found

    def discard(self, digest: str, inode: int, reason: str) -> None:
        """Throw away a cache file of which some events are damaged, and say why; it serves the others meanwhile.

        Args:
            digest: Of its source.
            inode: Its number: what another process has built at its place meanwhile stays.
            reason: What is damaged.
        """
        path = self.path(digest)
        with contextlib.suppress(OSError):  # read-only: it goes on serving as it is
            if _inode(path) == inode:
                os.replace(path, path.with_suffix(DAMAGED))
        _LOG.warning(
            "XT-CACHE-DAMAGED: %s is damaged (%s): such events are read from the ROOT file, sound ones from the copy, "
            "until it is built again (at the next epoch where training builds, or by xectool prepare)",
            path,
            reason,
        )

    def replaced(self, digest: str) -> None:
        """Remove the damaged copy for which another one was built."""
        with contextlib.suppress(OSError):
            self.path(digest).with_suffix(DAMAGED).unlink()

    @contextlib.contextmanager
    def building(self, digest: str) -> Iterator[bool]:
        """Hold the right to build a file; gives False where another process or thread has it or has done it."""
        path = self.path(digest)
        lock = ProcessLock(path.with_suffix(".lock"))
        with _BUILDING_LOCK:
            mine = path not in _BUILDING
            _BUILDING.add(path)
        held = False
        try:
            held = mine and lock.acquire()
            yield held and not path.exists()
        finally:
            if held:
                lock.path.unlink(missing_ok=True)
            lock.release()
            if mine:
                with _BUILDING_LOCK:
                    _BUILDING.discard(path)

    def is_built_elsewhere(self, digest: str) -> bool:
        """Return whether another process is building a file; False where its lock cannot be asked for."""
        path = self.path(digest)
        lock = ProcessLock(path.with_suffix(".lock"))
        with _BUILDING_LOCK, contextlib.suppress(OSError):  # of another user, or on a disk that knows no locks
            if path in _BUILDING or not lock.path.exists():  # to ask for one's own lock would give it back
                return False
            if not lock.acquire():
                return True
            lock.path.unlink(missing_ok=True)
        lock.release()
        return False

    def make_room(self, num_bytes: int, keep: Collection[str]) -> bool:
        """Throw away the files unused for longest until ``num_bytes`` more fit; False where they cannot.

        Damaged ones go first, even where they still serve somebody: who has them open keeps them. Of the others, files
        of this data set (``keep``, digests), files another process has open, and files being built stay.
        """
        kept = {self.path(digest) for digest in keep}
        files = sorted(self._files(), key=lambda item: (item[0].suffix == SUFFIX, item[1].st_mtime))
        used = sum(status.st_size for _, status in files)
        room = self._room(used) - num_bytes
        for path, status in files:
            if room >= 0:
                break
            if path not in kept and _remove_unused(path):
                _LOG.info("cache: %s, unused for longest, made room", path.name)
                room += status.st_size
        return room >= 0

    def shortage(self) -> str:
        """Return what leaves no more room: the limit, or the disk."""
        disk, used = shutil.disk_usage(self.directory), self.used_bytes()
        if self.limit_bytes is not None and self.limit_bytes - used < disk.free:
            return f"below data.cache_limit_gb: {used / 1e9:.3g} of {self.limit_bytes / 1e9:.3g} GB are taken"
        left = f", and {left_free(disk.total) / 1e9:.3g} GB are left free" if self.limit_bytes is None else ""
        return f"on the disk of '{self.directory}': {disk.free / 1e9:.3g} GB are free{left} (data.cache)"

    def clean(self) -> None:
        """Throw away what killed builders left behind, where that is permitted."""
        if not self.is_writable:
            return
        for path in self.directory.glob(f"*{DAMAGED}"):
            if path.with_suffix(SUFFIX).exists():
                self.replaced(path.stem)
        parts = {part.with_suffix("") for part in self.directory.glob(f"*{SUFFIX}.part")}
        for path in parts | {lock.with_suffix(SUFFIX) for lock in self.directory.glob("*.lock")}:
            lock = ProcessLock(path.with_suffix(".lock"))
            with _BUILDING_LOCK, contextlib.suppress(OSError):  # a disk without room for the lock's number
                if path not in _BUILDING and lock.acquire():
                    Path(f"{path}.part").unlink(missing_ok=True)
                    lock.path.unlink(missing_ok=True)
            lock.release()

    def used_bytes(self) -> int:
        """Return what all cache files take."""
        return sum(status.st_size for _, status in self._files())

    def _room(self, used: int) -> int:
        disk = shutil.disk_usage(self.directory)
        if self.limit_bytes is None:
            return disk.free - left_free(disk.total)
        return min(disk.free, self.limit_bytes - used)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in (*self.directory.glob(f"*{SUFFIX}"), *self.directory.glob(f"*{DAMAGED}")):
            with contextlib.suppress(FileNotFoundError):
                found.append((path, path.stat()))
        return found


def left_free(disk_bytes: int) -> int:
    """Return what caches without a limit leave free of a disk of so many bytes."""
    return min(int(_FREE_SHARE * disk_bytes), _FREE_BYTES)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _opened(path: Path, source: dict[str, Any], maps_readings: bool) -> CachedFile | None:
    inode = _inode(path)
    try:
        found = CachedFile(path, maps_readings)
        if found.source != source:
            raise DamagedCacheError("it is a copy of something else")
        with contextlib.suppress(OSError):  # another user's or read-only: not ours to throw away either
            os.utime(path)
    except (FileNotFoundError, PermissionError):
        return None
    except (DamagedCacheError, ValueError, KeyError, TypeError) as error:
        with contextlib.suppress(OSError):
            if _inode(path) == inode:
                path.unlink()
        _LOG.warning("XT-CACHE-DAMAGED: %s is damaged (%s): events are read from the ROOT file", path, error)
        return None
    return found


def _remove_unused(path: Path) -> bool:
    try:
        if path.suffix == DAMAGED:
            path.unlink()
            return True
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
