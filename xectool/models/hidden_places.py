"""Numbers for hidden positions only, put back where they belong.

Axes: B events, P positions, C numbers of a position, M hidden positions of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Places = tuple[Tensor, Tensor]
"""Event and position, each (M,), int64."""


def at_hidden(hidden: Tensor, values_of: Callable[[Places], Tensor]) -> Tensor:
    """Return numbers (B, P, C) at hidden positions, 0 elsewhere.

    An exported or compiled graph computes the first position of every event as well and drops it again. At an Einsum of
    empty tensors, which a batch with nothing hidden has, ONNX Runtime 1.31 divides by zero and takes its process with
    it, and so does the launcher of a kernel that PyTorch 2.11 compiled for a GPU.

    Args:
        hidden: bool (B, P).
        values_of: Gives the numbers (M, C) of places.
    """
    tracing = torch.compiler.is_compiling()
    asked = hidden | (torch.arange(hidden.shape[1], device=hidden.device) == 0) if tracing else hidden
    event, position = asked.nonzero(as_tuple=True)
    values = values_of((event, position))
    nothing = values.new_zeros(*hidden.shape, values.shape[-1])
    filled = nothing.index_put((event, position), values)
    return torch.where(hidden.unsqueeze(-1), filled, 0.0) if tracing else filled
