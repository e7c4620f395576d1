"""``prepare``: everything that each rank would otherwise find out for itself, built once before a training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from xectool.config.load import load_config
from xectool.data.cache.building import BuildResult, build_missing
from xectool.data.cache.cached_events import CachedEvents
from xectool.data.cache.store import CacheStore
from xectool.data.events import EventSource
from xectool.data.prepared import event_weights
from xectool.errors import DiskError, UsageError, counted
from xectool.findings import Finding, Severity
from xectool.training.process.progress import NullObserver, Observer
from xectool.training.stepping.build import open_data

_LOOK_AGAIN_S: Final = 0.5
_GONE: Final = "its copy is gone again: thrown away to make room for those of other data sets, or by hand"


@dataclass(frozen=True)
class Prepared:
    """What was built.

    Attributes:
        directory: Where it lies.
        precision: How readings are stored, ``lossless`` or ``compact``.
        files: Files of both data sets.
        built: Files copied now.
        damaged: Files whose copy was not what had been written: thrown away and, where nothing failed, made again.
        elsewhere: Files that another process copied meanwhile; waited for.
        events: Events of both data sets.
        cache_bytes: Bytes of all files in the directory.
        tables: Results about the files that are kept, by name.
        seconds: Time it took.
        failed: Why a file was not copied, by its path.
        findings: What to know.
    """

    directory: str
    precision: str
    files: int
    built: int
    damaged: tuple[str, ...]
    elsewhere: int
    events: int
    cache_bytes: int
    tables: tuple[str, ...]
    seconds: float
    failed: dict[str, str]
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in asdict(self).items() if name != "findings"}


def prepare(config: str | Path, *, overrides: Sequence[str] = (), observer: Observer | None = None) -> Prepared:
    """Copy the events of a configuration into the cache and keep what ranks need at their start.

    Copied are files without a sound copy; a second call only reads every event of the copies and compares checksums.
    Trainings that run meanwhile go on reading the ROOT files and take the copies as they are finished. Files that
    another process is copying are waited for, and copied here where it ends without them.

    Args:
        config: YAML file.
        overrides: ``key=value`` settings that go before the file's.
        observer: Receives progress.

    Raises:
        UsageError: The cache is off.
        DiskError: No disk has room, or the directory cannot be used.
        XecError: The files cannot be read, or the configuration is wrong.
    """
    began, watching = time.monotonic(), observer or NullObserver()
    settings = load_config(config, overrides).config
    if settings.data.cache == "off":
        raise UsageError(
            "the cache is off", where="data.cache: off", fix="--set data.cache=auto   # or --set data.cache=./cache"
        )
    data = open_data(settings, prepares=True)
    event_weights(data.config, data.train, data.tables)
    caches = [_cache_of(source, data.cache) for source in (data.train, data.val)]
    watching.message(data.cache)
    damaged = _checked(caches, settings.data.num_threads, watching)
    store = caches[0].store
    if store is None:
        raise _no_room(data.cache)
    missing = _missing(caches)
    watching.phase("prepare", sum(_missing_events(cache) for cache in caches))
    result = _build_all(caches, store, settings.data.num_threads, watching)
    return Prepared(
        directory=str(store.directory),
        precision=settings.data.cache_precision,
        files=sum(len(source.files) for source in (data.train, data.val)),
        built=result.built,
        damaged=damaged,
        elsewhere=max(0, len(missing.keys() - _missing(caches).keys()) - result.built),
        events=data.train.num_events + data.val.num_events,
        cache_bytes=store.used_bytes(),
        tables=tuple(sorted(path.name for path in (data.tables.directory or store.directory).glob("*.npz"))),
        seconds=round(time.monotonic() - began, 3),
        failed=result.failed,
        findings=(*data.train.findings, *data.val.findings, *(_not_built(*item) for item in result.failed.items())),
    )


def _cache_of(source: EventSource, note: str) -> CachedEvents:
    if not isinstance(source.cache, CachedEvents) or source.cache.store is None:
        raise _no_room(note)
    return source.cache


def _missing(caches: Sequence[CachedEvents]) -> dict[str, str]:
    """Return the paths of the files without a copy, by the digest of the copy."""
    return {str(cache.digests[i]): cache.source.files[i].path for cache in caches for i in cache.missing()}


def _missing_events(cache: CachedEvents) -> int:
    return sum(cache.source.files[index].num_selected for index in cache.missing())


def _checked(caches: Sequence[CachedEvents], num_threads: int, watching: Observer) -> tuple[str, ...]:
    """Read all copies that are there, in threads; return the files whose copy was damaged and is thrown away.

    Raises:
        DiskError: A damaged copy cannot be removed.
    """
    there = [(cache, index) for cache in caches for index in range(len(cache.digests)) if cache.is_there(index)]
    if not there:
        return ()
    watching.phase("check copies", sum(cache.source.files[index].num_selected for cache, index in there))

    def damaged(cache: CachedEvents, index: int) -> str:
        found, file = cache.is_damaged(index), cache.source.files[index]
        watching.advanced(file.num_selected, {})
        if found and cache.is_there(index) and cache.store is not None:
            raise cache.store.refused(f"the copy of {file.path} is damaged or cannot be read, and cannot be removed")
        return file.path if found else ""

    with ThreadPoolExecutor(num_threads, thread_name_prefix="xectool-cache") as pool:
        return tuple(filter(None, pool.map(lambda item: damaged(*item), there)))


def _build_all(caches: Sequence[CachedEvents], store: CacheStore, num_threads: int, watching: Observer) -> BuildResult:
    """Build what is missing, wait for what other processes are building, and build what they leave behind."""
    built, failed, told, alone = 0, dict[str, str](), False, False
    while True:
        for cache in caches:
            result = _build(cache, num_threads, watching)
            built, failed = built + result.built, failed | result.failed
        missing = _missing(caches)
        if failed or not missing:
            return BuildResult(built, failed)
        waiting = sum(store.is_built_elsewhere(digest) for digest in missing)
        if alone and not waiting:
            return BuildResult(built, dict.fromkeys(missing.values(), _GONE))
        if waiting and not told:
            watching.message(f"waiting for another process, which is copying {counted(waiting, 'file')}")
            told = True
        alone = not waiting  # whoever was building may have ended without it between the two looks: once more
        time.sleep(_LOOK_AGAIN_S)


def _build(cache: CachedEvents, num_threads: int, watching: Observer) -> BuildResult:
    """Build what is missing in threads, each beginning in another place; locks keep them apart."""
    if cache.store is not None:
        cache.store.clean()
    places = [len(cache.digests) * number // num_threads for number in range(num_threads)]
    with ThreadPoolExecutor(num_threads, thread_name_prefix="xectool-cache") as pool:
        told = [
            pool.submit(build_missing, cache, first, lambda: False, lambda count: watching.advanced(count, {}))
            for first in places
        ]
        results = [future.result() for future in told]
    failed = {path: reason for result in results for path, reason in result.failed.items()}
    return BuildResult(sum(result.built for result in results), failed)


def _no_room(note: str) -> DiskError:
    return DiskError(
        f"nothing can be prepared: {note}",
        where="data.cache",
        fix="--set data.cache=DIR   # a directory on a larger local disk, e.g. ./cache",
        code="XT-CACHE-PLACE",
    )


def _not_built(path: str, reason: str) -> Finding:
    return Finding(
        code="XT-CACHE-NOT-BUILT",
        severity=Severity.ERROR,
        problem=f"the events of {path} were not copied: {reason}",
        where=path,
        fix="--set data.cache_precision=compact   # or --set data.cache_limit_gb=GB, or another data.cache",
    )
