"""What an estimate of memory says: what does not fit, and settings with which it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xectool.config.host_memory import READERS
from xectool.config.platform import more_memory
from xectool.config.root import RunConfig
from xectool.config.save_places import other_save_dir
from xectool.findings import Finding, Severity
from xectool.training.memory_estimate.calibration import Calibration
from xectool.training.memory_estimate.device import USABLE
from xectool.training.memory_estimate.estimate import Estimate
from xectool.training.memory_estimate.host import CACHE_TERM, COMPILE_TERM, HOST_SHARE, LOADER_TERM, STEP_TERM

_KEY_OF_TERM: Final = {
    LOADER_TERM: "data.chunksize",
    READERS: "data.num_workers",
    STEP_TERM: "data.batch_size",
    COMPILE_TERM: "training.compile",
}
"""The setting that says how much a term of the host's memory takes."""
_MOST_TERMS: Final = 3

DEFAULT_EVENTS: Final = 1_000_000
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
        hidden_by: Key or option that says how many sensors are hidden.
        counted_from: Where the number of events comes from.
        line_there: Command for the machine that has the GPU, where that is another one: its host and disk are not known
            here, and not judged.
    """

    config: RunConfig
    estimate: Estimate
    limits: Mapping[str, int]
    free_bytes: int
    calibration: Calibration
    findings: tuple[Finding, ...] = ()
    events: int = DEFAULT_EVENTS
    hidden_by: str = "model.mask_ratio"
    counted_from: str = ""
    line_there: str = ""

    @property
    def elsewhere(self) -> bool:
        """Whether the GPU is one of another machine."""
        return bool(self.line_there)

    @property
    def first(self) -> Finding | None:
        """What to go on with: the first error, else the line for the machine that has the GPU."""
        return next((found for found in self.findings if found.fix), None)

    @property
    def fits(self) -> bool:
        """Whether the device suffices, and host and disk where they are those of this machine."""
        return self.fits_device and (self.elsewhere or (self.fits_host and self.fits_disk))

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
        return OLDER_BATCHES[self.config.base_kind]

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        found, step = self.estimate, self.estimate.step
        return {
            "gpu": {
                **{f"{name}_bytes": step.total(name) for name in ("parameters", "gradients", "optimizer", "ema")},
                "activations_bytes": step.saved(),
                "inputs_bytes": step.total("inputs"),
                "peak_bytes": found.device.allocated(step),
                "capacity_bytes": found.device.total_bytes,
                "fits": self.fits_device,
                "max_batch_size": found.max_batch,
            },
            "cpu": {
                "loader_bytes": found.loader_bytes,
                "predictions_bytes": found.predictions_bytes,
                "peak_bytes": found.host_bytes,
                "capacity_bytes": min(self.limits.values()),
                "fits": None if self.elsewhere else self.fits_host,
            },
            "disk": {
                "checkpoint_bytes": found.checkpoint_bytes,
                "predictions_bytes": found.disk["predictions"],
                "cache_bytes": found.disk[CACHE_TERM],
                "free_bytes": self.free_bytes,
                "fits": None if self.elsewhere else self.fits_disk,
            },
            "advice": found.advice,
        }


def verdicts(result: MemoryEstimate) -> tuple[Finding, ...]:
    """Return what does not fit as errors, and the accounts of loader and predictions as notes."""
    found = result.estimate
    errors: list[Finding] = []
    if found.device.is_gpu and not result.fits_device:
        peak, total = found.device.needed(found.step) / 1e9, found.device.total_bytes / 1e9
        most = "" if found.max_batch is None else f"; max batch {found.max_batch}"
        problem = f"predicted peak {peak:.4g} GB > {USABLE:.0%} of {total:.4g} GB ({found.device.name}){most}"
        errors.append(Finding("CFG-22", Severity.ERROR, problem, "data.batch_size", fix=_device_fix(found)))
    errors += [_not_judged(result)] if result.elsewhere else _of_machine(result)
    notes = [Finding("XT-MEM-LOADER", Severity.INFO, "host memory of the loader", "data.chunksize", found.lines[:2])]
    if found.predictions:
        problem = f"{found.predictions.count:,} predictions of single sensors"
        notes.append(Finding("XT-MEM-PREDICTIONS", Severity.INFO, problem, result.hidden_by, found.lines[2:]))
    return (*errors, *notes)


def _not_judged(result: MemoryEstimate) -> Finding:
    """Return what host and disk have to hold where the GPU is, with the line that judges them there."""
    found = result.estimate
    disk, cache = sum(found.disk.values()) / 1e9, found.disk[CACHE_TERM] / 1e9
    return Finding(
        "XT-MEM-ELSEWHERE",
        Severity.INFO,
        f"only the device was judged ({found.device.name}, which is not here): the host has to hold "
        f"{found.host_bytes / 1e9:.4g} GB and the disk {disk:.4g} GB (event cache {cache:.4g} GB) where it is",
        "--gpu",
        fix=f"{result.line_there}   # on that machine",
    )


def _of_machine(result: MemoryEstimate) -> list[Finding]:
    """Return what this machine lacks of host and disk."""
    found, errors = result.estimate, list[Finding]()
    if not result.fits_host:
        name = max(found.host, key=lambda term: found.host[term])
        least = min(result.limits, key=lambda limit: result.limits[limit])
        problem = (
            f"estimated host RAM {found.host_bytes / 1e9:.4g} GB > available "
            f"{HOST_SHARE * result.limits[least] / 1e9:.4g} GB ({HOST_SHARE:.0%} of {least}); largest term: "
            f"{name} {found.host[name] / 1e9:.4g} GB"
        )
        fix = _host_fix(found, least, result.config.distributed.num_gpus)
        terms = sorted(found.host.items(), key=lambda term: -term[1])[:_MOST_TERMS]
        account = found.lines[:2] if name == LOADER_TERM else [f"{term}: {size / 1e9:.3g} GB" for term, size in terms]
        where = _KEY_OF_TERM.get(name, "memory of the host")
        errors.append(Finding("CFG-20", Severity.ERROR, problem, where, tuple(account), fix))
    if not result.fits_disk:
        needed = sum(found.disk.values())
        problem = f"the run needs {needed / 1e9:.4g} GB of disk, {result.free_bytes / 1e9:.4g} GB free"
        cure = other_save_dir(Path(result.config.checkpoint.save_dir), needed)
        errors.append(Finding("CFG-53", Severity.ERROR, problem, "checkpoint.save_dir", fix=cure))
    return errors


def _device_fix(found: Estimate) -> str:
    """Return settings that were estimated to fit, else the least that the network needs."""
    cure = found.device_cure
    if cure is None:
        return "xectool estimate-memory CONFIG"
    if cure.fits:
        tight = cure.needed_bytes > found.device.planned_bytes
        share = cure.needed_bytes / found.device.total_bytes
        full = f"   # takes {share:.0%} of it: no remedy leaves the 15% for pieces too small"
        return _line(cure.settings) + full * tight
    least = cure.needed_bytes / USABLE / 1e9
    return f"{_line(cure.settings)}   # and a GPU with {least * 1.005:.3g} GB, the least that this network needs"


def _host_fix(found: Estimate, limit: str, ranks: int) -> str:
    """Return settings that were estimated to fit, else the line that asks for the memory that the run takes."""
    cure = found.host_cure
    if cure is not None and cure.fits:
        return _line(cure.settings)
    return more_memory(limit, found.host_bytes / HOST_SHARE, ranks)


def _line(settings: tuple[str, ...]) -> str:
    return " ".join(f"--set {setting}" for setting in settings)
