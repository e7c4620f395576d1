"""The sentence below the table of ``predict --compare``: the reader had to weigh thirty differences alone."""

from __future__ import annotations

import math

from xectool.engine.comparison import CompareResult
from xectool.tasks.paired import PairedMetric


def row(task: str, metric: str, events: int = 10, **others: tuple[float, float]) -> PairedMetric:
    differences = {name: difference for name, (difference, _) in others.items()}
    errors = {name: error for name, (_, error) in others.items()}
    return PairedMetric(task, metric, {"raw": 1.0}, differences, errors, events=events)


def test_each_variant_is_told_as_better_worse_or_neither_in_the_headline_metrics() -> None:
    rows = (
        row("energy", "energy_res_68pct", neighbour=(-0.2, 0.05), inpainted=(-0.1, 0.05)),
        row("energy", "energy_bias", neighbour=(9.0, 0.1), inpainted=(9.0, 0.1)),
        row("uvwFI", "uvw_dist_68pct", neighbour=(0.2, 0.05), inpainted=(0.0, 0.0)),
        row("timing", "timing_res_68pct", neighbour=(0.0, math.nan), inpainted=(0.2, 0.01)),
    )
    result = CompareResult(8, ("raw", "neighbour", "inpainted"), "data", 10.0, 1, rows)
    assert result.verdict() == [
        "neighbour against raw: better in energy_res_68pct [GeV]; worse in uvw_dist_68pct [cm]; "
        "too few events to tell in timing_res_68pct [s]",
        "inpainted against raw: worse in timing_res_68pct [s]; "
        "no difference beyond 3 errors in energy_res_68pct [GeV], uvw_dist_68pct [cm]",
    ]


def test_of_few_events_nothing_is_told_as_better() -> None:
    """Of two alike the percentile of every sample is nearly the same, so its error is next to nothing."""
    for events, word in ((9, "too few events to tell in"), (10, "better in")):
        found = row("energy", "energy_res_68pct", events, neighbour=(-0.2, 0.05))
        (told,) = CompareResult(events, ("raw", "neighbour"), "data", 10.0, 1, (found,)).verdict()
        assert told == f"neighbour against raw: {word} energy_res_68pct [GeV]"
