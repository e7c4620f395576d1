"""``predict --repair``: copy ROOT files with their dead sensors filled by an inpainter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from xectool.checkpoint.missing import missing_checkpoint
from xectool.data.blocks import SourceFile
from xectool.data.dead_masks import open_dead_sensors
from xectool.detector.constants import DEAD_VALUE, UNKNOWN_ABOVE
from xectool.engine.conversion_remarks import left_behind
from xectool.engine.input_events import open_events
from xectool.engine.loading import (
    LoadedModel,
    check_options,
    events_at_once,
    load_checkpoint,
    ready_model,
)
from xectool.engine.negative_fills import negative_fills
from xectool.engine.output_places import files_read, require_file_place
from xectool.errors import UsageError, in_shell
from xectool.findings import Finding, Severity
from xectool.models.inpainter import Inpainter
from xectool.rootio.beside import beside
from xectool.rootio.origin import FLAG_BRANCH, Origin
from xectool.rootio.reader import EventFile
from xectool.tasks.event_variants import Fill
from xectool.training.predicting.repair import Repaired, RepairRun, write_repaired
from xectool.training.process.memory_faults import memory_faults
from xectool.training.process.progress import NullObserver, Observer

_INPAINTERS = "xectool runs   # lists runs; a checkpoint of one of kind inpainter is needed"


@dataclass(frozen=True)
class RepairResult:
    """What a repair wrote.

    Attributes:
        events: Events written.
        events_per_s: Throughput, reading and writing included.
        output: The ROOT file.
        dead: Where the dead sensors are known from.
        dead_per_event: Mean number of dead sensors in an event.
        filled_per_event: Mean number of them that the inpainter filled.
        negative_per_event: Mean number of those that it filled with negative light; they read 0.
        findings: What was noticed about the files, and which branches could not be carried.
    """

    events: int
    events_per_s: float
    output: str
    dead: str
    dead_per_event: float
    filled_per_event: float
    negative_per_event: float
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}


def repair(  # noqa: PLR0913 - the function is the command: one argument an option
    model: str | Path,
    data: Sequence[str],
    *,
    output: str | Path,
    dead: str | None = None,
    run_number: int | None = None,
    weights: str = "auto",
    batch_size: int | None = None,
    device: str | None = None,
    max_events: int | None = None,
    names: Sequence[str] = (),
    observer: Observer | None = None,
) -> RepairResult:
    """Write the events of ROOT files with their dead sensors filled, flagged in a branch ``repaired``.

    Args:
        model: Checkpoint of an inpainter, of ours or of the older system.
        data: ROOT files, globs, directories, ``@list`` files or urls.
        output: ROOT file to write.
        dead: Origin of the dead channels; None fills the sensors without a reading, event by event.
        run_number: Run that a database is asked for.
        weights: ``auto`` (EMA where present), ``ema``, ``model`` or ``best``.
        batch_size: Events in one forward pass; None takes what is fastest on the device.
        device: Device; None takes the configuration's.
        max_events: Stop after this many events.
        names: ``data.npho_branch=NAME`` and the like, where the files have other names than those of the training.
        observer: Receives progress.

    Raises:
        XecError: Anything the user can act on.
    """
    watching = observer or NullObserver()
    check_options(weights, batch_size, max_events)
    reads = files_read([model], data, weights, dead)
    target = require_file_place(output, "--repair", "repaired.root", reads, Origin.REPAIRED)
    loaded = load_inpainter(model, weights, device, "--repair")
    source = open_events(loaded, data, max_events, names)
    sensors = open_dead_sensors(dead, run_number, source)
    size = events_at_once(loaded, batch_size)
    run = RepairRun(filler(loaded), sensors, loaded.execution.device, size, lambda: watching.advanced(1, {}))
    watching.phase("repair", sum(-(-file.num_selected // size) for file in source.files))
    with memory_faults(loaded.config, "predicting"):
        written = write_repaired(source, target, run)
    again = " ".join(map(in_shell, (model, *data)))
    left = [item for file in source.files if file.num_selected for item in _beside(file, str(output))]
    return RepairResult(
        written.num_events,
        written.events_per_s,
        str(output),
        sensors.origin,
        written.num_dead / written.num_events,
        written.num_filled / written.num_events,
        written.num_negative / written.num_events,
        (*loaded.notes, *source.findings, *_findings(written, str(output), again), *left),
    )


def load_inpainter(path: str | Path, weights: str, device: str | None, option: str) -> LoadedModel:
    """Return an inpainter that predicts photons.

    Raises:
        UsageError: The checkpoint is of another kind, or does not predict photons.
        XecError: The checkpoint cannot be loaded.
    """
    if not os.path.isfile(file := Path(path).expanduser()):
        raise missing_checkpoint(file, kind="inpainter")
    checkpoint = load_checkpoint(path, weights)
    if checkpoint.base_kind != "inpainter":
        raise UsageError(
            f"{path} is of kind {checkpoint.kind}; only an inpainter fills dead sensors",
            where=option,
            fix=_INPAINTERS,
        )
    loaded = ready_model(checkpoint, path, weights, device)
    if not isinstance(loaded.network, Inpainter):
        raise UsageError(
            f"{path} is of kind {checkpoint.kind}, whose network is no inpainter of ours: it fills no dead sensors",
            where=option,
            fix=_INPAINTERS,
        )
    if "npho" not in loaded.network.channels:
        raise UsageError(
            f"{path} predicts times only, and a sensor without photons stays dead",
            where=option,
            fix="train an inpainter with model.predict_channels: [npho] or [npho, time]",
        )
    return loaded


def filler(loaded: LoadedModel) -> Fill:
    """Return what an inpainter in evaluation mode says about hidden sensors; nothing where it says all that can be."""
    network = cast(Inpainter, loaded.network).eval()

    @torch.inference_mode()
    def fill(npho: Tensor, time: Tensor, mask: Tensor) -> dict[str, Tensor]:
        answer = network.inpaint(npho, time, mask)
        endless = answer["npho"] >= UNKNOWN_ABOVE  # predictions end there: no sensor reads as much
        blind = ~((npho.abs() <= UNKNOWN_ABOVE) & ~mask).any(dim=1, keepdim=True)  # no reading to infer from
        return answer | {"npho": answer["npho"].masked_fill(mask & (endless | blind), DEAD_VALUE)}

    return fill


def _beside(source: SourceFile, output: str) -> list[Finding]:
    """Return what lies beside the tree of a file, none of which is in the repaired one: that is made of several."""
    with EventFile(source.path, source.tree) as file:
        texts, others = beside(file)
    return left_behind({**others, **dict.fromkeys(texts, "TObjString")}, source.path, output)


def _findings(written: Repaired, output: str, again: str) -> list[Finding]:
    found = [
        Finding(
            "XT-REPAIR-BRANCH",
            Severity.WARNING,
            f"branch '{name}' is not in the repaired file: {reason}",
            where=output,
            fix="read it from the input files; the events are in the same order",
        )
        for name, reason in written.left_out.items()
    ]
    unfilled = written.num_dead - written.num_filled
    if unfilled:
        found.append(
            Finding(
                "XT-REPAIR-UNFILLED",
                Severity.WARNING,
                f"the inpainter has no answer for {unfilled} of {written.num_dead} dead readings: they stay dead",
                where=output,
                fix=f"they are dead in npho with {FLAG_BRANCH} 0; an event without one reading cannot be filled, and "
                "an inpainter of model.geometry: physical covers every sensor",
            )
        )
    found += negative_fills(written.num_filled, written.num_negative, written.num_deep, output, again)
    if not written.num_dead:
        found.append(
            Finding(
                "XT-REPAIR-NOTHING",
                Severity.WARNING,
                "no event has a dead sensor: the repaired file equals its input",
                where=output,
                fix="--dead dead_channels.txt names the sensors to fill",
            )
        )
    return found
