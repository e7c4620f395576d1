"""What an export is compared on, and what its differences are measured in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from xectool.engine.input_events import open_events, own_names
from xectool.engine.loading import LoadedModel, served_in_order
from xectool.errors import UsageError
from xectool.export.exporter import BATCH_SIZES, HIDDEN_SHARE, RawEvents
from xectool.export.graphs import NORMALIZED, ExportGraph
from xectool.export.ports import Port
from xectool.export.reference import Arrays, expected, feed
from xectool.export.yardstick import Yardstick, from_metrics, from_residuals, from_spread, head_units
from xectool.findings import Finding
from xectool.models.regressor import Regressor
from xectool.simulation.dataset import SimulationSettings, simulate_block
from xectool.simulation.response import DetectorResponse
from xectool.training.process.progress import Observer
from xectool.training.stepping.evaluate import run_model

_SIMULATED_SEED = 4711
_MAX_EVENTS = 1000
_FEWEST_EVENTS = 16  # that say anything about a resolution


def yardsticks(
    loaded: LoadedModel, graph: ExportGraph, mode: str, first: RawEvents, metrics: Mapping[str, Any]
) -> dict[str, Yardstick]:
    """Return what each output is measured in: its resolution where one is known, else the spread of the network's.

    Sensors that are predicted have their readings as truth, so theirs is always known.

    A few events have neither: then simulated ones are predicted.
    """
    history = loaded.checkpoint.meta.get("progress", {}).get("history") or [{}]
    if len(first.npho) < _FEWEST_EVENTS:
        first, metrics = _simulated(), {}
    known = {**metrics, **history[-1]}
    mask = torch.rand(first.npho.shape, generator=torch.Generator().manual_seed(1)) < HIDDEN_SHARE
    given = feed(graph, cast(Any, loaded.network).normalizer, first.npho, first.time, mask)
    outputs = expected(loaded.network, mode, given)
    found = {}
    for port in graph.outputs:
        yardstick = from_metrics(port.name, known)
        if yardstick is not None and mode == NORMALIZED and isinstance(loaded.network, Regressor):
            yardstick = head_units(yardstick, cast(Any, loaded.network.target_transforms[port.name]), port.shape[0])
        if yardstick is None and port.name.startswith("pred_"):
            yardstick = _of_sensors(port, outputs, first, loaded, mask)
        found[port.name] = yardstick or from_spread([outputs[port.name]])
    return found


def _of_sensors(port: Port, outputs: Arrays, first: RawEvents, loaded: LoadedModel, mask: torch.Tensor) -> Yardstick:
    """Return the root mean square error of hidden sensors, whose truth is their reading, in network units.

    Args:
        port: The predicted channel.
        outputs: What the network gives, (B, S) by name.
        first: The events.
        loaded: The network.
        mask: Sensors that are hidden, (B, S).
    """
    network = cast(Any, loaded.network)
    wanted, valid = network.normalizer.normalize(first.npho, first.time)
    place = ("pred_npho", "pred_time").index(port.name)
    predicted = torch.from_numpy(outputs[port.name].astype(np.float64))
    if port.unit == "photons":
        predicted = network.normalizer.scheme(predicted.clamp_min(network.normalizer.scheme.lowest))
    elif port.unit == "s":
        predicted = predicted / network.normalizer.time_scale - network.normalizer.time_shift
    hidden = mask & network.get_buffer("covered")
    read = hidden & valid[..., place]
    if not read.any():
        return from_spread([predicted[hidden].unsqueeze(1).numpy()])
    return from_residuals((predicted - wanted[..., place])[read].numpy())


class VerifyEvents:
    """The events an export is compared on: of files, or simulated.

    Args:
        loaded: The network; its configuration names the branches.
        data: ROOT files; empty simulates.
        max_events: Of the files; None is 1000.
        names: Names in the files that are not the training's.
    """

    def __init__(
        self, loaded: LoadedModel, data: Sequence[str], max_events: int | None, names: Sequence[str] = ()
    ) -> None:
        if not data and max_events is not None:
            raise UsageError(
                "--max-events has no effect without --verify-on", where="--max-events", fix="--verify-on DATA.root"
            )
        if not data and own_names(loaded, names):
            raise UsageError(
                f"{names[0]} has no effect without --verify-on", where=f"--set {names[0]}", fix="--verify-on DATA.root"
            )
        self.loaded = loaded
        self.source = open_events(loaded, data, max_events or _MAX_EVENTS, names) if data else None
        self.findings: tuple[Finding, ...] = ()
        self.title = f"{BATCH_SIZES[-1]} simulated events"
        if self.source is not None:
            self.findings = tuple(self.source.findings)
            self.title = f"events of {', '.join(file.path for file in self.source.files[:3])}"

    def first(self) -> RawEvents:
        """Return the first events, 64 where there are as many."""
        if self.source is None:
            return _simulated()
        with served_in_order(self.loaded, self.source, BATCH_SIZES[-1]) as loader:
            batch = next(iter(loader.epoch(0)))
            return RawEvents(batch.npho.clone(), batch.time.clone())

    def more(self, watching: Observer) -> Iterator[RawEvents]:
        """Yield the events after the first."""
        if self.source is None:
            return
        with served_in_order(self.loaded, self.source, BATCH_SIZES[-1]) as loader:
            watching.phase("verify", loader.plan.num_steps)
            for number, batch in enumerate(loader.epoch(0)):
                if number and batch.num_events:
                    yield RawEvents(batch.npho, batch.time)
                watching.advanced(1, {})

    def metrics(self) -> dict[str, float]:
        """Return figures of merit of the network on the first events, where the files hold the truth."""
        if self.source is None:
            return {}
        accumulator = self.loaded.task.accumulator()
        with served_in_order(self.loaded, self.source.first(BATCH_SIZES[-1]), BATCH_SIZES[-1]) as loader:
            for batch, outputs in run_model(
                self.loaded.network, self.loaded.task, loader.epoch(0), self.loaded.execution
            ):
                accumulator.update(outputs, batch)
        return accumulator.compute()


def _simulated() -> RawEvents:
    settings = SimulationSettings(events=BATCH_SIZES[-1], seed=_SIMULATED_SEED)
    detector = DetectorResponse.from_seed(settings.detector_seed, settings.dead_fraction)
    rows = simulate_block(settings, detector, range(settings.events))
    return RawEvents(torch.from_numpy(rows["npho"]), torch.from_numpy(rows["relative_time"]))
