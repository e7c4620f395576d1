"""Events in parts that are worked on in turn, so that what is made of each stays in the processor's cache.

Call :func:`of` through the module: the estimate of memory, whose tensors hold nothing, replaces it.
"""

from __future__ import annotations

from torch import Tensor

WHOLE = [slice(None)]
"""All events at once."""


def of(values: Tensor, most_bytes: int) -> list[slice]:
    """Return the parts of the first axis of ``values``, of at most ``most_bytes`` or one event; a GPU takes the whole.

    Parts are powers of two of events, so that their positions can be cut into equal images (`xectool.models.products`).

    Args:
        values: Any shape (B, ...).
        most_bytes: Of one part.
    """
    if values.device.type != "cpu":
        return WHOLE
    count = values.shape[0]
    fitting = max(1, most_bytes * count // max(1, values.numel() * values.element_size()))
    events = 1 << (fitting.bit_length() - 1)
    return [slice(first, first + events) for first in range(0, count, events)]
