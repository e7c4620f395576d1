"""When and on how much data the weights are validated."""

from __future__ import annotations

from xectool.config.section import Bool, Int, Section, knob


class ValidationConfig(Section):
    """Validation passes."""

    interval: Int = knob(1, "Epochs between validations", "epochs", "CFG-24", ge=1, le=1_000_000)
    max_events: Int | None = knob(None, "Validate on the first events only; null: all", "events", gt=0, le=10**12)
    batch_size: Int | None = knob(None, "Events in one batch; null: data.batch_size", "events", gt=0, le=1_000_000)
    use_ema: Bool = knob(True, "Validate the averaged weights where there are any")
