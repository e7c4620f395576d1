"""Whether memory rises with every step, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.statistics import Series, slope

BYTES_PER_STEP: Final = 1e6  # F014
BYTES_PER_EPOCH: Final = 50e6  # F014
# Lost little by little, which is as deadly in a long run. In its first epochs a sound run took 123 MB in two stairs,
# which a busy machine spread over 65 steps.
BYTES_IN_ALL: Final = 150e6
IGNORED: Final = 2  # F014: the first steps allocate
LEAST_STEPS: Final = 20  # F014
LEAST_EPOCHS: Final = 4  # three after the first one is left out
FEW_EPOCHS: Final = 3  # two rises tell where both are far beyond the limit, and alike
ALIKE: Final = 0.7
LEAST_SAMPLES: Final = 6
SAMPLED_EVERY_S: Final = 1.0  # the heartbeat looks at memory so often; the steps between repeat what it saw
_LOOKS: Final = ("spike", "nonfinite_skip", "quarantine", "rewind")
_BLOCKS: Final = 10
_RISING: Final = 0.8  # share of the rises between blocks of samples; a cache that fills stops rising
_MOST: Final = 0.6  # of what grows; below 1 less this it is another's
_STILL: Final = 0.5  # the later half must rise at least half as fast as the whole; start-up levels off


@dataclass(frozen=True)
class Growth:
    """The course of memory over steps or epochs.

    Attributes:
        source: ``host`` or ``device``.
        samples: Samples used; 0 where there are too few for a slope.
        unit: What the slope is taken over: ``step`` or ``epoch``.
        slope: Bytes per unit (Theil-Sen).
        first: First sample used, bytes.
        last: Last sample, bytes.
        from_step: Step of the first sample used.
        units: Steps or epochs between them.
        steady: Whether it rises to the end.
        settled: Whether only steps after the first epoch were used, when buffers are full and files are mapped.
        own_slope: Slope of the training process alone, in the same samples; NaN where it was not recorded.
    """

    source: str = "host"
    samples: int = 0
    unit: str = "step"
    slope: float = 0.0
    first: float = math.nan
    last: float = math.nan
    from_step: int = 0
    units: int = 0
    steady: bool = False
    settled: bool = False
    own_slope: float = math.nan

    @property
    def own(self) -> bool | None:
        """Whether it is the training process that grows, or those below it, such as readers; None where unclear."""
        share = self.own_slope / self.slope if self.slope > 0 else math.nan
        return True if share >= _MOST else False if share <= 1 - _MOST else None

    @property
    def alarming(self) -> bool:
        """Whether the slope is beyond F014 or adds up to much, and lasts."""
        in_all = self.slope * self.units
        if self.unit == "step" and not self.settled:
            return self.steady and self.slope > BYTES_PER_STEP and in_all > BYTES_IN_ALL
        limit = BYTES_PER_STEP if self.unit == "step" else BYTES_PER_EPOCH
        return self.steady and (self.slope > limit or (self.settled and in_all > BYTES_IN_ALL))

    @property
    def refutes(self) -> bool:
        """Whether enough samples say that nothing grows for long, whatever an early look said."""
        return self.samples >= LEAST_SAMPLES and not self.alarming

    def text(self) -> str:
        """Return the growth in one line."""
        if not self.samples:
            return "too few samples of memory"
        verb, remark = ("grew", "") if self.steady else ("went", ", not steadily")
        whose = {True: ", in the training process itself", False: ", in the processes it started", None: ""}
        return (
            f"{self.source} memory {verb} {self.first / 1e6:.0f} -> {self.last / 1e6:.0f} MB in {self.units} "
            f"{self.unit}s ({self.slope / 1e6:.3g} MB a {self.unit}{remark})"
            f"{whose[self.own] if self.alarming else ''}"
        )


def memory_growth(evidence: Evidence) -> Growth:
    """Return the steepest lasting growth of host or device memory, by step where sampled so, else by epoch."""
    steps = evidence.steps
    whole = np.isin(steps["epoch"], [epoch.epoch for epoch in evidence.epochs])
    candidates = []
    for rows in _processes(evidence):
        settled, epochs = _settled(evidence, rows), rows[whole[rows]]
        for source, column in (("host", "rss_bytes"), ("device", "device_bytes")):
            by_step = _by_step(source, evidence, column, rows)
            candidates += [replace(by_step, settled=settled), _by_end_of_epoch(source, evidence, column, epochs)]
    candidates += [
        _by_epoch(evidence, source, name)
        for source, name in (("host", "perf/process_rss_GB"), ("device", "perf/vram_allocated_GB"))
    ]
    known = [growth for growth in candidates if growth.samples]
    return max(known, key=lambda growth: (growth.alarming, growth.unit == "step", growth.slope), default=Growth())


def _processes(evidence: Evidence) -> list[NDArray[np.intp]]:
    """Return the rows of each attempt, as each process begins with memory of its own.

    Without its first epoch, in which buffers fill and mapped files are touched for the first time, where more is known,
    and without what comes before the limit of recompilations, as each graph takes memory of its own.
    """
    attempts, epochs, times = evidence.steps.attempt, evidence.steps["epoch"], evidence.steps["time"]
    compiled = max((event.step for event in evidence.of("recompile_limit")), default=0)
    after = evidence.steps["step"] > compiled
    found = []
    for number in np.unique(attempts[after]):
        own = np.flatnonzero((attempts == number) & after)
        later = own[epochs[own] > epochs[own[0]]]
        long = later.size >= LEAST_STEPS + IGNORED and np.ptp(times[later]) >= LEAST_SAMPLES * SAMPLED_EVERY_S
        found.append(later if long else own)
    return found


def _settled(evidence: Evidence, rows: NDArray[np.intp]) -> bool:
    """Return whether the first epoch of the attempt is not among the rows."""
    attempts, epochs = evidence.steps.attempt, evidence.steps["epoch"]
    return bool(rows.size and epochs[rows[0]] > epochs[attempts == attempts[rows[0]]][0])


def _without_looks(evidence: Evidence, values: Series) -> Series:
    """Return samples of memory without the rises at incidents: looking at a batch takes memory and is no leak."""
    numbers = evidence.steps["step"]
    looked = np.array([event.step for event in evidence.of(*_LOOKS)], dtype=np.float64)
    known = np.flatnonzero(np.isfinite(values))
    if not (looked.size and known.size):
        return values
    rises = np.diff(values[known], prepend=values[known[0]])
    rises[np.isin(numbers[known], [looked, looked + 1])] = 0.0  # the sample after it may be the first to show it
    left = values.copy()
    left[known] = values[known[0]] + np.cumsum(rises)
    return left


def _by_step(source: str, evidence: Evidence, column: str, rows: NDArray[np.intp]) -> Growth:
    """Return the growth over steps, one sample a second: a level that stays is as telling as one that changes."""
    steps = evidence.steps
    values = _without_looks(evidence, steps[column])[rows]
    known = np.isfinite(values)
    numbers, times, values = (part[known][IGNORED:] for part in (steps["step"][rows], steps["time"][rows], values))
    if values.size < LEAST_STEPS:
        return Growth(source)
    chosen = np.sort(np.unique((times - times[0]) // SAMPLED_EVERY_S, return_index=True)[1])
    # Seconds and heartbeats do not keep time: what repeats once is the same look, what repeats on stays the same.
    same = np.diff(values[chosen], prepend=np.nan) == 0
    chosen = chosen[~(same & ~np.roll(same, 1))]
    if chosen.size < LEAST_SAMPLES:
        flat = float(np.ptp(values)) == 0
        return (
            Growth(source, values.size, "step", 0.0, values[0], values[-1], int(numbers[0])) if flat else Growth(source)
        )
    own = _without_looks(evidence, steps["own_rss_bytes"])[rows][known][IGNORED:][chosen]
    return _growth(source, "step", numbers[chosen], values[chosen], own)


def _by_end_of_epoch(source: str, evidence: Evidence, column: str, rows: NDArray[np.intp]) -> Growth:
    """Return the growth of what the ends of epochs leave behind: what is lost while files are read comes in stairs.

    The memory is that of all processes of the run, of which a reader may be the one that grows.
    """
    epochs, values = evidence.steps["epoch"][rows], _without_looks(evidence, evidence.steps[column])[rows]
    known = np.isfinite(values)
    epochs, values = epochs[known], values[known]
    last = np.flatnonzero(np.diff(epochs, append=np.inf))
    if last.size < FEW_EPOCHS:
        return Growth(source)
    rises = np.diff(values[last])
    if last.size < LEAST_EPOCHS and rises.min() < max(2 * BYTES_PER_EPOCH, ALIKE * rises.max()):
        return Growth(source)
    own = _without_looks(evidence, evidence.steps["own_rss_bytes"])[rows][known][last]
    return _growth(source, "epoch", epochs[last], values[last], own)


def _by_epoch(evidence: Evidence, source: str, name: str) -> Growth:
    rows = [(epoch.epoch, epoch.metrics[name] * 1e9) for epoch in evidence.epochs if name in epoch.metrics][1:]
    if len(rows) < LEAST_EPOCHS:
        return Growth(source)
    numbers, values = np.array(rows, dtype=np.float64).T
    return _growth(source, "epoch", numbers, values)


def _growth(source: str, unit: str, numbers: Series, values: Series, own: Series | None = None) -> Growth:
    mine = own if own is not None and source == "host" and np.isfinite(own).all() else None
    whole = slope(numbers, values)
    half = values.size // 2
    later = slope(numbers[half:], values[half:])
    # Medians of blocks, so that the noise between two samples hides no trend and makes none.
    parts = [np.median(part) for part in np.array_split(values, min(_BLOCKS, values.size))]
    rises = float(np.mean(np.diff(parts) > 0))
    return Growth(
        source=source,
        samples=int(values.size),
        unit=unit,
        slope=whole,
        first=float(values[0]),
        last=float(values[-1]),
        from_step=int(numbers[0]) if unit == "step" else 0,
        units=int(numbers[-1] - numbers[0]),
        steady=rises >= _RISING and later >= _STILL * whole,
        own_slope=slope(numbers, mine) if mine is not None else math.nan,
    )
