"""Which events of a batch have readings, or a truth, that no event can have.

Axes: B events, S sensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from xectool.data.batch import EventBatch
from xectool.data.extremes import NPHO_HIGH, NPHO_LOW, PHOTONS, TIME_HIGH, TIME_LOW, Usual
from xectool.detector.constants import LARGEST_NPHO, UNKNOWN_ABOVE
from xectool.detector.truth_ranges import RANGES, impossible
from xectool.models.normalize import Normalizer
from xectool.training.guards.inputs import FEWEST_PHOTONS, MOST_PHOTONS

OF_MEDIAN: Final = 20.0  # and times the events it came with: in another unit all are beyond the bound
FEWEST_EVENTS: Final = 4  # whose median says what is usual
ALONE_PHOTONS: Final = 2e8  # the bound where there are fewer
OF_MEDIAN_ONE: Final = 2.0  # the same of one sensor, which has half of the light of a photon that converts before it
# Of the size of all readings, that adds up: noise is of both signs and of N sensors leaves 1 / sqrt(N).
OF_ONE_SIGN: Final = 0.5
LARGEST_TIME: Final = 50.0  # network units, mean over the sensors of an event; 0 to 3 is usual
FAR_TIME: Final = 10.0  # network units, one sensor: 1.1 us, longer than a trace (DAT-10)
FAR_SENSORS: Final = 0.2  # of those with light; pile-up and noise make single sensors late, not a fifth of them
MOST_OF_BATCH: Final = 0.5  # where more are beyond the bounds it is a matter of units, not of events
NO_READING: Final = "no sensor has a reading"


def implausible(batch: EventBatch, normalizer: Normalizer, before: Sequence[float] = ()) -> list[tuple[int, str]]:
    """Return row and reason of each event of a batch that cannot be, by a few passes over the raw readings.

    Args:
        batch: B events.
        normalizer: Says what the unit of time is.
        before: Photons of events of the same run, which say what is usual where there are few in the batch.
    """
    if not batch.num_events:
        return []
    photons, known = light_of(batch)
    many = batch.num_events >= FEWEST_EVENTS
    bound, of_one = _bounds(photons if many else torch.cat((photons, photons.new_tensor(list(before)))))
    absent, bright, below = ~known.any(dim=1), photons > bound, photons < FEWEST_PHOTONS
    sizes = torch.where(known, batch.npho.abs(), 0.0)
    over = sizes > of_one
    over &= over.sum(dim=0) <= MOST_OF_BATCH * batch.num_events  # else a hot channel, and no matter of events
    hot = over.any(dim=1)
    times, far, distance = _times(batch, known, normalizer)
    late = (times > LARGEST_TIME) | (far > FAR_SENSORS)
    if not bool((absent | bright | below | hot | late).any()):
        return []
    below &= photons < -OF_ONE_SIGN * sizes.sum(dim=1, dtype=torch.float64)
    reasons: dict[int, str] = {}
    for row in absent.nonzero().flatten().tolist():
        reasons[row] = NO_READING
    for row in (bright | below).nonzero().flatten().tolist():
        light = torch.where(known[row], batch.npho[row], 0.0)
        reasons[row] = f"{float(photons[row]):.2g} photons (52.8 MeV make about 7e5){_by_one(light, photons[row])}"
    for row in hot.nonzero().flatten().tolist():
        reasons.setdefault(row, _too_hot(torch.where(over[row], batch.npho[row], 0.0), of_one))
    for row in late.nonzero().flatten().tolist():
        reasons.setdefault(row, _late(float(times[row]), float(far[row]), distance[row]))
    return sorted(reasons.items()) if not many or len(reasons) <= MOST_OF_BATCH * batch.num_events else []


def impossible_truths(batch: EventBatch, tasks: Iterable[str]) -> dict[int, str]:
    """Return the reason of each row of a batch whose truth of one of some tasks no event can have."""
    reasons: dict[int, str] = {}
    for task in tasks:
        truth = batch.targets[task].numpy(force=True)
        for row in np.flatnonzero(impossible(task, truth)).tolist():
            reasons.setdefault(row, f"the truth of task {task} is {_shown(truth[row])} {RANGES[task].unit}")
    return reasons


def _shown(truth: np.ndarray) -> str:
    return f"{truth[0]:.6g}" if len(truth) == 1 else str([float(f"{value:.6g}") for value in truth])


def _bounds(photons: Tensor) -> tuple[float, float]:
    """Return the most photons of an event and of one sensor, by those of the events around it, shape (N,)."""
    if len(photons) < FEWEST_EVENTS:
        return ALONE_PHOTONS, ALONE_PHOTONS
    median = float(photons.median())
    return max(MOST_PHOTONS, OF_MEDIAN * median), max(LARGEST_NPHO, OF_MEDIAN_ONE * median)


def light_of(batch: EventBatch) -> tuple[Tensor, Tensor]:
    """Return the photons of each event, shape (B,), and which readings are known, shape (B, S)."""
    known = batch.npho.abs() <= UNKNOWN_ABOVE
    return torch.where(known, batch.npho, 0.0).sum(dim=1, dtype=torch.float64), known


def usual_extremes(normalizer: Normalizer) -> Usual:
    """Return bounds within which `implausible` finds nothing, whatever the other events of a batch are."""
    shift, far = normalizer.time_shift * normalizer.time_scale, FAR_TIME * normalizer.time_scale
    return Usual(
        {
            PHOTONS: (FEWEST_PHOTONS, min(MOST_PHOTONS, ALONE_PHOTONS)),
            NPHO_LOW: (-LARGEST_NPHO, UNKNOWN_ABOVE),
            NPHO_HIGH: (-UNKNOWN_ABOVE, LARGEST_NPHO),
            TIME_LOW: (shift - far, math.inf),
            TIME_HIGH: (-math.inf, shift + far),
        }
    )


def _times(batch: EventBatch, known: Tensor, normalizer: Normalizer) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the times of each event are.

    Returns:
        Mean distance from the shift in network units and share of the sensors beyond ``FAR_TIME``, each of shape (B,);
        distance of each sensor, shape (B, S), which has no columns where all are usual.
    """
    shift = normalizer.time_shift * normalizer.time_scale
    usual = torch.where(batch.time.abs() <= UNKNOWN_ABOVE, batch.time, shift)
    low, high = torch.aminmax(usual)
    if max(float(high) - shift, shift - float(low)) <= FAR_TIME * normalizer.time_scale:
        none = torch.zeros(batch.num_events, device=usual.device)
        return none, none, none.new_zeros(batch.num_events, 0)  # this one pass is all that usual events need
    timed = known & (batch.npho >= normalizer.npho_threshold) & (batch.time.abs() <= UNKNOWN_ABOVE)
    distance = torch.where(timed, (batch.time - shift).abs() / normalizer.time_scale, 0.0)
    count = timed.sum(dim=1).clamp_min(1)
    return distance.sum(dim=1, dtype=torch.float64) / count, (distance > FAR_TIME).sum(dim=1) / count, distance


def _by_one(light: Tensor, photons: Tensor) -> str:
    """Return which sensor has most of the photons of an event, shape (S,), where one has; else an empty string."""
    sensor = int(light.abs().argmax())
    return f": sensor {sensor} has {float(light[sensor]):.2g}" if 2 * light[sensor] / photons > 1 else ""


def _too_hot(light: Tensor, of_one: float) -> str:
    """Return which sensor has most, of those that have more photons than a sensor can, shape (S,), 0 for the others."""
    sensor = int(light.abs().argmax())
    others = int(light.count_nonzero()) - 1
    more = f", and {others} more" if others else ""
    return f"sensor {sensor} has {float(light[sensor]):.2g} photons (no sensor gives {of_one:.2g}){more}"


def _late(mean: float, share: float, distance: Tensor) -> str:
    far = (distance > FAR_TIME).nonzero().flatten().tolist()
    if len(far) == 1:
        return f"the time of sensor {far[0]} is {float(distance[far[0]]):.2g} in network units (0 to 3 is usual)"
    if mean > LARGEST_TIME:
        return f"its times are {mean:.2g} in network units (0 to 3 is usual)"
    return f"{share:.0%} of its times are beyond {FAR_TIME:g} in network units (0 to 3 is usual)"
