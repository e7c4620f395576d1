"""How many bad events a data set has a right to, and how many that cannot be a run leaves out by itself."""

from __future__ import annotations

from typing import Final

from xectool.config.guards import GuardsConfig

_ALWAYS_ALLOWED: Final = 16  # a small data set has a right to a few bad events as well
_SHARE_OF_BUDGET: Final = 2  # half of the places are kept for events that do harm


def few_events(config: GuardsConfig, num_events: int) -> int:
    """Return how many bad events a data set has a right to, left out or not."""
    return min(max(_ALWAYS_ALLOWED, int(config.max_quarantined * num_events)), num_events // 2)


def room_for_impossible(config: GuardsConfig, num_events: int) -> int:
    """Return how many events that cannot be a run leaves out; 0 where its guards leave out none."""
    leaves_out = config.active("G01") and config.quarantine and config.on_input_scale == "stop"
    return few_events(config, num_events) // _SHARE_OF_BUDGET if leaves_out and config.max_quarantined else 0
