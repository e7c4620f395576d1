"""The sentence below the table of ``predict --compare``: the reader had to weigh thirty differences alone."""

from __future__ import annotations

import math

from xectool.engine.comparison import CompareResult
from xectool.tasks.paired import PairedMetric


def row(task: str, metric: str, **others: tuple[float, float]) -> PairedMetric:
    differences = {name: difference for name, (difference, _) in others.items()}
    errors = {name: error for name, (_, error) in others.items()}
    return PairedMetric(task, metric, {"raw": 1.0}, differences, errors)


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
