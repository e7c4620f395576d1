"""What the experiments with the loader share: the events of a configuration, and the settings they are read with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xectool.config.inputs import is_remote
from xectool.config.root import RegressorConfig, RunConfig
from xectool.data.cache.cached_events import CachedEvents
from xectool.data.cache.deciding import choose_cache, with_cache
from xectool.data.events import EventSource
from xectool.data.loader import LoaderOptions, loader_memory_bytes
from xectool.data.plan import DataPlan
from xectool.data.source import open_source

INTERPRETER_BYTES = 250_000_000  # a reader process without torch, measured
_CACHE_PROBES = 64


@dataclass(frozen=True, order=True)
class Setting:
    """How events are read.

    Attributes:
        chunksize: Events that are shuffled together.
        num_workers: Reader processes; 0 reads in threads of this one.
        num_threads: Reading threads of a process.
    """

    chunksize: int
    num_workers: int
    num_threads: int

    @classmethod
    def of(cls, config: RunConfig) -> Setting:
        """Return the setting of a configuration."""
        return cls(config.data.chunksize, config.data.num_workers, config.data.num_threads)

    @property
    def keys(self) -> Mapping[str, int]:
        """Configuration keys and their values."""
        return {f"data.{name}": value for name, value in vars(self).items()}

    def differing(self, other: Setting) -> dict[str, int]:
        """Return the configuration keys in which another setting differs, with its values."""
        return {key: value for key, value in other.keys.items() if self.keys[key] != value}

    def __str__(self) -> str:
        return f"chunksize {self.chunksize}, {self.num_workers} workers, {self.num_threads} threads"


@dataclass(frozen=True)
class LoadingSubject:
    """The training events of a configuration.

    Attributes:
        config: The configuration.
        source: The events, as training reads them in its first epoch: from the cache where that is whole.
        copied: What training says about the cache it makes meanwhile; empty where it makes none.
    """

    config: RunConfig
    source: EventSource
    copied: str = ""

    @classmethod
    def of(cls, config: RunConfig) -> LoadingSubject:
        """Open the training events.

        Raises:
            DataFileError: A file or branch is missing or unreadable.
        """
        tasks = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
        source = open_source(config.data, "train", tasks=tasks)
        choice = choose_cache(config, [source])
        if choice.directory is None or not choice.directory.is_dir():
            return cls(config, source, choice.note if choice.builds else "")
        (cached,) = with_cache([source], config, replace(choice, builds=False))
        whole = isinstance(cached.cache, CachedEvents) and cached.cache.is_complete
        return cls(config, cached if whole else source, choice.note if choice.builds and not whole else "")

    def plan(self, chunksize: int) -> DataPlan:
        """Return the order of the events with a chunk size."""
        data = self.config.data
        return DataPlan(
            self.source.files,
            batch_size=data.batch_size,
            seed=self.config.training.seed,
            shuffle=data.shuffle,
            num_shards=data.num_shards,
            chunksize=chunksize,
            drop_last=data.drop_last,
        )

    def options(self, setting: Setting) -> LoaderOptions:
        """Return how a setting reads, with what it leaves open as configured; batches are never pinned."""
        data = self.config.data
        return LoaderOptions(
            num_workers=setting.num_workers,
            num_threads=setting.num_threads,
            prefetch_factor=2 if data.prefetch_factor is None else data.prefetch_factor,
            mp_context=data.mp_context,
            timeout_s=data.timeout_s,
        )

    def memory_bytes(self, setting: Setting) -> int:
        """Return an upper bound on the host memory a setting takes."""
        bound = loader_memory_bytes(self.plan(setting.chunksize), self.options(setting), self.source.widths)
        return bound + setting.num_workers * INTERPRETER_BYTES

    @property
    def file_bytes(self) -> int:
        """Size of all files on this machine."""
        return sum(os.path.getsize(file.path) for file in self.local_files)

    @property
    def local_files(self) -> Sequence[Any]:
        """The files that are not remote."""
        return [file for file in self.source.files if not is_remote(file.path)]


def cached_share(subject: LoadingSubject) -> float:
    """Return the share of the local files that lies in the page cache, from 64 places; nothing is read from disk."""
    files, random = subject.local_files, np.random.default_rng(0)
    found = []
    for index in random.integers(0, len(files), _CACHE_PROBES) if files else ():
        path = files[index].path
        found.append(_is_cached(path, int(random.integers(0, max(os.path.getsize(path) - 1, 1)))))
    return sum(found) / len(found) if found else 0.0


def _is_cached(path: str, offset: int) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError:  # it would have to wait for the disk, or the file system cannot tell
        return False
    finally:
        os.close(descriptor)


def spread(values: Sequence[float]) -> float:
    """Return half the distance of the quartiles over the median; 0 for a single value, which tells nothing of it."""
    if len(values) < 2:
        return 0.0
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float((high - low) / 2 / middle) if middle else 0.0


def events_per_basket(subject: LoadingSubject, num_files: int = 16) -> float:
    """Return in how large a basket (page cluster of an RNTuple) the photons of a typical event lie, in events."""
    sizes: list[Any] = []
    filled = [index for index, file in enumerate(subject.source.files) if file.num_entries]
    for index in filled[:: max(1, len(filled) // num_files)]:
        edges = subject.source.event_file(index).column(subject.source.branches.npho).boundaries()
        found = np.diff(edges)
        sizes.append(np.repeat(found, found))
    return float(np.median(np.concatenate(sizes)))


def whole_basket_chunk(subject: LoadingSubject) -> int:
    """Return the chunk size that holds a whole typical basket, so that none is decompressed twice."""
    return int(events_per_basket(subject))
