"""Event weights that flatten the distribution of a target."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from xectool.config.section import Bool, Int, Section, describe, knob, refuse, section


def _read_bins(value: object) -> object:
    if (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(type(item) is int and 0 < item <= 10_000 for item in value)
    ):
        return tuple(value)
    raise refuse(f"expected two integers from 1 to 10000 such as [20, 20], got {describe(value)}")


Bins2d = Annotated[tuple[int, int], BeforeValidator(_read_bins)]


class TaskReweightingConfig(Section):
    """Bins of one target."""

    enabled: Bool = knob(False, "Whether events are weighted by this target")
    nbins: Int = knob(30, "Bins of a one-dimensional target", "bins", gt=0, le=10_000)
    nbins_2d: Bins2d = knob((20, 20), "Bins of angle (theta, phi); the first also for u, v, w", "bins", "CFG-03")


class ReweightingConfig(Section):
    """Weights multiply over the enabled targets."""

    angle: TaskReweightingConfig = section(TaskReweightingConfig, "Weights by (theta, phi)")
    energy: TaskReweightingConfig = section(TaskReweightingConfig, "Weights by energy")
    timing: TaskReweightingConfig = section(TaskReweightingConfig, "Weights by time")
    uvwFI: TaskReweightingConfig = section(TaskReweightingConfig, "Weights by (u, v, w)")  # noqa: N815

    def enabled(self) -> dict[str, TaskReweightingConfig]:
        """Return the targets that weigh events, in canonical order."""
        names = ("angle", "energy", "timing", "uvwFI")
        targets: dict[str, TaskReweightingConfig] = {name: getattr(self, name) for name in names}
        return {name: target for name, target in targets.items() if target.enabled}
