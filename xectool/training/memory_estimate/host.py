"""Host memory and disk of a run, term by term."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from xectool.config.host_memory import BASE, BYTES_PER_EVENT, GPU_DRIVER, GPU_HOST_BYTES, READER_BYTES, READERS
from xectool.config.platform import compile_threads, most_mapped_bytes
from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.rules.count import prediction_bytes
from xectool.training.memory_estimate.calibration import Calibration
from xectool.training.memory_estimate.predictions import COLUMN_BYTES, SensorPredictions

if TYPE_CHECKING:
    from torch import Tensor, nn

HOST_SHARE: Final = 0.9
"""Share of the memory of the host that is planned with."""
PLOTS_BYTES: Final = 60_000_000
"""Libraries and figures of the plots at the end (measured)."""
READ_SLACK: Final = 1.15
"""Resident memory over weights, average and optimizer, those trained and those of the best checkpoint (measured)."""
COMPILE_THREAD_BYTES: Final = 1_000_000_000
"""One compile process (chosen; older advice)."""
OLDER_FACTORS: Final = {"float32": 6.5, "float64": 8.4}
"""Peak of the older loader in units of a worker's raw float32 chunk, by type of the branches, measured."""
INCIDENT_CAP_BYTES: Final = 1_000_000_000
CACHE_TERM: Final = "event cache"
LOADER_TERM: Final = "loader"
COMPILE_TERM: Final = "compile processes"
STEP_TERM: Final = "tensors of the step"
READ_TERM: Final = "best checkpoint, read at the end"
"""Beyond what the step took before."""
_EXTRA_CHECKPOINTS: Final = 3  # last, best, and the one being written
_MOMENTS: Final = 2  # of AdamW
_ENTRY_BYTES: Final = 320  # of a tensor in a checkpoint: name and entry of the archive (measured)
_EPOCH_FILE_EVENTS: Final = 1000


@dataclass(frozen=True)
class HostSide:
    """What decides the memory of the host.

    Attributes:
        config: The run.
        loader_bytes: Bound on what the loader holds.
        tensors_bytes: Peak of all tensors.
        on_gpu: Whether these lie on a GPU.
        compile_threads: Compile processes at once.
        predictions: Of single sensors, None for a regressor.
        checkpoint_bytes: Of one checkpoint; the best one is read at the end, beside what is trained.
    """

    config: RunConfig
    loader_bytes: int
    tensors_bytes: int
    on_gpu: bool
    compile_threads: int = 0
    predictions: SensorPredictions | None = None
    checkpoint_bytes: int = 0

    def predictions_bytes(self) -> int:
        """Return the peak of writing predictions: one batch."""
        batch = self.config.validation.batch_size or self.config.data.batch_size
        return self.predictions.streamed_bytes(batch) if self.predictions else 2 * batch * row_bytes(self.config)

    def terms(self, calibration: Calibration) -> dict[str, int]:
        """Return the memory of the host by what takes it, in bytes."""
        data = self.config.data
        found = {
            BASE: calibration.base_bytes,
            LOADER_TERM: self.loader_bytes,
            READERS: data.num_workers * READER_BYTES,
            "predictions, one batch": self.predictions_bytes(),
        }
        if self.config.checkpoint.save_artifacts:
            found["plots at the end"] = PLOTS_BYTES
        if self.on_gpu:
            found[GPU_DRIVER] = GPU_HOST_BYTES
        else:
            found[STEP_TERM] = calibration.resident(self.tensors_bytes)
        beside = 1 if self.on_gpu else 2  # what is trained lies on the GPU
        read = round(READ_SLACK * beside * self.checkpoint_bytes) - found.get(STEP_TERM, 0)
        if read > 0:
            found[READ_TERM] = read
        if self.compile_threads:
            found[COMPILE_TERM] = self.compile_threads * COMPILE_THREAD_BYTES
        return found


