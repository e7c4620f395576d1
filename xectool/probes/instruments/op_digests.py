"""A digest of the result of every operation of a step, so that two runs can be compared bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from xectool.probes.instruments.trace import ModuleStack

DIGEST_BYTES = 8
MIX = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, so that places count in the sum of a device digest


class Entry(NamedTuple):
    """The result of one operation.

    Attributes:
        stage: ``data``, ``forward``, ``backward`` or ``optimizer``.
        module: Dotted name of the module; ``loss`` outside of the network, empty for the network itself.
        op: The operation, or what was looked at.
        digest: Of its bits.
        value: Sum of its numbers as text, to show how far two runs are apart.
    """

    stage: str
    module: str
    op: str
    digest: str
    value: str


class OpDigests(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the class untyped
    """Records every operation inside its block.

    Attributes:
        stage: Where the step stands; set from outside.
        entries: What was seen so far, in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack = _Followed()
        self.stage = "forward"
        self.entries: list[Entry] = []

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Tell operations by the modules of a network while the block runs."""
        with self.stack.following(model), self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        op = str(func.overloadpacket.__name__)
        # Views hold no new numbers, and what is merely allocated holds what was in memory before.
        if not func.is_view and "empty" not in op and op not in ("detach", "alias"):
            module = self.stack.backward_of if self.stage == "backward" else self.stack.top
            self.note(module, op, tree_leaves(result))
        return result

    def note(self, module: str, op: str, values: Sequence[Any]) -> None:
        """Record the tensors among some values."""
        for value in values:
            if isinstance(value, Tensor):
                self.entries.append(Entry(self.stage, module, op, digest(value), total(value)))


class _Followed(ModuleStack):
    """Knows the module of a forward operation, and by the gradients of its output that of a backward one."""

    def __init__(self) -> None:
        super().__init__()
        self.backward_of = "loss"

    def leaving(self, outputs: Any) -> None:
        """Learn when the backward pass comes to the module on top."""
        name = self.top
        for value in tree_leaves(outputs):
            if isinstance(value, Tensor) and value.requires_grad:
                value.register_hook(lambda _, name=name: self._begins(name))  # type: ignore[no-untyped-call]

    def _begins(self, name: str) -> None:
        self.backward_of = name


def digest(tensor: Tensor) -> str:
    """Return a digest of the bits of a tensor; on a GPU it is added up there, in integers, which no order changes."""
    plain = tensor.detach().contiguous()
    if plain.device.type == "cpu":
        data = plain.reshape(-1).view(torch.uint8).numpy()
        return hashlib.blake2b(data.data, digest_size=DIGEST_BYTES).hexdigest()
    bits = plain.reshape(-1).view(torch.uint8).to(torch.int64)
    places = torch.arange(1, len(bits) + 1, device=bits.device) * MIX
    return f"{int((bits * (places ^ (places >> 29))).sum()) & (2**64 - 1):016x}"


def total(tensor: Tensor) -> str:
    """Return the sum of the numbers of a tensor, where it has such."""
    if not tensor.numel() or tensor.is_complex():
        return ""
    return f"{float(tensor.detach().double().sum()):.9g}"
