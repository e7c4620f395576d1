"""What the regressor learns: one sub-section a task."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator

from xectool.config.section import Bool, Float, Section, knob, read_float, refuse, section
from xectool.errors import counted

TASK_WIDTHS: dict[str, int] = {"angle": 2, "energy": 1, "timing": 1, "uvwFI": 3, "angleVec": 3, "n_gamma": 5}
TASK_NAMES: tuple[str, ...] = tuple(TASK_WIDTHS)
TASK_UNITS: dict[str, str] = {
    "angle": "deg", "energy": "GeV", "timing": "s", "uvwFI": "cm", "angleVec": "1", "n_gamma": "1",
}  # fmt: skip
SIGNED_TASKS = ("angle", "uvwFI", "angleVec")  # their targets have both signs, and no logarithm
TRUTH_BRANCHES = MappingProxyType(
    {
        "angle": "emiAng",
        "energy": "energyTruth",
        "timing": "timeTruth",
        "uvwFI": "uvwTruth",
        "angleVec": "emiVec",
        "n_gamma": "nGammaTruth",
    }
)
HEADLINE_METRICS: Final = {
    "angle": "angle_resolution_68pct",
    "energy": "energy_res_68pct",
    "timing": "timing_res_68pct",
    "uvwFI": "uvw_dist_68pct",
    "angleVec": "angleVec_resolution_68pct",
    "n_gamma": "n_gamma_res_68pct",
}
"""The one metric that says how good a task is; conventional estimators are compared on it."""
RegressionLoss = Literal[
    "smooth_l1", "huber", "l1", "mse", "l2",
    "relative_l1", "relative_smooth_l1", "relative_mse", "relative_l2",
    "gaussian_nll", "cosine",
]  # fmt: skip


def _read_scale(value: object) -> object:
    if value is None or value == "auto":
        return value
    scale = read_float(value)
    if not scale > 0:
        raise refuse(f"scale must be > 0, got {scale:g}; write auto, null or a typical spread of the target")
    return scale


def _read_shift(value: object) -> object:
    if value is None or value == "auto":
        return value
    if isinstance(value, list | tuple):
        return tuple(read_float(item) for item in value)
    return read_float(value)


Scale = Annotated[float | Literal["auto"] | None, BeforeValidator(_read_scale)]
Shift = Annotated[float | tuple[float, ...] | Literal["auto"] | None, BeforeValidator(_read_shift)]


class TaskConfig(Section):
    """One target: whether it is learnt, with which loss, in which internal unit."""

    enabled: Bool = knob(False, "Whether this target is learnt")
    loss_fn: RegressionLoss = knob(
        "smooth_l1",
        "Loss per component; gaussian_nll also predicts a width; cosine for angle and angleVec only",
        code="CFG-05",
    )
    loss_beta: Float = knob(
        1.0, "Edge of the quadratic region (smooth_l1) or exponent (gaussian_nll)", "scaled target", "CFG-07", ge=0
    )
    weight: Float = knob(1.0, "Weight of this task in the summed loss", "1", ge=0)
    log_transform: Bool = knob(False, "Learn the logarithm of the target (positive targets only)")
    scale: Scale = knob(None, "Spread that becomes 1 inside the network; auto takes it from the data", "target")
    shift: Shift = knob(None, "Value that becomes 0 inside the network; auto takes it from the data", "target")


def _task(name: str) -> Any:
    return section(TaskConfig, f"Task {name}: {counted(TASK_WIDTHS[name], 'number')}, unit {TASK_UNITS[name]}")


class TasksConfig(Section):
    """All targets the regressor knows, in canonical order."""

    angle: TaskConfig = _task("angle")
    energy: TaskConfig = _task("energy")
    timing: TaskConfig = _task("timing")
    uvwFI: TaskConfig = _task("uvwFI")  # noqa: N815 - the branch's own spelling
    angleVec: TaskConfig = _task("angleVec")  # noqa: N815 - the branch's own spelling
    n_gamma: TaskConfig = _task("n_gamma")

    def enabled(self) -> dict[str, TaskConfig]:
        """Return the tasks that are learnt, in canonical order."""
        tasks: dict[str, TaskConfig] = {name: getattr(self, name) for name in TASK_NAMES}
        return {name: task for name, task in tasks.items() if task.enabled}