def compile_processes(config: RunConfig, on_gpu: bool) -> int:
    """Return how many processes the compiler of a run starts; none where it does not run."""
    mode = config.training.compile
    if mode == "none" or (mode == "auto" and not on_gpu):
        return 0
    return compile_threads()


def loader_lines(config: RunConfig, loader_bytes: int, cache_bytes: int = 0) -> tuple[str, ...]:
    """Return the account of the loader, its cache of events, and what the older one would take with the same numbers.

    What is mapped of a cache is no term of the host's memory: the kernel takes these pages back where it needs them.
    """
    data = config.data
    raw = data.chunksize * BYTES_PER_EVENT
    workers = max(1, data.num_workers)
    older = ", ".join(
        f"x {factor:g} ({kind}) x {workers} = {workers * factor * raw / 1e9:.4g} GB"
        for kind, factor in OLDER_FACTORS.items()
    )
    text = f"event cache: {cache_bytes / 1e9:.2f} GB are mapped: shown as resident, taken back where memory is short"
    mapped = (text,) if 0 < cache_bytes <= most_mapped_bytes() else ()
    return (
        f"chunk: {data.chunksize} events x {BYTES_PER_EVENT} B = {raw / 1e9:.2f} GB raw float32, held once for all "
        f"workers; loader at most {loader_bytes / 1e9:.4g} GB = x {loader_bytes / raw:.3g} of it",
        f"for comparison, the loader of the older software held a chunk in each worker: {raw / 1e9:.2f} GB {older}",
        *mapped,
    )


def row_bytes(config: RunConfig) -> int:
    """Return the bytes of one row of a prediction file."""
    return int(prediction_bytes(config)) if isinstance(config, RegressorConfig) else 0


def checkpoint_bytes_of(model: nn.Module, config: RunConfig) -> int:
    """Return the size of one checkpoint of a network, whose tensors may be without data.

    Weights and the buffers that are saved, their average, and the optimizer's two moments and step.
    """
    copies = 1 if config.training.ema_decay is None else 2
    saved, trained = [*model.state_dict().values()], [item for item in model.parameters() if item.requires_grad]
    tensors = copies * len(saved) + (_MOMENTS + 1) * len(trained)
    return copies * _num_bytes(saved) + _MOMENTS * _num_bytes(trained) + tensors * _ENTRY_BYTES


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def kept_checkpoints(config: RunConfig) -> int:
    """Return how many checkpoints of a run lie on the disk at most, the one that is being written among them."""
    kept = _EXTRA_CHECKPOINTS + config.training.epochs // config.checkpoint.save_interval
    return kept + config.guards.ring_states if config.guards.on_spike == "rewind" else kept


def disk_terms(
    config: RunConfig, checkpoint_bytes: int, cache_bytes: int, events: int, predictions: SensorPredictions | None
) -> Mapping[str, int]:
    """Return the disk space of a run by what takes it, in bytes.

    Args:
        config: The run.
        checkpoint_bytes: Of one checkpoint.
        cache_bytes: Of the cache of events.
        events: Events that are predicted at the end.
        predictions: Of single sensors, None for a regressor.
    """
    checkpoint, training = config.checkpoint, config.training
    written = 0
    if checkpoint.save_predictions:
        written = predictions_file_bytes(config, events, predictions)
    window = config.data.batch_size * training.grad_accum_steps * BYTES_PER_EVENT
    return {
        "checkpoints": kept_checkpoints(config) * checkpoint_bytes,
        "predictions": written,
        "incidents": min(config.guards.max_incidents * window, INCIDENT_CAP_BYTES),
        CACHE_TERM: cache_bytes,
    }


def predictions_file_bytes(config: RunConfig, events: int, predictions: SensorPredictions | None) -> int:
    """Return the size of all prediction files of a run, uncompressed."""
    if predictions is None:
        return events * row_bytes(config)
    interval = getattr(config.checkpoint, "root_save_interval", config.training.epochs)
    files = config.training.epochs // interval
    rows = predictions.count + files * min(events, _EPOCH_FILE_EVENTS) * predictions.per_event
    return rows * COLUMN_BYTES
