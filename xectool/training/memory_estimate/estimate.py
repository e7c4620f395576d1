"""Puts tapes, host and disk of one configuration together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from xectool.config.root import InpainterConfig, MaeConfig, RunConfig
from xectool.training.memory_estimate.calibration import Calibration
from xectool.training.memory_estimate.child import ask
from xectool.training.memory_estimate.cure import Need
from xectool.training.memory_estimate.device import Device
from xectool.training.memory_estimate.host import (
    HostSide,
    disk_terms,
    loader_lines,
)
from xectool.training.memory_estimate.plan import BASE, Remedy, plan
from xectool.training.memory_estimate.predictions import SensorPredictions
from xectool.training.memory_estimate.recording import Recording
from xectool.training.memory_estimate.request import VALID_NPHO, VALID_TIME
from xectool.training.memory_estimate.search import Search

_WORTH_SHARDING: Final = 0.3


@dataclass(frozen=True)
class Wanted:
    """What is asked of an estimate.

    Attributes:
        events: Events of the data set, and of the predictions.
        amp: Precision, resolved for the device.
        max_batch: Whether the largest batch is wanted even if the step fits.
        remedies: Whether remedies are estimated.
        mask_ratio: Of the account of predictions; None takes the configuration's.
        compile_threads: Compile processes at once, 0 without a compiler.
        host_bytes: Memory of the host that may be taken.
        elsewhere: Whether the run is for another machine, whose disks are not known.
    """

    events: int
    amp: str
    max_batch: bool = False
    remedies: bool = True
    mask_ratio: float | None = None
    compile_threads: int = 0
    host_bytes: int = 0
    elsewhere: bool = False

    def of_search(self) -> tuple[str, int, bool]:
        """Return precision, memory of the host, and whether the largest batch is looked for."""
        return self.amp, self.host_bytes, self.max_batch


@dataclass(frozen=True)
class Advice:
    """A remedy with its effect.

    Attributes:
        remedy: What it does.
        settings: ``key=value`` lines of the configuration.
        peak_bytes: Peak of tensors with it; None where it is not a matter of tensors.
        saves_bytes: What it takes off the peak.
        note: What it costs, or why there is nothing to save.
    """

    remedy: str
    settings: tuple[str, ...]
    peak_bytes: int | None
    saves_bytes: int | None
    note: str


@dataclass(frozen=True)
class Estimate:
    """Memory of one configuration.

    Attributes:
        step: Tape of the step.
        device: Where it runs.
        max_batch: Largest batch that fits, None where it was not asked for.
        device_cure: Settings with which the step fits into the GPU, or takes least; None where it fits or unasked.
        host_cure: The same for the memory of the host.
        host: Terms of the host's memory.
        disk: Terms of the disk.
        checkpoint_bytes: Of one checkpoint.
        loader_bytes: Of the loader.
        predictions_bytes: Peak of writing predictions.
        advice: Remedies, in the order in which to try them.
        predictions: Of single sensors, None for a regressor.
        lines: Accounts of loader and predictions.
        estimator_bytes: Memory that the estimate itself took.
        notes: What was assumed.
    """

    step: Recording
    device: Device
    max_batch: int | None
    host: Mapping[str, int]
    disk: Mapping[str, int]
    checkpoint_bytes: int
    loader_bytes: int
    predictions_bytes: int
    advice: tuple[Advice, ...]
    predictions: SensorPredictions | None
    lines: tuple[str, ...]
    estimator_bytes: int
    device_cure: Need | None = None
    host_cure: Need | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def host_bytes(self) -> int:
        """Peak of the host's memory."""
        return sum(self.host.values())


