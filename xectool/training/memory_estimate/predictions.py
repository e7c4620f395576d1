"""What predictions of single sensors take: as they are written, as objects, and as an older formula counts them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from xectool.detector.constants import NUM_SENSORS

DICT_BYTES: Final = 540
"""A dictionary of eight floats in CPython 3.11, measured."""
COLUMN_BYTES: Final = 30
"""One row of packed columns."""
OLDER_BYTES: Final = 200
"""What the older formula takes for one dictionary."""
_OLDER_SENSORS: Final = 238  # 5 % of 4760, which the older formula multiplies with the ratio once more


@dataclass(frozen=True)
class SensorPredictions:
    """Predictions of the hidden sensors of some events.

    Attributes:
        events: Number of events.
        mask_ratio: Share of the valid sensors that is hidden.
        valid_sensors: Sensors with a reading, in one event.
    """

    events: int
    mask_ratio: float
    valid_sensors: int = NUM_SENSORS

    @property
    def per_event(self) -> int:
        """Predictions of one event: ``floor(mask_ratio x valid sensors)``."""
        # A ratio written with few digits times an integer may fall a rounding error short of the integer it means.
        return math.floor(self.mask_ratio * self.valid_sensors + 1e-9)

    @property
    def count(self) -> int:
        """All of them."""
        return self.events * self.per_event

    @property
    def older_bytes(self) -> int:
        """What the older formula says, which applies the ratio twice."""
        return round(self.events * self.mask_ratio * _OLDER_SENSORS * OLDER_BYTES)

    def lines(self, batch_size: int) -> tuple[str, ...]:
        """Return the account, a line each; the last one reconciles it with the older formula."""
        percent = f"{100 * self.mask_ratio:g}%"
        low = OLDER_BYTES * self.count / max(self.older_bytes, 1)
        return (
            f"{self.per_event} masked sensors an event = floor({self.mask_ratio:g} x {self.valid_sensors} valid); "
            f"{self.count:,} predictions of {self.events:,} events",
            f"as a list of dicts {DICT_BYTES} B each: {_gb(DICT_BYTES * self.count)} ({_gb(OLDER_BYTES * self.count)} "
            f"at {OLDER_BYTES} B); as columns {COLUMN_BYTES} B each: {_gb(COLUMN_BYTES * self.count)}",
            f"streamed by xectool: one batch of {batch_size}, {_gb(self.streamed_bytes(batch_size))}, whatever the "
            "number of events",
            f"the formula of the older system (legacy): {self.events:,} × {percent} × {_OLDER_SENSORS} × {OLDER_BYTES} "
            f"B = {_gb(self.older_bytes)}; it applies the {percent} twice, {_OLDER_SENSORS} = 5% of {NUM_SENSORS}; "
            f"undercounts {low:.3g} times; corrected {_gb(OLDER_BYTES * self.count)}",
        )

    def streamed_bytes(self, batch_size: int) -> int:
        """Return the peak of writing them batch by batch: the columns of a batch, and their copy in the file's form."""
        return 2 * COLUMN_BYTES * self.per_event * min(batch_size, self.events)


def _gb(size: float) -> str:
    """Return a size in units of 1e9 bytes.

    >>> _gb(47.6e9), _gb(2.38e9), _gb(128.52e9), _gb(12e6)
    ('47.6 GB', '2.38 GB', '128.5 GB', '0.012 GB')
    """
    value = size / 1e9
    return f"{value:.1f} GB" if value >= 10 else f"{value:.3g} GB"
