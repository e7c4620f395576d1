"""``estimate-memory``: device, host and disk of a training, before anything is allocated."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from xectool.config.load import load_config
from xectool.config.platform import ADDRESS_SPACE, MAPPED_BYTES, Platform, memory_limits
from xectool.config.root import RunConfig
from xectool.detector.platforms import Gpu, find_gpu
from xectool.diagnosis.environment.torch_facts import ask_torch
from xectool.errors import UsageError
from xectool.findings import Finding, Severity
from xectool.training.memory_estimate.calibration import Calibration, load_calibration, numbers_of, save_calibration
from xectool.training.memory_estimate.child import ask, measure
from xectool.training.memory_estimate.device import GRAPH_MODES, USABLE, Device
from xectool.training.memory_estimate.estimate import Estimate, Wanted, compile_threads, estimate
from xectool.training.memory_estimate.host import CACHE_TERM, READ_TERM, STEP_TERM
from xectool.training.memory_estimate.plan import plan, smaller

QUICKSTART: Final[Mapping[str, Any]] = {
    "kind": "regressor",
    "data": {"batch_size": 16, "chunksize": 4096},
    "model": {
        "encoder_dim": 128, "hidden_dim": 128, "outer_fine_pool": [5, 3], "dropout": 0.0, "head_dropout": 0.0,
    },
    "tasks": {task: {"enabled": True, "scale": "auto", "shift": "auto"}
              for task in ("angle", "energy", "timing", "uvwFI")},
    "training": {"epochs": 8, "warmup_epochs": 0, "ema_decay": 0.99, "channel_dropout_rate": 0.0},
}  # fmt: skip
"""What is estimated without a configuration: the quickstart's network (examples/quickstart.yaml)."""
DEFAULT_EVENTS: Final = 1_000_000
HOST_SHARE: Final = 0.9
_HOST_CURES: Final = {
    "reader processes": "--set data.num_workers=0", "compile processes": "--set training.compile=none",
}  # fmt: skip
"""What takes away a whole term of the host."""
_OF_BATCHES: Final = ("data.batch_size", "training.grad_accum_steps")
OLDER_BATCHES: Final = {
    "regressor": ("8192-16384", "16384-32768"),
    "mae": ("1024-2048", "2048-4096"),
    "inpainter": ("1024-2048", "2048-4096"),
}
"""Batches for A100 40GB and GH200 96GB by an older table."""


@dataclass(frozen=True)
class MemoryEstimate:
    """What a training needs, and whether it is there.

    Attributes:
        config: The configuration that was estimated.
        estimate: All that is known.
        limits: What limits the memory of the host, in bytes, by its name.
        free_bytes: Free disk where the run would be written.
        calibration: Where the machine's numbers come from.
        findings: What does not fit, and the account of predictions.
        events: Events of the data set.
    """

    config: RunConfig
    estimate: Estimate
    limits: Mapping[str, int]
    free_bytes: int
    calibration: Calibration
    findings: tuple[Finding, ...] = ()
    events: int = DEFAULT_EVENTS

    @property
    def fits(self) -> bool:
        """Whether device, host and disk suffice."""
        return self.fits_device and self.fits_host and self.fits_disk

    @property
    def fits_device(self) -> bool:
        """Whether the device suffices; on the CPU that is a matter of the host alone."""
        return self.estimate.device.fits(self.estimate.step) if self.estimate.device.is_gpu else self.fits_host

    @property
    def fits_host(self) -> bool:
        """Whether the host suffices."""
        return self.estimate.host_bytes <= HOST_SHARE * min(self.limits.values())

    @property
    def fits_disk(self) -> bool:
        """Whether the disk suffices."""
        return sum(self.estimate.disk.values()) <= self.free_bytes

    @property
    def older_batches(self) -> tuple[str, str]:
        """Batches for A100 40GB and GH200 96GB by the older table, which knew a smaller model."""
        return OLDER_BATCHES[self.config.kind]

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        found, step = self.estimate, self.estimate.step
        return {
            "gpu": {
                **{f"{name}_bytes": step.total(name) for name in ("parameters", "gradients", "optimizer", "ema")},
                "activations_bytes": step.saved(),
                "inputs_bytes": step.total("inputs"),
                "peak_bytes": found.device.tensors(step),
                "capacity_bytes": found.device.total_bytes,
                "fits": self.fits_device,
                "max_batch_size": found.max_batch,
            },
            "cpu": {
                "loader_bytes": found.loader_bytes,
                "predictions_bytes": found.predictions_bytes,
                "peak_bytes": found.host_bytes,
                "capacity_bytes": min(self.limits.values()),
                "fits": self.fits_host,
            },
            "disk": {
                "checkpoint_bytes": found.checkpoint_bytes,
                "predictions_bytes": found.disk["predictions"],
                "cache_bytes": found.disk[CACHE_TERM],
                "free_bytes": self.free_bytes,
                "fits": self.fits_disk,
            },
            "advice": found.advice,
        }


