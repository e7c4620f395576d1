"""What keeps a fault in one batch from reaching the weights, and stops a run that is beyond help."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xectool.config.guards import GuardsConfig
from xectool.errors import RunDiverged, counted

WINDOW_STEPS = 1000  # steps over which guards.max_bad_fraction is taken
MAX_NAMED = 3  # parameters named in a message


@dataclass(frozen=True)
class Refusal:
    """G02 and G03: which steps are not taken.

    Attributes:
        loss: Whether a loss that is not finite forbids the update.
        gradient: Whether a gradient that is not finite does.
    """

    loss: bool = True
    gradient: bool = True

    @classmethod
    def of(cls, config: GuardsConfig) -> Refusal:
        """Return what the settings ask for."""
        return cls(config.active("G02"), config.active("G03"))

    def allows(self, finite_loss: bool, grad_norm: float) -> bool:
        """Return whether the update may be made."""
        return (finite_loss or not self.loss) and (math.isfinite(grad_norm) or not self.gradient)


class NonFiniteGuard:
    """Count skipped steps and stop the run when there are too many.

    Args:
        config: The guards section: what to do, and how much to tolerate.
        gentler: Options of a command with a lower rate, for a run that sound events end.
    """

    def __init__(self, config: GuardsConfig, gentler: str) -> None:
        self.config = config
        self._gentler = gentler
        self.total_bad = 0
        self._consecutive = 0
        self._recent: deque[bool] = deque(maxlen=WINDOW_STEPS)

    def observe(self, finite: bool, description: str = "") -> None:
        """Take note of one step.

        Raises:
            RunDiverged: The step is non-finite and the configured tolerance is used up.
        """
        self._recent.append(not finite)
        if finite:
            self._consecutive = 0
            return
        self.total_bad += 1
        self._consecutive += 1
        if self.config.on_nonfinite == "stop":
            raise self._stop(description, "guards.on_nonfinite: stop")
        if self._consecutive > self.config.max_consecutive_bad:
            raise self._stop(description, f"{counted(self._consecutive, 'step')} in a row were non-finite")
        allowed = self.config.max_bad_fraction * WINDOW_STEPS
        if sum(self._recent) > max(allowed, self.config.max_consecutive_bad):
            raise self._stop(description, f"{sum(self._recent)} of the last {len(self._recent)} steps were non-finite")

    def state_dict(self) -> dict[str, object]:
        """Return what a resume needs."""
        return {"total_bad": self.total_bad, "consecutive": self._consecutive, "recent": list(self._recent)}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from a saved state."""
        self.total_bad = int(str(state["total_bad"]))
        self._consecutive = int(str(state["consecutive"]))
        recent = state["recent"]
        assert isinstance(recent, list)
        self._recent = deque((bool(bad) for bad in recent), maxlen=WINDOW_STEPS)

    def _stop(self, description: str, reason: str) -> RunDiverged:
        return RunDiverged(
            f"training stopped: {reason}; last: {description}",
            where="no such step changed the weights; checkpoint_last.pt holds the last finite weights",
            fix=f"{self._gentler}   # where the named events are sound",
            code="XT-NAN",
        )


def nonfinite_gradients(model: nn.Module) -> str:
    """Name the parameters whose gradients are not finite, e.g. ``heads.energy.6.weight (3 NaN, 0 Inf)``."""
    named: list[str] = []
    for name, parameter in model.named_parameters():
        if parameter.grad is None or bool(torch.isfinite(parameter.grad).all()):
            continue
        num_nan = int(torch.isnan(parameter.grad).sum())
        num_inf = int(torch.isinf(parameter.grad).sum())
        named.append(f"{name} ({num_nan} NaN, {num_inf} Inf)")
    shown = ", ".join(named[:MAX_NAMED])
    return f"{shown} and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else shown


def weights_are_finite(model: nn.Module) -> bool:
    """Return whether every parameter is finite, by one pass that ends in one number.

    A norm beyond the range of float32 counts as not finite too: nothing can be computed with such weights.
    """
    return norm_is_finite([parameter.detach() for parameter in model.parameters()])


def norm_is_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether the norm of all tensors together is finite: then so is every number, at a tenth of the cost."""
    return bool(torch.isfinite(nn.utils.get_total_norm(tensors)))


def nonfinite_weights(model: nn.Module) -> list[str]:
    """Return the names of parameters and buffers that hold NaN or infinity."""
    floats = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    if norm_is_finite(list(floats.values())):
        return []
    return [name for name, tensor in floats.items() if not bool(torch.isfinite(tensor).all())]
