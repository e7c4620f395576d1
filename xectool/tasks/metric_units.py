"""The unit of a figure, from its published name."""

from __future__ import annotations

from xectool.config.tasks import TASK_UNITS

_QUANTITIES = ("bias", "rms", "res_68pct", "dist_68pct", "dist_bias", "resolution_68pct", "pred_std_mean")
_UNITS = TASK_UNITS | {
    "theta": TASK_UNITS["angle"], "phi": TASK_UNITS["angle"], "uvw": TASK_UNITS["uvwFI"],
    **{f"uvw_{axis}": TASK_UNITS["uvwFI"] for axis in "uvw"},
}  # fmt: skip
_KNOWN = {f"{name}_{quantity}": unit for name, unit in _UNITS.items() for quantity in _QUANTITIES}
_KNOWN |= {f"baseline_{task}": unit for task, unit in TASK_UNITS.items()}
# Directions are vectors without a unit, and what lies between two of them is an angle.
_KNOWN |= dict.fromkeys(("angleVec_resolution_68pct", "baseline_angleVec"), "deg")


def with_unit(metric: str) -> str:
    """Return the name of a metric with its unit in brackets; the name alone for a loss, a ratio or a number.

    >>> with_unit("energy_bias"), with_unit("baseline_uvwFI"), with_unit("val/loss")
    ('energy_bias [GeV]', 'baseline_uvwFI [cm]', 'val/loss')
    """
    unit = _KNOWN.get(metric, "1")
    return metric if unit == "1" else f"{metric} [{unit}]"
