"""Float32 in place of every float16 that a program itself asks for, beside those of automatic precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class WidenedHalves(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the class untyped
    """Computes in float32 what is turned into float16 or made in it while it is entered.

    Attributes:
        count: How many operations asked for float16.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operation with the wider type."""
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float16:
            kwargs["dtype"] = torch.float32
            self.count += 1
        return func(*args, **kwargs)
