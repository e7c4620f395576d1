"""Writes an export under a temporary name, compares it with the network, and only then gives it its name.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xectool.errors import CheckpointError, DiskError, OutputsDiffer, XecError
from xectool.export.description import Description
from xectool.export.edge_events import edge_events, edge_masks
from xectool.export.formats import FORMATS
from xectool.export.graphs import RAW, ExportGraph
from xectool.export.parity import Agreement, Metric, Noise, Parity, measured, require_same
from xectool.export.reference import Arrays, expected, feed
from xectool.export.rounding import rounding_noise
from xectool.export.runtime import Runtime
from xectool.export.yardstick import FloatArray, Yardstick
from xectool.findings import Finding
from xectool.models.normalize import Normalizer

BATCH_SIZES = (1, 2, 7, 64)
HIDDEN_SHARE = 0.05
_MASK_SEED = 20240601
_REFUSED_AS = {"XT-EXPORT-BATCH": "X-05", "XT-EXPORT-INPUT": "X-10"}
_SENSOR_OUTPUTS = ("pred_npho", "pred_time")


@dataclass(frozen=True)
class RawEvents:
    """Events as read, for comparing.

    Attributes:
        npho: Photons, shape (B, S), float32.
        time: Seconds, shape (B, S), float32.
    """

    npho: Tensor
    time: Tensor

    def __len__(self) -> int:
        return len(self.npho)


@dataclass(frozen=True)
class Order:
    """What to export.

    Attributes:
        model: The network with its weights, on the CPU.
        graph: The network as it is exported.
        normalizer: Of the network.
        description: What the file says of itself.
        format: Name in :data:`~xectool.export.formats.FORMATS`.
        yardsticks: Of each output, in network units for predicted sensors.
    """

    model: nn.Module
    graph: ExportGraph
    normalizer: Normalizer
    description: Description
    format: str
    yardsticks: dict[str, Yardstick]


@dataclass(frozen=True)
class Exported:
    """What was written and how well it agrees.

    Attributes:
        files: The files, the one to name first.
        agreements: By output.
        events: Ordinary events compared.
        edge_cases: Edge cases compared.
        batch_sizes: Batch sizes compared.
        providers: What ran it.
        notes: What is worth knowing.
    """

    files: tuple[Path, ...]
    agreements: tuple[Agreement, ...]
    events: int
    edge_cases: int
    batch_sizes: tuple[int, ...]
    providers: tuple[str, ...]
    notes: tuple[Finding, ...] = field(default=())


class Watching(Protocol):
    """Whoever is shown the progress."""

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin a phase of ``total`` parts."""

    def advanced(self, num_batches: int, values: Mapping[str, float]) -> None:
        """Count finished parts."""


def export(
    order: Order, first: RawEvents, more: Iterable[RawEvents], target: Path, watching: Watching | None = None
) -> Exported:
    """Write an export, compare it, and give it its name.

    Args:
        order: What to export.
        first: Events that are compared at several batch sizes, in another order, and carry the edge cases.
        more: Further events, compared as they come.
        target: The file.
        watching: Receives progress.

    Raises:
        OutputsDiffer: The file gives other numbers; nothing is left behind.
        DiskError: The disk refuses.
    """
    with _beside(target) as folder, _named(target, folder):
        path = folder / target.name
        example = tuple(torch.from_numpy(value) for value in _feed(order, first, slice(0, 3)).values())
        if watching is not None:
            watching.phase(f"write {order.format}", 0)
        written = FORMATS[order.format].write(order.graph, order.description, example, path)
        with _refusing():
            runtime = FORMATS[order.format].open(path)
            found = compare(order, runtime, first, more, watching)
        files = []
        for file in written.files:
            _durable(file)
            file.replace(target.parent / file.name)
            files.append(target.parent / file.name)
    notes = (*written.notes, *runtime.notes)
    return Exported(tuple(files), *found, runtime.providers, notes)


def compare(
    order: Order, runtime: Runtime, first: RawEvents, more: Iterable[RawEvents], watching: Watching | None = None
) -> tuple[tuple[Agreement, ...], int, int, tuple[int, ...]]:
    """Compare a file with the network; arguments as for :func:`export`.

    Returns:
        Agreement by output, ordinary events, edge cases and batch sizes compared.

    Raises:
        OutputsDiffer: The file gives other numbers.
    """
    metrics = {port.name: _metric(order, port.name) for port in order.graph.outputs if port.name in _SENSOR_OUTPUTS}
    parity = Parity(order.graph.outputs, order.yardsticks, metrics, str(runtime.path))
    edges = dict(_edge_cases(order, first))
    if watching is not None:
        watching.phase("verify: rehearse the file", 0)
    runtime.rehearse(edges)
    if watching is not None:
        watching.phase("verify: batches of events in their order and another", 0)
    sizes = (*(size for size in BATCH_SIZES if size < len(first)), len(first))
    for size in sizes:
        given = _feed(order, first, slice(0, size))
        parity.add(f"batch of {size}", _wanted(order, given), runtime.run(given), noise=_noise(order, given, metrics))
    events = sizes[-1]
    _compare_orders(order, runtime, first, metrics)
    if watching is not None:
        watching.phase("verify: edge cases", len(edges))
    for name, given in edges.items():
        noise = _noise(order, given, metrics)
        parity.add(name, _wanted(order, given), runtime.run(given), edge=True, noise=noise)
        if watching is not None:
            watching.advanced(1, {})
    for number, batch in enumerate(more):
        given = _feed(order, batch, slice(None), seed=number)
        noise = _noise(order, given, metrics)
        parity.add(f"events from {events}", _wanted(order, given), runtime.run(given), noise=noise)
        events += len(batch)
    return parity.agreements(), events, len(edges), sizes


