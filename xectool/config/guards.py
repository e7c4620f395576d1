"""What happens when a loss or a gradient is not finite."""

from __future__ import annotations

from typing import Literal

from xectool.config.section import Float, Int, Section, knob


class GuardsConfig(Section):
    """Non-finite values never reach the weights; this decides when to give up."""

    on_nonfinite: Literal["skip", "stop"] = knob(
        "skip", "Skip the batch and record it, or stop at the first", code="CFG-05"
    )
    max_consecutive_bad: Int = knob(5, "Bad batches in a row that stop the run", "batches", ge=1, le=1_000_000)
    max_bad_fraction: Float = knob(0.01, "Share of bad batches in an epoch that stops the run", "1", ge=0, le=1)