def estimate_memory(  # noqa: PLR0913  the function is the command: one argument an option
    config: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    events: int | None = None,
    batch_size: int | None = None,
    gpu: str | None = None,
    max_batch: bool = False,
    mask_ratio: float | None = None,
    calibrate: bool = False,
) -> MemoryEstimate:
    """Estimate what a training needs of device, host and disk, without allocating any of it.

    Args:
        config: YAML file; None takes the quickstart's network.
        overrides: ``key=value`` settings that go before the file's.
        events: Events of the data set and its predictions; None counts those of the training files, a million without.
        batch_size: Goes before ``data.batch_size``.
        gpu: Name or size of a GPU; None takes the device of the configuration on this machine.
        max_batch: Also look for the largest batch that fits.
        mask_ratio: Share of hidden sensors; sets ``model.mask_ratio`` where the network has one.
        calibrate: First measure one real step on this machine and keep what the estimate leaves out.

    Raises:
        XecError: Anything the user can act on.
    """
    if events is not None and events < 1:
        raise UsageError(f"{events} events leave nothing to estimate", where="--events", fix="--events 1M")
    if mask_ratio is not None and not 0 < mask_ratio < 1:
        raise UsageError(f"a mask ratio of {mask_ratio:g}", where="--mask-ratio", fix="--mask-ratio 0.05")
    loaded = _loaded(config, _settings(overrides, batch_size))
    if mask_ratio is not None and loaded.kind != "regressor":
        loaded = _loaded(config, [*_settings(overrides, batch_size), f"model.mask_ratio={mask_ratio}"])
    if events is None:
        events = _events_of(loaded) if config is not None else DEFAULT_EVENTS
    limits = memory_limits(loaded.distributed.num_gpus)
    device, amp = _device(loaded, gpu, min(limits.values()))
    if calibrate:
        _calibrate(loaded, device, amp)
    calibration = load_calibration()
    device = calibration.on(device)
    threads = compile_threads(loaded, device.is_gpu)
    wanted = Wanted(events, amp, max_batch, mask_ratio=mask_ratio, compile_threads=threads)
    found = estimate(loaded, device, wanted, calibration)
    blank = MemoryEstimate(loaded, found, limits, _free(loaded), calibration, events=events)
    return replace(blank, findings=verdicts(blank))


def verdicts(result: MemoryEstimate) -> tuple[Finding, ...]:
    """Return what does not fit as errors, and the accounts of loader and predictions as notes."""
    config, found = result.config, result.estimate
    fix = " ".join(f"--set {setting}" for setting in _settings_that_fit(config, found))
    errors: list[Finding] = []
    if found.device.is_gpu and not result.fits_device:
        peak, total = found.device.needed(found.step) / 1e9, found.device.total_bytes / 1e9
        most = "" if found.max_batch is None else f"; max batch {found.max_batch}"
        problem = f"predicted peak {peak:.4g} GB > {USABLE:.0%} of {total:.4g} GB ({found.device.name}){most}"
        errors.append(Finding("CFG-22", Severity.ERROR, problem, "data.batch_size", fix=fix))
    if not result.fits_host:
        name = max(found.host, key=lambda term: found.host[term])
        least = min(result.limits, key=lambda limit: result.limits[limit])
        cure = _host_cure(result, name, least) or fix
        problem = (
            f"estimated host RAM {found.host_bytes / 1e9:.4g} GB > available "
            f"{HOST_SHARE * result.limits[least] / 1e9:.4g} GB ({HOST_SHARE:.0%} of {least}); largest term: {name} "
            f"{found.host[name] / 1e9:.4g} GB"
        )
        errors.append(Finding("CFG-20", Severity.ERROR, problem, "data.chunksize", found.lines[:2], cure))
    if not result.fits_disk:
        problem = (
            f"the run needs {sum(found.disk.values()) / 1e9:.4g} GB of disk, {result.free_bytes / 1e9:.4g} GB free"
        )
        cure = "--set checkpoint.save_dir=PATH  # on a larger disk"
        errors.append(Finding("CFG-53", Severity.ERROR, problem, "checkpoint.save_dir", fix=cure))
    notes = [Finding("XT-MEM-LOADER", Severity.INFO, "host memory of the loader", "data.chunksize", found.lines[:2])]
    if found.predictions:
        problem = f"{found.predictions.count:,} predictions of single sensors"
        notes.append(Finding("XT-MEM-PREDICTIONS", Severity.INFO, problem, "model.mask_ratio", found.lines[2:]))
    return (*errors, *notes)


