"""Races of settings of the loader: interleaved rounds on the configured events, medians, and a test against noise."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from xectool.data.loader import window_reader
from xectool.data.plan import DataPlan, WindowKey
from xectool.data.readers import WindowReader
from xectool.probes.loading.events import LoadingSubject, Setting, spread

MAX_SETTINGS = 16
LEAST_GAIN = 1.05  # below, a change is not worth a line in a configuration
LEAST_PAIRS = 5  # all of five pairs in one direction are chance once in 32
_LEFT_BEHIND = 0.7
_CHUNK_FACTOR = 4
_LEAST_WINDOWS = 4
_LEAST_CHUNK = 256
_ROUNDS_SHARE = 0.4  # of the time; the rest is for the pairs that decide


@dataclass(frozen=True)
class Timing:
    """A setting that was raced.

    Attributes:
        setting: The setting.
        memory_bytes: Bound on its host memory.
        events_per_s: Median rate of reading; 0 where it was not raced.
        spread: Half the distance of the quartiles over the median.
        rates: The rate of each round.
        skipped: Why it was not raced; empty where it was.
    """

    setting: Setting
    memory_bytes: int
    events_per_s: float = 0.0
    spread: float = 0.0
    rates: tuple[float, ...] = ()
    skipped: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a race says.

    Attributes:
        timings: All settings, the fastest first.
        best: The fastest setting that is faster beyond the noise; the current one where there is none.
        gain: Median ratio of its rate to that of the current setting, over pairs measured side by side.
        reason: Why this one.
    """

    timings: tuple[Timing, ...]
    best: Setting
    gain: float
    reason: str

    def rate(self, setting: Setting) -> float:
        """Return the median rate of a setting."""
        return next(timing.events_per_s for timing in self.timings if timing.setting == setting)


Measure = Callable[[Setting, int], float]


