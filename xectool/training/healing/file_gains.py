"""Whether the light of a file is on the scale of the others, of itself, and of a detector that counts photons.

With a true energy the light per energy tells; without one the fluctuation of the counts does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from xectool.detector.photon_statistics import FEWEST_EVENTS, pedestal_left, uncounted

PART_EVENTS: Final = 24  # of a file whose quarters are compared
GAIN: Final = 2.0  # of light per energy; of sound events 90 % lie within 0.8 to 1.6, and medians of files within 5 %
GAIN_SIGMA: Final = 5.0
FOLLOWS: Final = 3.0  # a gain of ten is seen as 2.2 times the light even where beams differ by 4.6 the other way
# Light per energy of this detector is 1.3e7 to 4e7 photons a GeV, with what it collects and how it is calibrated.
YIELDS: Final = (2e6, 2.5e8)
ENERGIES: Final = (1e-3, 0.5)  # GeV; an energy in another unit says nothing of the light


@dataclass(frozen=True)
class Sign:
    """What a file shows.

    Attributes:
        message: What it is.
        files: Indices of the files it is about, the odd one first.
        meaning: What it means.
        task: Of which task's truth.
        undecided: Whether any of the files may be the odd one.
    """

    message: str
    files: tuple[int, ...]
    meaning: str
    task: str = ""
    undecided: bool = False


@dataclass(frozen=True)
class MeasuredEvent:
    """What is remembered of an event.

    Attributes:
        entry: Its place in the file.
        light: Photons of all sensors.
        brightest: Its brightest sensor.
        share: What that has of the light.
        time: Middle of its times, in network units.
        energy: True energy in GeV, NaN where it is not known.
        counts: Photons for a photoelectron, by their fluctuation; NaN where that was not looked at.
        darkest: Light of its darkest sensors, in units of their fluctuation; NaN likewise.
        lead: Its brightest sensor, in units of the second brightest, or of a photon.
        true_time: True time, in network units, NaN where it is not known.
        dark_faces: Faces without light.
    """

    entry: int
    light: float
    brightest: int
    share: float
    time: float
    energy: float
    counts: float = math.nan
    darkest: float = math.nan
    lead: float = 1.0
    true_time: float = math.nan
    dark_faces: frozenset[str] = frozenset()

    @property
    def log_yield(self) -> float:
        """Logarithm of the light per energy, NaN where the energy is not known."""
        return math.log(self.light / self.energy) if self.energy > 0 else math.nan

    @property
    def log_counts(self) -> float:
        """Logarithm of the photons for a photoelectron; NaN where the energy is known, which tells more."""
        return math.log(self.counts) if self.counts > 0 and not self.energy > 0 else math.nan


@dataclass(frozen=True)
class Measure:
    """What stands for the gain of an event.

    Attributes:
        kind: Name of what is said by it.
        value: Its logarithm, of an event; NaN where it is not known.
        name: What it is called.
        light_follows: Whether the light itself has to differ as well: an energy in another unit leaves it as it is.
    """

    kind: str
    value: Callable[[MeasuredEvent], float]
    name: str
    light_follows: bool


MEASURES: Final = (
    Measure("yield", lambda event: event.log_yield, "light per energy", light_follows=True),
    Measure("counts", lambda event: event.log_counts, "fluctuation of the counts", light_follows=False),
)


def parts_differ(index: int, events: Sequence[MeasuredEvent], measure: Measure) -> Sign | None:
    """Return that one part of a file has another gain than another: it drifts or jumps."""
    known = sorted(_known(events, measure), key=lambda event: event.entry)
    quarter = len(known) // 4
    if len(known) < PART_EVENTS:
        return None
    parts = [known[start : start + quarter] for start in range(0, 4 * quarter, quarter)]
    low, high = (choose(parts, key=lambda part: _middle(part, measure)) for choose in (min, max))
    if not _gains_differ(low, high, measure, parts):
        return None
    entries = [f"{part[0].entry} to {part[-1].entry}" for part in (high, low)]
    ratio = math.exp(_middle(high, measure) - _middle(low, measure))
    message = f"entries {entries[0]} have {ratio:.3g} times the {measure.name} of entries {entries[1]}"
    return Sign(message, (index,), "its gain drifts or jumps")


def other_gain(index: int, files: Mapping[int, Sequence[MeasuredEvent]], measure: Measure) -> Sign | None:
    """Return that a file has another gain than another, of those of which enough is known."""
    known = {other: found for other, events in files.items() if len(found := _known(events, measure)) >= FEWEST_EVENTS}
    own = known.get(index, ())
    for other, events in known.items() if own else ():
        low, high = sorted((own, events), key=lambda part: _middle(part, measure))
        if _gains_differ(low, high, measure, (low, high)):
            named = (index, other) if high is own else (other, index)
            ratio = math.exp(_middle(high, measure) - _middle(low, measure))
            return Sign(f"its {measure.name} is {ratio:.3g} times that of another file", named, "gains differ")
    return None


def beyond_detector(index: int, events: Sequence[MeasuredEvent]) -> Iterator[tuple[str, Sign]]:
    """Yield what no detector of this kind gives, whatever the other files are, with its kind."""
    if message := pedestal_left(event.darkest for event in events):
        yield "pedestal", Sign(message, (index,), "a pedestal was not subtracted, or subtracted twice")
        return
    yields = [event.light / event.energy for event in events if ENERGIES[0] < event.energy < ENERGIES[1]]
    if len(yields) >= FEWEST_EVENTS and not YIELDS[0] <= median(yields) <= YIELDS[1]:
        message = f"it has {median(yields):.2g} photons a GeV (1.3e7 to 4e7 is usual)"
        yield "scale", Sign(message, (index,), "the gain or unit of its light is wrong")
    if message := uncounted(event.counts for event in events):
        yield "scale", Sign(message, (index,), "the gain or unit of its light is wrong")


def _known(events: Sequence[MeasuredEvent], measure: Measure) -> list[MeasuredEvent]:
    return [event for event in events if math.isfinite(measure.value(event))]


def _middle(events: Sequence[MeasuredEvent], measure: Measure) -> float:
    return median(measure.value(event) for event in events)


def _gains_differ(
    low: Sequence[MeasuredEvent],
    high: Sequence[MeasuredEvent],
    measure: Measure,
    parts: Sequence[Sequence[MeasuredEvent]],
) -> bool:
    """Return whether two parts differ, and not by the noise of single events, which all parts together tell.

    Beams of other energies have the same light per energy, and the same fluctuation of the counts. Energies of other
    events make it scatter more. Energies in another unit move the light per energy by far more than the light.
    """
    apart = _middle(high, measure) - _middle(low, measure)
    light = [median(math.log(event.light) for event in part) for part in (high, low)]
    follows = not measure.light_follows or light[0] - light[1] > max(math.log(GAIN) / 2, apart / FOLLOWS)
    noise = _scatter(parts, measure) * math.hypot(*(1.25 / math.sqrt(len(part)) for part in (low, high)))
    return apart > math.log(GAIN) and follows and apart > GAIN_SIGMA * noise


def _scatter(parts: Sequence[Sequence[MeasuredEvent]], measure: Measure) -> float:
    """Return the standard deviation of single events, from the mean distance to the middle of their part.

    The median distance is half of it by chance where parts hold six events.
    """
    middles = [_middle(part, measure) for part in parts]
    return 1.25 * fmean(
        abs(measure.value(event) - at) for part, at in zip(parts, middles, strict=True) for event in part
    )
