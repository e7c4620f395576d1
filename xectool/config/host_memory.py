"""What a rank takes of the host's memory beside the tensors of its steps: one account for every command that asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from xectool.config.data import DataConfig
from xectool.config.root import RunConfig
from xectool.config.serialize import inline_yaml

BYTES_PER_EVENT = 4760 * 2 * 4
# Resident memory of `xectool train` without tensors and loader (x86-64, torch 2.13 CPU, measured): 40 MB more just
# after an installation, as Linux maps more of the libraries then, and 40 less later. From Python, or with plugins, it
# is 50 MB more where pyarrow is installed (`xectool.rootio.lean`).
BASE_BYTES = 450_000_000
# One reader process; it loads no torch. 63 MB are its own, 110 resident with what it shares (measured).
READER_BYTES = 80_000_000
# What a CUDA driver maps on the host; not measured on a GPU.
GPU_HOST_BYTES = 1_500_000_000
# Largest decompressed block of a ROOT file and its compressed bytes, held by each reading thread.
BLOCK_BYTES = 2 * 16 * 1024 * 1024
# A builder of the cache reads so many at once; a storage cluster of up to twice as many is read whole.
CACHED_EVENTS = 512
BASE, READERS, GPU_DRIVER = "interpreter and libraries", "reader processes", "driver of the GPU"
SHUFFLED, AHEAD, VALIDATED = "shuffling window", "windows read ahead", "windows of validation"
BATCHES, BLOCKS, CACHED = "batches", "blocks being read", "events being cached"
BATCHES_HELD = 3  # being filled, in use, and freed late
WORKER_OPTIONS: Final = ("prefetch_factor", "persistent_workers", "mp_context", "timeout_s")  # CFG-15


def reader_settings(data: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return the settings for so many reading processes; without any, what only processes have is given up as well.

    They change no batch: a run takes them wherever it goes on.

    Args:
        data: The section ``data`` of a configuration, in which keys may be missing.
        count: Reading processes.

    >>> reader_settings({"num_workers": 4, "prefetch_factor": 8}, 0)
    ('data.num_workers=0', 'data.prefetch_factor=null')
    """
    fields = DataConfig.model_fields
    given = {name: data.get(name, fields[name].default) for name in WORKER_OPTIONS if name in data}
    changed = [name for name, value in given.items() if value != fields[name].default]
    without = [f"data.{name}={inline_yaml(fields[name].default)}" for name in changed]
    return (f"data.num_workers={count}", *(without if count == 0 else ()))


@dataclass(frozen=True)
class NumEvents:
    """Events of a run, where they are known: no window holds more.

    Attributes:
        training: Of the training files.
        validation: Of the validation files; as many as of training where they are not known.
    """

    training: int | None = None
    validation: int | None = None


@dataclass(frozen=True)
class _Held:
    """Events in the memory of one loader, in files of unknown clusters."""

    used: int
    ahead: int
    batches: int
    known: int | None


def host_memory_bytes(config: RunConfig, events: NumEvents | None = None, on_gpu: bool = False) -> dict[str, float]:
    """Return the terms of the host memory a rank takes beside the tensors of its steps, in bytes.

    Args:
        config: The run.
        events: Events there are.
        on_gpu: Whether it trains on a GPU, whose driver takes some.
    """
    own = {BASE: BASE_BYTES, READERS: READER_BYTES * config.data.num_workers}
    return own | loader_terms(config, events or NumEvents()) | ({GPU_DRIVER: GPU_HOST_BYTES} if on_gpu else {})


def loader_terms(config: RunConfig, events: NumEvents) -> dict[str, float]:
    """Return what the loaders of training and validation hold at most, in bytes.

    Buffers of the one are kept while the other reads.
    """
    data = config.data
    trained = events.training
    validated = trained if events.validation is None else events.validation
    training = _held(data, trained, data.batch_size, data.shuffle)
    validation = _held(data, validated, config.validation.batch_size or data.batch_size, False)
    threads = data.num_threads * max(1, data.num_workers)
    blocks = sum(_at_most(BLOCK_BYTES, held.known, BYTES_PER_EVENT) for held in (training, validation))
    found = {
        SHUFFLED: training.used * BYTES_PER_EVENT,
        AHEAD: training.ahead * BYTES_PER_EVENT,
        VALIDATED: (validation.used + validation.ahead) * BYTES_PER_EVENT,
        BATCHES: (training.batches + validation.batches) * BYTES_PER_EVENT,
        BLOCKS: threads * blocks,
    }
    if data.cache not in ("auto", "off"):
        found[CACHED] = 4 * _at_most(CACHED_EVENTS, trained) * BYTES_PER_EVENT
    return {name: float(size) for name, size in found.items()}


def fitting_sizes(config: RunConfig, taken: Callable[[RunConfig], float], budget: float) -> dict[str, int]:
    """Return settings whose windows and batches fit: a ``data.chunksize``, a multiple of the batch.

    Where none does, the largest ``data.batch_size`` with windows of one batch; empty where not even that does.

    Args:
        config: The run, which does not fit.
        taken: Memory of a configuration, bytes.
        budget: Memory there is, bytes.
    """
    batch, chunk = config.data.batch_size, config.data.chunksize

    def fits(sizes: dict[str, int]) -> bool:
        changed = {key.removeprefix("data."): size for key, size in sizes.items()}
        return taken(config.model_copy(update={"data": config.data.model_copy(update=changed)})) <= budget

    def window(batches: int) -> dict[str, int]:
        return {"data.chunksize": batches * batch}

    def one_batch(size: int) -> dict[str, int]:
        return {"data.batch_size": size, "data.chunksize": size}

    if batches := _largest(max(1, chunk // batch), lambda count: fits(window(count))):
        return window(batches)
    size = _largest(batch, lambda size: fits(one_batch(size)))
    return one_batch(size) if size else {}


def _held(data: DataConfig, events: int | None, batch_size: int, shuffle: bool) -> _Held:
    """Return what one loader holds: one window a shard in use, those read ahead, and batches."""
    batches = BATCHES_HELD * _at_most(batch_size, events)
    window = data.chunksize if shuffle else max(1, data.chunksize // data.num_shards)
    if events is not None and events <= window:
        return _Held(events, 0, batches, events)  # one window holds all
    shards = data.num_shards if shuffle else 1
    window = max(1, data.chunksize // data.num_shards)
    # Windows are cut at blocks of a quarter of one.
    largest = _at_most(window + max(1, window // 4) // 2, events)
    ahead = data.num_workers * (data.prefetch_factor or 2) if data.num_workers else data.num_threads
    return _Held(_at_most(shards, events) * largest, ahead * largest, batches, events)


def _at_most(count: int, events: int | None, unit: int = 1) -> int:
    return count if events is None else min(count, events * unit)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return a number up to ``most`` that fits, the largest where all below one that fits do; 0 where 1 does not."""
    if not fits(1):
        return 0
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
