"""Whether the events of a run are cached, where, and how they are stored."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xectool.config.file_systems import is_local_disk
from xectool.config.inputs import is_remote
from xectool.config.normalization import NormalizationConfig
from xectool.config.platform import Platform
from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.tasks import TASK_WIDTHS
from xectool.data.cache.cached_events import CachedEvents
from xectool.data.cache.codec import Codec, Compact, Lossless
from xectool.data.cache.layout import cache_bytes
from xectool.data.cache.store import CacheStore, left_free
from xectool.data.cache.tables import PreparedTables
from xectool.data.events import EventSource
from xectool.errors import counted

# What reading an event from ROOT costs more than from the cache, in CPU seconds (docs/benchmarks.md).
_SAVED_S: Final = 1e-4
# A cache that saves less than this over the whole run is not worth its disk.
_WORTH_S: Final = 60.0
# Of the free disk a cache may take so much, where nothing else is said.
_MOST_OF_FREE: Final = 0.5
_ROOM: Final = "it may take half of what is free and leaves a tenth of a disk, 10 GB at most, to others"
# Photon numbers below which the normalisation treats a reading otherwise, by scheme (older system: reference 1.3).
_DOMAIN_EDGES: Final = {"anscombe": -0.375}


@dataclass(frozen=True)
class CacheChoice:
    """What was decided.

    Attributes:
        directory: Where cache files lie; None for no cache.
        builds: Whether missing files are built.
        note: Why, in one line.
    """

    directory: Path | None
    builds: bool
    note: str


def with_cache(
    sources: Sequence[EventSource], config: RunConfig, choice: CacheChoice, looks: bool = False
) -> list[EventSource]:
    """Return sources as they are served under a configuration; the copies of one make no room for those of another.

    Args:
        sources: Training and validation events.
        config: The run.
        choice: What was decided.
        looks: Whether no directory is made.

    Raises:
        DiskError: The directory of the cache cannot be made, or not be written where files must be built.
    """
    codec = codec_of(config)
    if config.data.cache == "off" or (choice.directory is None and isinstance(codec, Lossless)):
        return list(sources)
    store = None if choice.directory is None else store_of(config, choice.directory, looks)
    caches = [CachedEvents(source, codec, store, choice.note, choice.builds) for source in sources]
    for cache in caches:
        cache.kept = frozenset(digest for other in caches for digest in other.digests if digest)
        if store is not None and choice.builds and not store.is_writable and (lacking := cache.unusable()):
            names = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if len(lacking) > 3 else "")
            raise store.refused(f"no permission to write, and no sound copy is there of {names}")
    return [
        EventSource(source.files, source.branches, source.findings, cache)
        for source, cache in zip(sources, caches, strict=True)
    ]


def store_of(config: RunConfig, directory: Path, looks: bool = False) -> CacheStore:
    """Return the store in a directory, which is made unless one only looks.

    Raises:
        DiskError: The directory cannot be made.
    """
    limit = config.data.cache_limit_gb
    store = CacheStore(directory, None if limit is None else int(1e9 * limit))
    store.prepare(looks)
    return store


def codec_of(config: RunConfig) -> Codec:
    """Return how readings are stored."""
    if config.data.cache_precision == "lossless":
        return Lossless()
    return Compact([config.normalization.npho_threshold, *domain_edges(config.normalization)])


def domain_edges(normalization: NormalizationConfig) -> list[float]:
    """Return the photon numbers below which a reading counts as invalid."""
    if normalization.npho_scheme == "log1p":
        return [-0.999 * normalization.npho_scale]
    return [_DOMAIN_EDGES[normalization.npho_scheme]] if normalization.npho_scheme in _DOMAIN_EDGES else []


def needed_bytes(source: EventSource, config: RunConfig) -> int:
    """Return what the cache files of a source take together."""
    width, itemsize = sum(source.widths.values()), codec_of(config).dtype.itemsize
    return sum(cache_bytes(file.num_selected, itemsize, width) for file in source.files if file.num_selected)


def planned_cache(config: RunConfig, num_events: int, elsewhere: bool = False) -> tuple[int, str]:
    """Return what a cache of so many events would take, and why a run makes none; 0 bytes where it makes none.

    Args:
        config: The run.
        num_events: Of training and validation.
        elsewhere: Whether it runs on another machine, whose disks are not known.
    """
    tasks = config.tasks.enabled() if isinstance(config, RegressorConfig) else ()
    needed = cache_bytes(num_events, codec_of(config).dtype.itemsize, sum(TASK_WIDTHS[task] for task in tasks))
    if config.data.cache != "auto":
        return (0, "off (data.cache)") if config.data.cache == "off" else (needed, "")
    saved = _SAVED_S * (config.training.epochs - 1) * num_events
    if saved < _WORTH_S:
        return 0, f"{_saves_little(saved, config)}; one that was prepared is used"
    fits = elsewhere or _place(needed, config.data.cache_limit_gb, Platform.detect()) is not None
    return (needed, "") if fits else (0, _no_room(needed))


def place_of_copy(config: RunConfig, source: EventSource) -> Path | None:
    """Return a directory on a disk of this machine with room for a copy of events; None for urls, or without room."""
    if any(is_remote(file.path) for file in source.files):
        return None
    return _place(needed_bytes(source, config), config.data.cache_limit_gb, Platform.detect())


def choose_cache(
    config: RunConfig, sources: Sequence[EventSource], platform: Platform | None = None, wanted: bool = False
) -> CacheChoice:
    """Decide for a run.

    ``auto`` caches where that saves more than a minute of CPU over the run, on a local disk with room: twice what the
    cache takes, and what is left to others. Files that were prepared are used in any case.

    Args:
        config: The run.
        sources: Training and validation events.
        platform: The machine; None looks.
        wanted: Whether ``auto`` caches however little it saves.
    """
    data = config.data
    if data.cache == "off":
        return CacheChoice(None, False, "off (data.cache)")
    if data.cache != "auto":
        return CacheChoice(Path(data.cache).expanduser(), True, f"{data.cache} (data.cache)")
    if any(is_remote(file.path) for source in sources for file in source.files):
        return CacheChoice(None, False, "off, inputs are urls, whose changes are not seen")
    return _automatic(config, sources, platform or Platform.detect(), wanted)


def _automatic(config: RunConfig, sources: Sequence[EventSource], machine: Platform, wanted: bool) -> CacheChoice:
    needed = sum(needed_bytes(source, config) for source in sources)
    size = f"{needed / 1e9:.3g} GB"
    for place in _local_places(machine):
        if _is_prepared(config, sources, place):
            return CacheChoice(place, False, f"{place}, prepared, {size}")
    chosen = _place(needed, config.data.cache_limit_gb, machine)
    if chosen is None:
        return CacheChoice(None, False, _no_room(needed))
    saved = _SAVED_S * (config.training.epochs - 1) * sum(source.num_events for source in sources)
    if saved < _WORTH_S and not wanted:
        return CacheChoice(None, False, _saves_little(saved, config))
    return CacheChoice(chosen, True, f"{chosen}, {size}, saves {saved:.0f} s of CPU")


def _no_room(needed: int) -> str:
    return f"off, no local disk has room for {needed / 1e9:.3g} GB: {_ROOM} (data.cache: DIR)"


def _saves_little(saved: float, config: RunConfig) -> str:
    return f"off, it would save {saved:.0f} s of CPU in {counted(config.training.epochs, 'epoch')}"


def tables_of(config: RunConfig, writes: bool = False) -> PreparedTables:
    """Return where results about the files of a run are kept.

    Args:
        config: The run.
        writes: Whether new ones are kept under ``auto``; in a directory that the user names they always are.
    """
    if config.data.cache == "off":
        return PreparedTables()
    if config.data.cache != "auto":
        return PreparedTables(Path(config.data.cache).expanduser(), True)
    return PreparedTables(next(_writable_places(Platform.detect()), None), writes)


def _place(needed: int, limit_gb: float | None, platform: Platform) -> Path | None:
    """Return where ``auto`` keeps files of so many bytes together, None where nothing fits."""
    if limit_gb is not None and needed > 1e9 * limit_gb:
        return None
    for directory in _writable_places(platform):
        taken = CacheStore(directory).used_bytes() if directory.is_dir() else 0
        disk = shutil.disk_usage(_existing(directory))
        kept = left_free(disk.total) if limit_gb is None else 0
        if needed <= max(min(_MOST_OF_FREE * disk.free, disk.free - kept), taken):
            return directory
    return None


def _writable_places(platform: Platform) -> Iterator[Path]:
    """Yield the candidates that can be written and lie on a disk of this machine."""
    yield from (place for place in _local_places(platform) if os.access(_existing(place), os.W_OK))


def _local_places(platform: Platform) -> Iterator[Path]:
    """Yield the candidates that lie on a disk of this machine."""
    for directory in _candidates():
        if is_local_disk(platform.file_system(str(_existing(directory)))):
            yield directory


def _existing(directory: Path) -> Path:
    """Return the directory, or the nearest one above it that is there."""
    return next(path for path in (directory, *directory.parents) if path.exists())


def _candidates() -> Iterator[Path]:
    """Yield where a cache may lie: the user's cache directory, then the job's and the machine's temporary ones."""
    yield Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "xectool" / "events"
    for base in (os.environ.get("SLURM_TMPDIR"), tempfile.gettempdir()):
        if base:
            yield Path(base).absolute() / f"xectool-{os.getuid()}" / "events"


def _is_prepared(config: RunConfig, sources: Sequence[EventSource], place: Path) -> bool:
    if not place.is_dir():
        return False
    store = CacheStore(place)
    return all(CachedEvents(source, codec_of(config), store, builds=False).is_complete for source in sources)
