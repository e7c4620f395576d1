"""Why a validation is not finite: the weights it looks at, a module of the network, or else its data."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor, nn

from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.training.stepping.parts import RunParts
from xectool.training.symptoms.nonfinite import nonfinite_weights
from xectool.training.triage.modules import ModuleFault, first_nonfinite_module

MOST_NAMED: Final = 5
SOUND_INPUT: Final = 1e6  # what a module is given; beyond it events are as likely to be at fault as the module


def finiteness(parts: RunParts, model: nn.Module, loss: float) -> dict[str, Any]:
    """Return whether a validation was ``finite``, and where not what of the network is at fault, if anything.

    That are ``weights`` that are not finite, else the ``module`` that sound events do not come out of finite.

    Args:
        parts: Parts of the run; nothing of them is changed.
        model: Network that was validated.
        loss: What came out.
    """
    return {"finite": True} if math.isfinite(loss) else {"finite": False, **_at_fault(parts, model)}


def _at_fault(parts: RunParts, model: nn.Module) -> dict[str, Any]:
    weights = nonfinite_weights(model)[:MOST_NAMED]
    if weights:
        return {"weights": weights}
    fault = _fault_of_sound_events(parts, model)
    if fault is None or fault.phase != "forward":
        return {}
    if fault.name and not fault.input_absmax <= SOUND_INPUT:  # the network itself is given marks of unknown readings
        return {}
    return {"module": fault.name or fault.kind, "module_class": fault.kind}


def _fault_of_sound_events(parts: RunParts, model: nn.Module) -> ModuleFault | None:
    """Return what the first validated events without a single NaN, Inf or absurd number as a reading come to."""
    batch = next((batch for batch in parts.val_loader.epoch(0) if batch.num_events), None)
    if batch is None:
        return None
    rows = (_are_sound(batch.npho) & _are_sound(batch.time)).nonzero()[:, 0].numpy(force=True)
    if not len(rows):
        return None
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            sound = batch.take(rows)
            return first_nonfinite_module(model, parts.task, sound, parts.execution, gradient=False)
    finally:
        model.train(was_training)


def _are_sound(readings: Tensor) -> Tensor:
    """Return which events have finite readings that are no absurd numbers, bool (B,); 1e10 marks an unknown one."""
    sizes = readings.abs()
    known = torch.where(sizes < UNKNOWN_ABOVE, sizes, 0.0)
    return torch.isfinite(readings).all(dim=1) & (known.amax(dim=1) <= SOUND_INPUT)
