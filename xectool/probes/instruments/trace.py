"""Watches every operation of a forward pass and says which one first made a number non-finite.

The network's modules tell where an operation belongs; what is computed outside of them belongs to the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LOSS_OWNER = "loss"
# Operations that put a chosen constant, often minus infinity, where something is to be left out: meant, not a fault.
FILLS = frozenset({"masked_fill", "where", "full", "full_like", "fill", "new_full", "constant_pad_nd", "scalar_tensor"})
FILLS_IN_PLACE = frozenset(f"{name}_" for name in FILLS)
# Operations that overwrite their first argument, whose old content is then no cause.
OVERWRITES = frozenset({"copy_", "fill_", "zero_", "bernoulli_", "uniform_", "normal_", "random_"})


@dataclass(frozen=True)
class Origin:
    """The operation that first made a number non-finite.

    Attributes:
        module: Dotted name of the module it belongs to; ``loss`` outside of the network, empty for the network itself.
        op: The operation, e.g. ``mul`` or ``cast to float16``.
        kind: ``NaN`` or ``Inf``.
        input_absmax: Largest absolute value of its finite inputs; 0 where it has none.
        dtype: Precision of its result, e.g. ``float16``.
    """

    module: str
    op: str
    kind: str
    input_absmax: float = 0.0
    dtype: str = ""


@dataclass
class _Taint:
    """Where the NaN and the infinities of a tensor come from."""

    nan: Origin | None = None
    inf: Origin | None = None

    @property
    def first(self) -> Origin | None:
        """The overflow behind a NaN such as ``inf - inf``, unless the infinity was put there on purpose."""
        meant = self.inf is not None and self.inf.op in FILLS | FILLS_IN_PLACE
        if self.nan is None:
            return self.inf
        return self.nan if self.inf is None or meant else self.inf


class ModuleStack:
    """Knows which module of a network is running.

    Attributes:
        current: Names from the outermost module to the one that runs; ``loss`` outside of the network.
    """

    def __init__(self) -> None:
        self.current = [LOSS_OWNER]

    @property
    def top(self) -> str:
        """Name of the innermost module that runs."""
        return self.current[-1]

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Follow a network while the block runs."""
        handles = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(self._enter(name)))
            handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Any:
        def enter(module: nn.Module, inputs: Any) -> None:
            self.entering(inputs)
            self.current.append(name)

        return enter

    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if outputs is not None:
            self.leaving(outputs)
        self.current.pop()

    def entering(self, inputs: Any) -> None:
        """Look at the inputs of a module about to run; the caller's name is still on top."""

    def leaving(self, outputs: Any) -> None:
        """Look at the outputs of the module on top, which has just run."""


class OpTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the class untyped
    """Looks at the result of every operation inside its block.

    Tensors are kept until the trace is dropped, so that their identity stays theirs; give it few events.

    Args:
        stack: Tells which module runs.
    """

    def __init__(self, stack: ModuleStack) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack = stack
        self._taints: dict[int, _Taint] = {}
        self._kept: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        op = str(func.overloadpacket.__name__)
        if "empty" in op:  # holds what was in memory before; something is written there before it is read
            return func(*args, **kwargs)
        given = _floats((args[1:] if op in OVERWRITES else args, kwargs))
        # In-place operations change what they were given, so it is looked at before.
        known = [self._taint(tensor, "given") for tensor in given]
        absmax = largest(given) if not any(known) else 0.0
        result = func(*args, **kwargs)
        made = _floats(result)
        for tensor in made:
            self._look(tensor, op, known, absmax)
        return result

    def origin(self, tensors: Any) -> Origin | None:
        """Return where the first non-finite of some tensors comes from; None where all are finite."""
        for tensor in _floats(tensors):
            taint = self._taint(tensor, "given")
            if taint is not None:
                return taint.first
        return None

    def _taint(self, tensor: Tensor, op: str) -> _Taint | None:
        found = self._taints.get(id(tensor))
        if found is not None:
            return found
        kinds = nonfinite_kinds(tensor)
        return self._add(tensor, {kind: Origin(self.stack.top, op, kind) for kind in kinds}) if kinds else None

    def _look(self, tensor: Tensor, op: str, known: Sequence[_Taint | None], absmax: float) -> None:
        kinds = nonfinite_kinds(tensor)
        self._taints.pop(id(tensor), None)
        if not kinds:
            return
        shown = f"cast to {_name(tensor.dtype)}" if op == "_to_copy" else op
        here = {k: Origin(self.stack.top, shown, k, absmax, _name(tensor.dtype)) for k in kinds}
        earlier = [taint for taint in known if taint is not None]
        nan = next((taint.nan for taint in earlier if taint.nan), None)
        inf = next((taint.inf for taint in earlier if taint.inf), None)
        taint = self._add(tensor, {"NaN": nan or here.get("NaN"), "Inf": inf or here.get("Inf")})
        if "NaN" not in kinds:
            taint.nan = None

    def _add(self, tensor: Tensor, origins: dict[str, Origin | None]) -> _Taint:
        self._kept.append(tensor)
        taint = _Taint(origins.get("NaN"), origins.get("Inf"))
        self._taints[id(tensor)] = taint
        return taint


def _floats(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor) and value.is_floating_point()]


def nonfinite_kinds(tensor: Tensor) -> list[str]:
    """Return which of ``NaN`` and ``Inf`` a tensor holds."""
    plain = tensor.detach()
    if plain.numel() == 0 or bool(torch.isfinite(plain).all()):
        return []
    return [kind for kind, test in (("NaN", torch.isnan), ("Inf", torch.isinf)) if bool(test(plain).any())]


def largest(tensors: Sequence[Tensor]) -> float:
    """Return the largest absolute value in some tensors, 0 where they are empty."""
    return max((float(tensor.detach().abs().max()) for tensor in tensors if tensor.numel()), default=0.0)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