def _host_cure(result: MemoryEstimate, largest: str, limit: str) -> str:
    """Return the line for a host that does not suffice; empty where smaller batches are the cure."""
    data, found = result.config.data, result.estimate
    chunk = max(data.batch_size, data.chunksize // 2)
    if largest == "loader" and chunk < data.chunksize:
        return f"--set data.chunksize={chunk}"
    if largest in _HOST_CURES:
        return _HOST_CURES[largest]
    # Reading a checkpoint that takes more than the step does not get smaller with the batch.
    shrinks = 0 if READ_TERM in found.host else found.host.get(STEP_TERM, 0)
    if found.host_bytes - shrinks <= HOST_SHARE * result.limits[limit]:
        return ""
    needed = found.host_bytes / HOST_SHARE
    if limit == ADDRESS_SPACE:
        return f"ulimit -v {math.ceil((needed + MAPPED_BYTES) / 1024)}"
    needed *= result.config.distributed.num_gpus
    if limit.startswith("SLURM"):
        return f"sbatch --mem={math.ceil(needed / 2**20)}M JOB.sh"
    return f"a machine or job with {needed / 1e9:.3g} GB of memory: no setting makes the rest of the process smaller"


def _settings_that_fit(config: RunConfig, found: Estimate) -> tuple[str, ...]:
    """Return the settings of the largest batch that fits; where none does, of one event with every other remedy."""
    batches = smaller(config, found.fitting_batch)
    if found.fitting_batch:
        return batches
    rest = (setting for item in found.advice if item.saves_bytes for setting in item.settings)
    kept = (setting for setting in rest if setting.partition("=")[0] not in _OF_BATCHES)
    return (*batches, *kept)


def _events_of(config: RunConfig) -> int:
    from xectool.rootio.counting import count_events  # uproot, which the rest does without

    return count_events(config.data.train_path, config.data.tree_name) or DEFAULT_EVENTS


def _settings(overrides: Sequence[str], batch_size: int | None) -> list[str]:
    return [*overrides, *([] if batch_size is None else [f"data.batch_size={batch_size}"])]


def _loaded(config: str | Path | None, overrides: Sequence[str]) -> RunConfig:
    if config is not None:
        return load_config(config, overrides).config
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="quickstart-") as file:
        yaml.safe_dump(dict(QUICKSTART), file)
        file.flush()
        return load_config(file.name, overrides).config


def _device(config: RunConfig, gpu: str | None, host_bytes: int) -> tuple[Device, str]:
    """Return the device that is estimated for, and the precision there."""
    training = config.training
    card = find_gpu(gpu) if gpu else _own_gpu(training.device)
    amp = training.amp
    if card is None:
        return Device("cpu", host_bytes, is_gpu=False), "off" if amp == "auto" else amp
    if amp == "auto":
        amp = "bf16" if card.has_bf16 else "off"
    return Device(card.name, card.total_bytes, is_gpu=True, graphs=training.compile in GRAPH_MODES), amp


def _own_gpu(device: str) -> Gpu | None:
    """Return the GPU of this machine that a configuration asks for; its memory is what the driver says."""
    if device == "cpu" or Platform.detect().num_gpus == 0:
        return None
    index = int(device.partition(":")[2] or 0) if device != "auto" else 0
    facts = next((item for item in ask_torch().devices if item.index == index), None)
    if facts is None:
        return None
    return Gpu(facts.name, facts.total_bytes, has_bf16=int(facts.capability.partition(".")[0]) >= 8)


def _free(config: RunConfig) -> int:
    directory = Path(config.checkpoint.save_dir).expanduser().absolute()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return shutil.disk_usage(existing).free


def _calibrate(config: RunConfig, device: Device, amp: str) -> None:
    """Measure one real step here, compare with its estimate, and keep the difference for later estimates."""
    on_gpu = device.is_gpu and _own_gpu(config.training.device) is not None
    whole = next(iter(plan(config, amp, (1.0, 1.0), False, False, on_gpu).requests.values()))
    without = replace(whole, validation_batch=0)
    tapes = ask({"whole": without, "one": replace(without, batch_size=1)}, 1).recordings
    measured = measure(whole, "cuda" if on_gpu else "cpu")
    save_calibration(numbers_of(measured, tapes[1].peak(), tapes[0].peak()))
