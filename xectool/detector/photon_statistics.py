"""What the readings of an event say of their own unit: photons are counted, and counts fluctuate by their root.

Sensors beside each other see the same light, so what they differ by is the fluctuation of their counts. Its square over
the light is the number of photons that one photoelectron stands for: it follows the gain, and neither the energy of the
event nor its place. Simulated events of 5.5 to 100 MeV, with and without pile-up and dead sensors, have 9.2 to 10.1.

Axes: S sensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c

Array = npt.NDArray[Any]
USED: Final = (4.0, 40.0)  # light in units of the dark sensors' fluctuation: above noise, below steep and uneven light
FEWEST_SENSORS: Final = 40
PEDESTAL: Final = 15.0  # fluctuations of a dark sensor; light of 0.5 GeV in the darkest ones
FEWEST_EVENTS: Final = 8  # of a file, whose middle says what is usual there
# Photons for a photoelectron: no sensor is more than 80 % efficient, and one of 2 % counts nothing that is worth it.
COUNTS: Final = (1.2, 75.0)
_ROOT_OF_VARIANCE: Final = 1.5**0.5  # of a reading less the mean of the two beside it
_MEDIAN_OF_NORMAL: Final = 0.6745  # of the size of a normal number


def photon_statistics(npho: Array) -> tuple[float, float]:
    """Return what the sensors of the inner face tell about gain and pedestal of an event.

    Args:
        npho: Photons, raw, shape (S,).

    Returns:
        Photons per photoelectron, NaN where too few sensors tell; and the light of the darkest sensors in units of
        their own fluctuation, about 0 without a pedestal, NaN where nothing fluctuates.
    """
    known = np.where(np.abs(npho) < c.UNKNOWN_ABOVE, npho, np.nan)[: c.NUM_SIPMS].astype(np.float64)
    face = known.reshape(c.INNER_SHAPE)
    beside = 0.5 * (face[:, :-2] + face[:, 2:])
    apart, light = np.abs(face[:, 1:-1] - beside).ravel(), 0.5 * (face[:, 1:-1] + beside).ravel()
    telling = np.isfinite(apart)
    apart, light = apart[telling] / (_ROOT_OF_VARIANCE * _MEDIAN_OF_NORMAL), light[telling]
    if len(light) < FEWEST_SENSORS:
        return np.nan, np.nan
    darkest, quarter = np.partition(light, [len(light) // 20, len(light) // 4])[[len(light) // 20, len(light) // 4]]
    noise = float(np.median(apart[light <= quarter]))
    if not noise > 0:
        return np.nan, np.nan
    used = (light > USED[0] * noise) & (light < USED[1] * noise)
    if used.sum() < FEWEST_SENSORS:
        return np.nan, float(darkest) / noise
    return float(np.median(apart[used] / np.sqrt(light[used]))) ** 2, float(darkest) / noise


def pedestal_left(darkest: Iterable[float]) -> str:
    """Return that events of a file have light where there is none, or an empty string.

    Args:
        darkest: Light of the darkest sensors of each event, as `photon_statistics` tells it.
    """
    known = [value for value in darkest if np.isfinite(value)]
    if len(known) < FEWEST_EVENTS or abs(median(known)) <= PEDESTAL:
        return ""
    return f"even its darkest sensors have {median(known):.3g} times their own fluctuation"


def uncounted(counts: Iterable[float]) -> str:
    """Return that events of a file fluctuate as no counts of this detector do, or an empty string.

    Args:
        counts: Photons for a photoelectron in each event, as `photon_statistics` tells them.
    """
    known = [value for value in counts if value > 0]
    if len(known) < FEWEST_EVENTS or COUNTS[0] <= median(known) <= COUNTS[1]:
        return ""
    return f"its counts fluctuate as if a photoelectron were {median(known):.2g} photons (8 to 12 is usual)"