def grid(current: Setting, cores: int, num_events: int, whole_basket_chunk: int) -> list[Setting]:
    """Return the settings that may be worth a try, the current one first and the likeliest next.

    Args:
        current: The configured setting.
        cores: Cores of this process; workers and threads are powers of two that use up to all of them.
        num_events: Events of an epoch; a chunk beyond them changes nothing.
        whole_basket_chunk: Chunk size whose windows hold a whole basket.
    """
    powers = [2**exponent for exponent in range(cores.bit_length()) if 2**exponent <= cores]
    # One chunk of all events reads no basket twice; whether memory holds it is for the race to say.
    chunks = [current.chunksize * _CHUNK_FACTOR, current.chunksize // _CHUNK_FACTOR, num_events]
    if current.chunksize < whole_basket_chunk:
        chunks.insert(0, whole_basket_chunk)
    sizes = {min(size, num_events) for size in chunks if size >= _LEAST_CHUNK}
    found = [Setting(size, current.num_workers, current.num_threads) for size in sorted(sizes, reverse=True)]
    pairs = [(0, cores), (1, cores), (cores, 1), *((0, threads) for threads in powers)]
    pairs += [(max(1, cores // (2 * threads)), threads) for threads in powers]
    found += [Setting(current.chunksize, *pair) for pair in pairs]
    distinct: dict[tuple[int, int, int], Setting] = {}
    for setting in (current, *found):
        distinct.setdefault((min(setting.chunksize, num_events), setting.num_workers, setting.num_threads), setting)
    return list(distinct.values())[:MAX_SETTINGS]


def race(
    settings: Sequence[Setting],
    memory_bytes: Callable[[Setting], int],
    budget_bytes: int,
    measure: Measure,
    seconds: float,
) -> Verdict:
    """Race settings; the first is the current one and is always raced.

    Rounds go through all settings in turn, so that a busy machine is busy for all of them; those left far behind drop
    out after two. The winner must then be faster than the current setting in every one of five more pairs, and by more
    than 5 % in the median.

    Args:
        settings: What is raced.
        memory_bytes: Bound on the host memory of a setting.
        budget_bytes: Memory that may be used.
        measure: Measures the rate of a setting once; told the number of the round.
        seconds: Time for all rounds; the current setting is always measured.
    """
    current, needs = settings[0], {setting: memory_bytes(setting) for setting in settings}
    too_large = {setting for setting in settings[1:] if needs[setting] > budget_bytes}
    start, rates = time.perf_counter(), {setting: list[float]() for setting in settings if setting not in too_large}
    left, number = list(rates), 0
    while number < LEAST_PAIRS and (number == 0 or time.perf_counter() - start < _ROUNDS_SHARE * seconds):
        for setting in left:
            if setting == current or time.perf_counter() - start < 1.2 * _ROUNDS_SHARE * seconds:
                rates[setting].append(measure(setting, number))
        number += 1
        left = _kept(rates, current) if number >= 2 else left
    raced = {setting: statistics.median(found) for setting, found in rates.items() if found}
    # One round is chance where others had more: on a busy machine such a one took the time of all pairs.
    known = min(2, max(len(found) for setting, found in rates.items() if setting != current or len(rates) == 1))
    rival = max((setting for setting in raced if len(rates[setting]) >= known), key=lambda setting: raced[setting])
    pairs = _pairs(current, rival, measure, number, start + seconds) if rival != current else []
    for setting, rate in itertools.chain.from_iterable(zip((current, rival), pair, strict=True) for pair in pairs):
        rates[setting].append(rate)
    best, gain, reason = _decide(current, rival, pairs)
    timings = [_timing(setting, needs[setting], rates.get(setting), budget_bytes) for setting in settings]
    return Verdict(tuple(sorted(timings, key=lambda timing: -timing.events_per_s)), best, gain, reason)


def _kept(rates: dict[Setting, list[float]], current: Setting) -> list[Setting]:
    medians = {setting: statistics.median(found) for setting, found in rates.items() if found}
    fastest = max(medians.values())
    return [setting for setting in medians if setting == current or medians[setting] > _LEFT_BEHIND * fastest]


def _pairs(
    current: Setting, rival: Setting, measure: Measure, number: int, deadline: float
) -> list[tuple[float, float]]:
    pairs: list[tuple[float, float]] = []
    while len(pairs) < LEAST_PAIRS and time.perf_counter() < deadline:
        at = number + len(pairs)
        # Who comes first changes from pair to pair: the second finds a warmer machine.
        order = (current, rival) if at % 2 else (rival, current)
        found = {setting: measure(setting, at) for setting in order}
        pairs.append((found[current], found[rival]))
    return pairs


def _decide(current: Setting, rival: Setting, pairs: Sequence[tuple[float, float]]) -> tuple[Setting, float, str]:
    if rival == current:
        return current, 1.0, "no other setting was faster"
    ratios = [second / first for first, second in pairs]
    if len(ratios) < LEAST_PAIRS:
        said = f"{rival} may be faster, but the time was up after {len(ratios)} of {LEAST_PAIRS} pairs"
        return current, 1.0, said
    gain = statistics.median(ratios)
    if min(ratios) > 1 and gain > LEAST_GAIN:
        return rival, gain, f"faster in {len(ratios)} of {len(ratios)} pairs, {100 * (gain - 1):.0f} % in the median"
    wins = sum(ratio > 1 for ratio in ratios)
    return current, 1.0, f"within the noise: {rival} was faster in {wins} of {len(ratios)} pairs ({gain:.2f} times)"


def _timing(setting: Setting, needs: int, rates: Sequence[float] | None, budget_bytes: int) -> Timing:
    if rates is None:
        skipped = f"needs up to {needs / 1e9:.2f} GB of {budget_bytes / 1e9:.2f} GB"
        return Timing(setting, needs, skipped=skipped)
    if not rates:
        return Timing(setting, needs, skipped="the time was up")
    return Timing(setting, needs, statistics.median(rates), spread(rates), tuple(rates))


def reading_rate(subject: LoadingSubject, max_events: int) -> Measure:
    """Return a measure: events a second that a setting reads into windows, each round in another part of the epoch.

    Only windows in motion are held, those waiting in a shuffle are not: memory is warm after a few, as in training.
    """

    def measure(setting: Setting, number: int) -> float:
        plan, options = subject.plan(setting.chunksize), subject.options(setting)
        # A data set that fits into one window is read one window at a time in training, too.
        warm = min(options.windows_ahead + 1, len(plan.windows(number + 1, 0)))
        keys = _some(plan, number, warm, max_events)
        reader = window_reader(subject.source, plan, options, resident=warm)
        try:
            _serve(reader, plan, number + 1, keys[:warm])
            return _serve(reader, plan, number + 1, keys[warm:])
        finally:
            reader.close()

    return measure


def reader_start_s(subject: LoadingSubject, setting: Setting) -> float:
    """Return how much longer a new reader takes for its first window than for the same once more: processes begin.

    To be called before anything else is read by processes, for the server that forks them stays. A whole copy of the
    events is read without a reader.
    """
    if subject.source.cache is not None:
        return 0.0
    plan, began = subject.plan(setting.chunksize), time.perf_counter()
    reader, first = window_reader(subject.source, plan, subject.options(setting), resident=1), plan.windows(1, 0)[:1]
    try:
        _serve(reader, plan, 1, first)
        started = time.perf_counter()
        _serve(reader, plan, 1, first)
        return max(0.0, 2 * started - began - time.perf_counter())
    finally:
        reader.close()


def _some(plan: DataPlan, number: int, warm: int, max_events: int) -> list[WindowKey]:
    """Return windows to warm up with, and those to measure: the next ones of the epoch, around its end if need be."""
    keys = plan.windows(number + 1, 0)
    first = 0 if plan.shuffle else number * (warm + _LEAST_WINDOWS)
    endless = itertools.islice(itertools.cycle(keys), first % len(keys), None)
    taken, events = list(itertools.islice(endless, warm)), 0
    for count, key in enumerate(endless, 1):
        taken.append(key)
        low, high = plan.order(number + 1).bounds(key)
        events += high - low
        if events >= max_events and count >= min(_LEAST_WINDOWS, len(keys)):
            break
    return taken


def _serve(reader: WindowReader, plan: DataPlan, epoch: int, keys: Iterable[WindowKey]) -> float:
    """Read windows and give them back at once; return events a second."""
    began, events = time.perf_counter(), 0
    for batch in _without_repeats(list(keys)):
        reader.start(epoch, batch)
        for key in batch:
            reader.get(key)
            reader.retire(key)
            low, high = plan.order(epoch).bounds(key)
            events += high - low
        reader.stop()
    return events / max(time.perf_counter() - began, 1e-9)


def _without_repeats(keys: Sequence[WindowKey]) -> list[list[WindowKey]]:
    """Return the keys in runs that hold each window once: a reader knows its windows by their keys."""
    runs: list[list[WindowKey]] = [[]]
    for key in keys:
        if key in runs[-1]:
            runs.append([])
        runs[-1].append(key)
    return runs
