"""``estimate-memory``: device, host and disk of a training, before anything is allocated."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from xectool.config.document import SET, Document
from xectool.config.keys import keys_of
from xectool.config.load import load_config
from xectool.config.overrides import apply_overrides
from xectool.config.platform import Platform, memory_budgets
from xectool.config.root import KINDS, RunConfig
from xectool.config.rules.path import network_rules
from xectool.detector.platforms import Gpu, find_gpu
from xectool.diagnosis.environment.torch_facts import ask_torch
from xectool.engine.memory_verdicts import DEFAULT_EVENTS, MemoryEstimate, verdicts
from xectool.errors import UsageError, in_shell
from xectool.training.memory_estimate.calibration import load_calibration, numbers_of, save_calibration
from xectool.training.memory_estimate.child import ask, measure
from xectool.training.memory_estimate.device import GRAPH_MODES, Device
from xectool.training.memory_estimate.estimate import Wanted, estimate
from xectool.training.memory_estimate.host import compile_processes
from xectool.training.memory_estimate.plan import plan

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
_SAME_CARD: Final = 0.02
_ASKED: Final = "as --events says"


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
        events: Training events, and events that are predicted where no validation files tell; None counts those of the
            training files, a million without.
        batch_size: Goes before ``data.batch_size``.
        gpu: Name or size of a GPU; None takes the device of the configuration on this machine.
        max_batch: Also look for the largest batch that fits.
        mask_ratio: Share of hidden sensors, in place of ``model.mask_ratio``; without a configuration, of as many
            predictions of single sensors.
        calibrate: First measure one real step on this machine and keep what the estimate leaves out.

    Raises:
        XecError: Anything the user can act on.
    """
    if events is not None and events < 1:
        raise UsageError(f"{events} events leave nothing to estimate", where="--events", fix="--events 1M")
    if mask_ratio is not None and not 0 < mask_ratio < 1:
        raise UsageError(f"a mask ratio of {mask_ratio:g}", where="--mask-ratio", fix="--mask-ratio 0.05")
    settings = _settings(overrides, batch_size)
    loaded = _loaded(config, settings)
    if mask_ratio is not None and config is not None:
        _require_hidden_sensors(loaded)
        loaded = _loaded(config, [*settings, f"model.mask_ratio={mask_ratio}"])
    events, counted_from = _events_of(loaded if config is not None else None, events)
    limits = memory_budgets(loaded.distributed.num_gpus)
    device, amp = _device(loaded, gpu, min(limits.values()))
    there = ""
    if gpu is not None and not _is_here(device):
        there = _line_there(config, settings, events if counted_from == _ASKED else None, mask_ratio)
    if calibrate:
        _calibrate(loaded, device, amp)
    calibration = load_calibration()
    device = calibration.on(device)
    threads = compile_processes(loaded, device.is_gpu)
    wanted = Wanted(events, amp, max_batch, True, mask_ratio, threads, min(limits.values()), bool(there))
    found = estimate(loaded, device, wanted, calibration)
    hidden_by = "model.mask_ratio" if mask_ratio is None else "--mask-ratio"
    of_files = partial(MemoryEstimate, events=events, counted_from=counted_from)
    blank = of_files(loaded, found, limits, _free(loaded), calibration, hidden_by=hidden_by, line_there=there)
    return replace(blank, findings=verdicts(blank))


def _require_hidden_sensors(config: RunConfig) -> None:
    """Refuse a mask ratio of a network that hides no sensors, as any option without effect."""
    if config.base_kind == "regressor":
        raise UsageError(
            "a regressor hides no sensors",
            where="--mask-ratio",
            fix="leave --mask-ratio out; it is for a masked autoencoder or an inpainter, or without CONFIG",
        )


def _events_of(config: RunConfig | None, asked: int | None) -> tuple[int, str]:
    """Return the number of training events, and where it comes from."""
    if asked is not None:
        return asked, _ASKED
    if config is None:
        return DEFAULT_EVENTS, "assumed: no configuration names files; --events N for another number"
    from xectool.rootio.counting import count_events  # uproot, which the rest does without

    found = count_events(config.data.train_path, config.data.tree_name)
    if found:
        return found, "in the training files"
    return DEFAULT_EVENTS, "assumed: the training files are not here; --events N for another number"


def _line_there(
    config: str | Path | None, settings: Sequence[str], events: int | None, mask_ratio: float | None
) -> str:
    """Return the command that judges host and disk where the GPU is, with all that was asked here."""
    words = ["xectool estimate-memory", *([] if config is None else [in_shell(config)])]
    words += [f"--set {in_shell(setting)}" for setting in settings]
    words += [] if events is None else [f"--events {events}"]
    return " ".join([*words, *([] if mask_ratio is None else [f"--mask-ratio {mask_ratio:g}"])])


def _is_here(device: Device) -> bool:
    """Return whether this machine has a GPU with the memory of the one that was named, to 2 %."""
    if not device.is_gpu or Platform.detect().num_gpus == 0:
        return False
    return any(abs(own.total_bytes / device.total_bytes - 1) < _SAME_CARD for own in ask_torch().devices)


def _settings(overrides: Sequence[str], batch_size: int | None) -> list[str]:
    return [*overrides, *([] if batch_size is None else [f"data.batch_size={batch_size}"])]


def _loaded(config: str | Path | None, overrides: Sequence[str]) -> RunConfig:
    if config is not None:
        loaded = load_config(config, overrides)
        return loaded.require(network_rules(loaded.config)).config
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="quickstart-", encoding="utf-8") as file:
        yaml.safe_dump(_quickstart(overrides), file)
        file.flush()
        return load_config(file.name, overrides).config


def _quickstart(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the quickstart's network, or of it what the kind has that the overrides ask for."""
    asked = Document(SET, {"kind": QUICKSTART["kind"]})
    apply_overrides(asked, overrides)
    kind = asked.values["kind"]
    known = keys_of(kind if isinstance(kind, str) and kind in KINDS else QUICKSTART["kind"])
    sections = {name: values for name, values in QUICKSTART.items() if name in known and name != "kind"}
    return {"kind": kind} | {
        name: {key: value for key, value in values.items() if f"{name}.{key}" in known}
        for name, values in sections.items()
    }


def _device(config: RunConfig, gpu: str | None, host_bytes: int) -> tuple[Device, str]:
    """Return the device that is estimated for, and the precision there."""
    training = config.training
    card = find_gpu(gpu) if gpu else _own_gpu(training.device)
    amp = training.amp
    if card is None:
        return Device("cpu", host_bytes, is_gpu=False), "off" if amp == "auto" else amp
    if amp == "auto":
        amp = "bf16" if card.has_bf16 else "off"
    graphs, at_hand = training.compile in GRAPH_MODES, Platform.detect().num_gpus > 0
    return Device(card.name, card.total_bytes, is_gpu=True, graphs=graphs, at_hand=at_hand), amp


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
