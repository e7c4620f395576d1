"""Limits of a normalised input channel, of valid readings: what the guard of the first batch and the diagnosis share.

A spread below the usual 0.05 of feature normalisation is healthy here: the hits of a 52.8 MeV event arrive within a few
nanoseconds, 0.02 in the units of a time scale of 114 ns, and most sensors see few photons. What is wrong is a channel
that is constant, or in a unit a thousand times too large.
"""

from __future__ import annotations

from typing import Final

LARGEST_MEAN: Final = 3.0
SMALLEST_STD: Final = 1e-3
LARGEST_STD: Final = 20.0
LARGEST_ABS: Final = 50.0
OUT_OF_REACH: Final = 1e3  # whatever the other events are; another gain by a hundred stays below