def _metric(order: Order, name: str) -> Metric:
    """Return how predicted sensors are compared: in network units, where a resolution has one size."""
    raw = order.description.inputs_mode == RAW
    normalizer = order.normalizer

    def in_network_units(values: npt.NDArray[np.generic]) -> FloatArray:
        numbers = torch.from_numpy(np.asarray(values, np.float64))
        if raw and name == "pred_time":
            numbers = numbers / normalizer.time_scale - normalizer.time_shift
        elif raw:
            lowest = normalizer.scheme.lowest
            numbers = normalizer.scheme(torch.where(numbers < lowest, lowest, numbers))
        measured: FloatArray = numbers.numpy()
        return measured

    return in_network_units


def _compare_orders(order: Order, runtime: Runtime, first: RawEvents, metrics: dict[str, Metric]) -> None:
    """Refuse outputs that depend on the other events of a batch, or change from run to run."""
    given = _feed(order, first, slice(0, BATCH_SIZES[-1]))
    once, again = runtime.run(given), runtime.run(given)
    shuffled = np.random.default_rng(1).permutation(len(next(iter(given.values()))))
    moved = runtime.run({name: np.ascontiguousarray(value[shuffled]) for name, value in given.items()})
    back = {name: value[np.argsort(shuffled)] for name, value in moved.items()}
    limits = order.yardsticks
    seen = [measured(outputs, metrics) for outputs in (once, again, back)]
    require_same(seen[0], seen[1], "run a second time", str(runtime.path), limits)
    noise = _noise(order, given, metrics)
    require_same(seen[0], seen[2], "events in another order", str(runtime.path), limits, noise)


def _noise(order: Order, given: Arrays, metrics: dict[str, Metric]) -> Noise:
    return rounding_noise(order.model, order.description.inputs_mode, given, metrics)


def _edge_cases(order: Order, first: RawEvents) -> Iterator[tuple[str, Arrays]]:
    """Yield name and inputs of edge events one by one, of all in one batch, and of edge masks."""
    cases = edge_events(order.normalizer, first.npho[0])
    together = RawEvents(*(torch.stack(values) for values in zip(*cases.values(), strict=True)))
    for row, name in enumerate(cases):
        yield name, _feed(order, together, slice(row, row + 1))
    yield "edge events in one batch", _feed(order, together, slice(None))
    if any(port.name == "mask" for port in order.graph.inputs):
        for name, mask in edge_masks(2).items():
            for size in (1, 2):
                events = (first.npho[:size], first.time[:size], mask[:size])
                yield f"{name}, {size} at once", feed(order.graph, order.normalizer, *events)


def _wanted(order: Order, given: Arrays) -> Arrays:
    return expected(order.model, order.description.inputs_mode, given)


def _feed(order: Order, events: RawEvents, rows: slice, seed: int = 0) -> Arrays:
    """Return the inputs for some events; of sensor networks with 5 % of the sensors hidden, always the same ones."""
    generator = torch.Generator().manual_seed(_MASK_SEED + seed)
    mask = torch.rand(events.npho.shape, generator=generator) < HIDDEN_SHARE
    return feed(order.graph, order.normalizer, events.npho[rows], events.time[rows], mask[rows])


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Yield a directory on the target's disk that is gone afterwards, whatever happens."""
    folder = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        folder.mkdir(parents=True)
        yield folder
    except OSError as error:
        raise DiskError(
            f"cannot write the export: {error.strerror or error}",
            where=str(target),
            fix="free some space, or --output on another disk",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _named(target: Path, folder: Path) -> Iterator[None]:
    """Name the file as the user did, not under its temporary name, in what is raised inside."""
    try:
        yield
    except XecError as error:
        for part in ("where", "problem", "fix"):
            setattr(error, part, getattr(error, part).replace(f"{folder}{os.sep}", str(target)[: -len(target.name)]))
        raise


@contextmanager
def _refusing() -> Iterator[None]:
    """Make it a refusal of the export, and no fault of the checkpoint, that what was just written does not run."""
    try:
        yield
    except CheckpointError as error:
        code = _REFUSED_AS.get(error.code, error.code)
        fix = f"do not use this export; nothing was written. xectool explain {code}"
        raise OutputsDiffer(error.problem, where=error.where, fix=fix, code=code) from error


def _durable(file: Path) -> None:
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())