def estimate(config: RunConfig, device: Device, wanted: Wanted, calibration: Calibration) -> Estimate:
    """Return the memory of a configuration; takes about half a gigabyte and some seconds, whatever its size.

    Raises:
        XecError: The network cannot be built.
    """
    asked = plan(config, wanted.amp, valid_shares(), wanted.max_batch, wanted.remedies, device.is_gpu)
    validated = _validated(config)
    predicted = wanted.events if validated is None else validated  # at its end a run predicts its validation events
    predictions = sensor_predictions(config, wanted.events if wanted.mask_ratio else predicted, wanted.mask_ratio)
    search = Search(device, calibration, wanted.compile_threads, predictions, *wanted.of_search())
    looked = search if wanted.remedies or wanted.max_batch else None
    answer = ask(asked.requests, wanted.events, looked, asked.windows, validated, wanted.elsewhere)
    tapes = {name: asked.whole(name, tape) for name, tape in zip(asked.requests, answer.recordings, strict=True)}
    step = tapes[BASE]
    checkpoint_bytes = step.checkpoint_bytes
    side = HostSide(
        config,
        answer.loader_bytes,
        step.peak(),
        device.is_gpu,
        wanted.compile_threads,
        predictions,
        checkpoint_bytes,
    )
    validation = config.validation.batch_size or config.data.batch_size
    return Estimate(
        step=step,
        device=device,
        max_batch=answer.max_batch,
        device_cure=answer.device_cure,
        host_cure=answer.host_cure,
        host=side.terms(calibration),
        disk=disk_terms(config, checkpoint_bytes, answer.cache_bytes, predicted, predictions),
        checkpoint_bytes=checkpoint_bytes,
        loader_bytes=answer.loader_bytes,
        predictions_bytes=side.predictions_bytes(),
        advice=tuple(_advice(remedy, tapes, device) for remedy in asked.remedies),
        predictions=predictions,
        lines=(
            *loader_lines(config, answer.loader_bytes, answer.cache_bytes),
            *(predictions.lines(validation) if predictions else ()),
        ),
        estimator_bytes=answer.rss_bytes,
        notes=(*step.notes, *([f"event cache: {answer.no_cache}"] if answer.no_cache else [])),
    )


def _validated(config: RunConfig) -> int | None:
    """Return how many events validation has, None where that is not known."""
    if not config.data.val_path:
        return None
    from xectool.rootio.counting import count_events  # uproot, which the rest does without

    return count_events(config.data.val_path, config.data.tree_name)


def valid_shares() -> tuple[float, float]:
    """Return the shares of sensors with valid photons and with a valid time that are taken for granted."""
    return VALID_NPHO, VALID_TIME


def sensor_predictions(config: RunConfig, events: int, mask_ratio: float | None) -> SensorPredictions | None:
    """Return the predictions of single sensors, None for a network that makes none, unless a ratio is given."""
    if mask_ratio is not None:
        return SensorPredictions(events, mask_ratio)
    if not isinstance(config, MaeConfig | InpainterConfig):
        return None
    ratio = config.model.mask_ratio
    return SensorPredictions(events, ratio if isinstance(ratio, float) else max(ratio.values()))


def _advice(remedy: Remedy, tapes: Mapping[str, Recording], device: Device) -> Advice:
    base = tapes[BASE]
    if remedy.key or remedy.without:
        changed = tapes[remedy.key] if remedy.key else base.without(remedy.without)
        peak = device.tensors(changed)
        return Advice(remedy.title, remedy.settings, peak, device.tensors(base) - peak, remedy.note)
    note = remedy.note or _sharding(base)
    return Advice(remedy.title, remedy.settings, None, 0 if remedy.settings else None, note)


def _sharding(step: Recording) -> str:
    held = step.split(step.peak_at())
    own = held["parameters"] + held["optimizer"]
    share = own / max(step.peak(), 1)
    if share > _WORTH_SHARDING:
        return f"parameters and optimizer are {own / 1e9:.3g} GB, {share:.0%} of the peak: with several GPUs, worth it"
    return f"not useful here: parameters and optimizer are {own / 1e9:.3g} GB, {share:.0%} of the peak"
