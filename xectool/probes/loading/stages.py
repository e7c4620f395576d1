"""Where the time of loading goes, stage by stage, and how fast this machine could do the unavoidable part.

Stages are clocked in one thread on the pieces of windows that training reads: ``read`` (opening a file and getting
bytes), ``decompress``, ``convert`` (numbers into the window), ``transfer`` (batches put together and moved).
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from xectool.config.cgroups import usable_cores
from xectool.data.events import KEPT_FILES
from xectool.data.loader import EventLoader
from xectool.data.plan import DataPlan, Piece, WindowKey
from xectool.data.window import WindowArrays, event_bytes
from xectool.probes.loading.events import LoadingSubject, spread
from xectool.rootio.inflate import inflate_range, inflated_bytes
from xectool.rootio.stages import DECOMPRESS, OPEN, READ, StageClock, clocked

STAGES = ("read", "decompress", "convert", "transfer")
_KEPT_BYTES = 64_000_000
_COPIED_EVENTS = 512
_LEAST_BATCHES = 4


@dataclass(frozen=True)
class StageTime:
    """Time of one stage.

    Attributes:
        us_per_event: Microseconds of one thread for an event, median over the rounds.
        share: Its share of all stages.
        spread: Half the distance of the quartiles over the median.
    """

    us_per_event: float
    share: float
    spread: float


@dataclass(frozen=True)
class StageReport:
    """Where the time goes.

    Attributes:
        stages: ``read``, ``decompress``, ``convert``, ``transfer``.
        open_us: Microseconds an event of ``read`` that open files.
        gather_us: Microseconds an event of ``transfer`` that put batches together.
        repeats: How often a byte is decompressed: 1 where every basket is read once.
        algorithms: Share of the compressed bytes by ROOT's two letters of the algorithm.
        read_bytes_per_s: Bytes read in a second of reading.
        reads_per_event: Baskets or pages read for one event, over all branches.
        read_bytes_per_event: Bytes read for one event.
        limit_events_per_s: Events a second that decompression and one copy allow at most, alone on all cores, in the
            fastest round.
        decompress_events_per_s: The same of decompression alone; infinite where nothing is compressed.
        copy_events_per_s: The same of one copy in memory.
        limit_spread: Half the distance of the quartiles of the limit over its median.
        events: Events clocked.
        rounds: Rounds of clocking.
    """

    stages: dict[str, StageTime]
    open_us: float
    gather_us: float
    repeats: float
    algorithms: dict[str, float]
    read_bytes_per_s: float
    reads_per_event: float
    read_bytes_per_event: float
    limit_events_per_s: float
    decompress_events_per_s: float
    copy_events_per_s: float
    limit_spread: float
    events: int
    rounds: int

    @property
    def reading_us(self) -> float:
        """Microseconds of one thread in which an event is read into a window."""
        return sum(self.stages[name].us_per_event for name in ("read", "decompress", "convert"))

    @property
    def dominant(self) -> str:
        """The stage that takes longest."""
        return max(self.stages, key=lambda name: self.stages[name].us_per_event)


@dataclass(frozen=True)
class _Round:
    events: int
    clock: StageClock
    convert_s: float
    transfer_us: tuple[float, float]
    decompress_limit: float
    copy_limit: float

    def us(self, *stages: str) -> float:
        return 1e6 * sum(self.clock.seconds[stage] for stage in stages) / self.events

    @property
    def limit(self) -> float:
        return 1 / (1 / self.decompress_limit + 1 / self.copy_limit)


def measure_stages(
    subject: LoadingSubject, device: torch.device, max_events: int, seconds: float, rounds: int = 5
) -> StageReport:
    """Clock the stages on the configured events.

    Args:
        subject: The events.
        device: Where batches are moved.
        max_events: Events of one round.
        seconds: Time for all rounds; one is always made.
        rounds: Rounds wanted; each reads other events.
    """
    plan = subject.plan(subject.config.data.chunksize)
    if len(subject.source.files) <= KEPT_FILES:  # they stay open in training, too
        for index, file in enumerate(subject.source.files):
            if file.num_selected:
                _read(subject, _first_event(index, file.selected), WindowArrays.empty(1, subject.source.widths))
    start, found = time.perf_counter(), list[_Round]()
    for number in range(rounds):
        spent = time.perf_counter() - start
        if found and spent + spent / number > seconds:
            break
        found.append(_round(subject, plan, device, number, max_events, seconds / rounds))
    return _report(found)


def _round(
    subject: LoadingSubject, plan: DataPlan, device: torch.device, number: int, max_events: int, seconds: float
) -> _Round:
    clock, events, spent = StageClock(keep=True), 0, 0.0
    window = WindowArrays.empty(plan.max_window_events, subject.source.widths)
    # In a thread of a pool, as in training: memory is given back to the system differently in the main thread.
    with ThreadPoolExecutor(1) as pool, clocked(clock):
        for piece in _pieces(plan, number):
            _touch(window, piece.num_events)
            spent += pool.submit(_read, subject, piece, window).result()
            events += piece.num_events
            if events >= max_events or clock.kept_bytes > _KEPT_BYTES or spent > seconds / 2:
                break
    convert = max(0.0, spent - sum(clock.seconds[stage] for stage in (OPEN, READ, DECOMPRESS)))
    decompress, copy = _limits(clock, events, event_bytes(subject.source.widths))
    return _Round(events, clock, convert, _transfer_us(subject, plan, device, number), decompress, copy)


def _pieces(plan: DataPlan, number: int) -> Iterator[Piece]:
    for key in plan.windows(number + 1, 0):
        yield from plan.pieces(number + 1, key)


def _first_event(file_index: int, selected: Any) -> Piece:
    first = 0 if selected is None else int(selected[0])
    return Piece(file_index, first, first + 1, None, 0, 0)


def _touch(window: WindowArrays, num_events: int) -> None:
    """Write the rows once: training reads into memory that it has used before."""
    for array in window.arrays():
        array[:num_events] = 0


def _read(subject: LoadingSubject, piece: Piece, window: WindowArrays) -> float:
    began = time.perf_counter()
    subject.source.read_piece(piece, window, 0)
    return time.perf_counter() - began


def _limits(clock: StageClock, events: int, one_event: int) -> tuple[float, float]:
    """Return events a second of decompression and of a copy, each on all cores of this process at once.

    What counts is the time that the threads had a core: other processes take nothing from what the machine could do.
    """
    cores, rows = usable_cores(), min(events, _COPIED_EVENTS)
    threads = math.ceil(cores)
    source, *targets = (np.ones(rows * one_event, np.uint8) for _ in range(1 + threads))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda target: np.copyto(target, source), targets))
        inflate = _core_s(pool, lambda call: call[0](*call[1]), clock.kept) / cores
        repeats = max(1, events // (rows * threads))
        copying = _core_s(pool, lambda target: np.copyto(target, source), targets * repeats) / cores
    # Decompressing a basket again for each of its parts is no law of nature.
    return events * _repeats(clock) / inflate if inflate else float("inf"), rows * threads * repeats / copying


def _core_s(pool: ThreadPoolExecutor, work: Callable[[Any], object], items: Sequence[Any]) -> float:
    """Return the seconds on a core of a work done for all items at once, over all threads; 0 without items."""

    def spent(item: Any) -> float:
        began = time.thread_time()
        work(item)
        return max(time.thread_time() - began, 1e-9)

    return sum(pool.map(spent, items, chunksize=1))


class _FixedReader:
    """Gives one window for all, so that nothing is left of loading but putting batches together."""

    is_closed = False
    num_ready = 0

    def __init__(self, window: WindowArrays) -> None:
        self._window = window

    def start(self, epoch: int, keys: Sequence[WindowKey], measured: bool = False) -> None:
        """Begin an epoch."""

    def get(self, key: WindowKey) -> WindowArrays:
        """Return the window."""
        return self._window

    def retire(self, key: WindowKey) -> None:
        """Keep the window."""

    def stop(self) -> None:
        """End the epoch."""

    def close(self) -> None:
        """There is nothing to stop."""


def _transfer_us(subject: LoadingSubject, plan: DataPlan, device: torch.device, number: int) -> tuple[float, float]:
    """Return the microseconds an event in which a batch is put together, and moved; the first batch warms up."""
    window = WindowArrays.empty(plan.max_window_events, subject.source.widths)
    _touch(window, plan.max_window_events)
    loader = EventLoader(subject.source, plan, reader=_FixedReader(window))
    batches, spent = loader.epoch(number + 1), list[tuple[float, float]]()
    for _ in range(min(_LEAST_BATCHES, plan.num_steps)):
        began = time.perf_counter()
        batch = next(batches)
        gathered = time.perf_counter()
        batch.to(device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        moved, events = time.perf_counter(), max(batch.num_events, 1)
        spent.append((1e6 * (gathered - began) / events, 1e6 * (moved - gathered) / events))
    kept = spent[1:] or spent
    return statistics.median(found[0] for found in kept), statistics.median(found[1] for found in kept)


def _report(rounds: Sequence[_Round]) -> StageReport:
    times = {
        "read": [found.us(OPEN, READ) for found in rounds],
        "decompress": [found.us(DECOMPRESS) for found in rounds],
        "convert": [1e6 * found.convert_s / found.events for found in rounds],
        "transfer": [sum(found.transfer_us) for found in rounds],
    }
    medians = {name: statistics.median(values) for name, values in times.items()}
    whole = sum(medians.values())
    events = sum(found.events for found in rounds)
    read_s = sum(found.clock.seconds[READ] for found in rounds)
    read_bytes = sum(found.clock.read_bytes for found in rounds)
    fastest = max(rounds, key=lambda found: found.limit)
    return StageReport(
        stages={name: StageTime(us, us / whole, spread(times[name])) for name, us in medians.items()},
        open_us=statistics.median(found.us(OPEN) for found in rounds),
        gather_us=statistics.median(found.transfer_us[0] for found in rounds),
        repeats=statistics.median(_repeats(found.clock) for found in rounds),
        algorithms=_algorithms(rounds),
        read_bytes_per_s=read_bytes / read_s if read_s else float("inf"),
        reads_per_event=sum(found.clock.calls[READ] for found in rounds) / events,
        read_bytes_per_event=read_bytes / events,
        limit_events_per_s=fastest.limit,
        decompress_events_per_s=fastest.decompress_limit,
        copy_events_per_s=fastest.copy_limit,
        limit_spread=spread([found.limit for found in rounds]),
        events=events,
        rounds=len(rounds),
    )


def _repeats(clock: StageClock) -> float:
    inflated = wanted = 0
    for work, arguments in clock.kept:
        if work is inflate_range:
            inflated += inflated_bytes(*arguments)
            wanted += arguments[2] - arguments[1]
    return inflated / wanted if wanted else 1.0


def _algorithms(rounds: Sequence[_Round]) -> dict[str, float]:
    sizes: Counter[str] = Counter()
    for work, arguments in (call for found in rounds for call in found.clock.kept):
        if work is inflate_range:
            sizes[bytes(arguments[0][:2]).decode("latin1")] += len(arguments[0])
    return {name: size / sizes.total() for name, size in sizes.most_common()}
