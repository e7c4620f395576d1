"""Follows every tensor of a step that has no data: when it comes, when it goes, and whose it is."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from xectool.training.memory_estimate import kernels, outputs
from xectool.training.memory_estimate.recording import ALIVE, CATEGORIES, SAVED, Recording
from xectool.training.memory_estimate.shares import TrueShares

_ATEN: Final = torch.ops.aten


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Notes every allocation and free, and answers what a tensor without data cannot.

    Reads of single numbers give 1 or true: the step is finite, nothing is skipped. Operations whose result
    has as many rows as a mask has true elements take that number from the shares.

    Args:
        shares: Of boolean tensors.
        whole_number: What a read of an integer gives.
        on_gpu: Whether the step is one of a GPU, whose convolutions reorder nothing.
    """

    def __init__(self, shares: TrueShares, whole_number: int = 1, on_gpu: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.mode.cache_enabled = False  # `outputs` remembers more, and sooner
        self.shares = shares
        self.whole_number = whole_number
        self.on_gpu = on_gpu
        self.clock = 0
        self.phases: list[tuple[str, int]] = []
        self.modules: dict[str, int] = {"": 0}
        self._rows: list[list[int]] = []
        self._staged: list[tuple[int, int]] = []
        self._held: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._owners: list[int] = [0]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: leave out what would keep a compiler away from each operation."""
        return False

    def enter(self, phase: str) -> None:
        """Begin a phase; the step's own names are given to it as they come."""
        if phase == "backward" and self.phases and self.phases[-1][0] == "forward":
            self.phases.append((SAVED, self.clock))
        self.phases.append((phase, self.clock))

    def label(self, category: str, tensors: Sequence[Tensor]) -> None:
        """Say what tensors that are alive are for; a label given before stays."""
        number = CATEGORIES.index(category)
        for tensor in tensors:
            held = self._held.get(tensor.untyped_storage()._cdata)
            if held is not None and self._rows[held[1]][3] == CATEGORIES.index("other"):
                self._rows[held[1]][3] = number

    @contextmanager
    def naming(self, network: nn.Module) -> Iterator[None]:
        """Count allocations for the module that is at work."""
        names = {id(module): name for name, module in network.named_modules()}

        def entering(module: nn.Module, given: Any) -> None:
            name = names.get(id(module))
            self._owners.append(self._owners[-1] if name is None else self.modules.setdefault(name, len(self.modules)))

        def leaving(module: nn.Module, given: Any, made: Any) -> None:
            self._owners.pop()

        with ExitStack() as stack:
            stack.enter_context(_removed(module_hooks.register_module_forward_pre_hook(entering)))
            stack.enter_context(_removed(module_hooks.register_module_forward_hook(leaving, always_call=True)))
            yield

    def recording(self, batch_size: int, notes: Sequence[str] = (), checkpoint_bytes: int = 0) -> Recording:
        """Return what was noted so far."""
        table = np.asarray(self._rows, dtype=np.int64).reshape(-1, 6)
        columns = dict(zip(("size", "born", "died", "category", "phase", "module"), table.T, strict=True))
        staged = np.asarray(self._staged, dtype=np.int64).reshape(-1, 2)
        return Recording(**columns, phases=tuple(self.phases), modules=tuple(self.modules), batch_size=batch_size,
                         notes=tuple(notes), checkpoint_bytes=checkpoint_bytes, staged=staged)  # fmt: skip

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and note what it made."""
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # asked more often than all else together
            return args[0].fake_device
        if func.namespace == "prim":  # other questions about a tensor
            return func(*args, **kwargs)
        if _is_composite(func):
            # Without gradients such an operation arrives whole; its parts are what allocates.
            with self:
                return func.decompose(*args, **kwargs)
        out = self._answer(func, args)
        copies = kernels.copies(func, args, kwargs, self.on_gpu)
        for copy in copies:
            self.note(copy)
        if out is NotImplemented:
            out = kernels.corrected(func, args, outputs.run(self.mode, func, args, kwargs), self.on_gpu)
            self.shares.follow(func._schema.name.partition("::")[2], args, out)
        for value in tree_leaves(out):
            if isinstance(value, Tensor):
                self.note(value)
        staged = kernels.staged_bytes(func, args, self.on_gpu)
        if staged:
            self._staged.append((self.clock, staged))
        return out

    def note(self, tensor: Tensor) -> None:
        """Note the memory of a tensor, unless it is known."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._held:
            return
        row = len(self._rows)
        self._rows.append([storage.nbytes(), self._tick(), ALIVE, CATEGORIES.index("other"), len(self.phases),
                           self._owners[-1]])  # fmt: skip
        self._held[key] = (weakref.ref(storage, lambda _: self._gone(key, row)), row)

    def _gone(self, key: int, row: int) -> None:
        del self._held[key]
        self._rows[row][2] = self._tick()

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def _answer(self, func: Any, args: Any) -> Any:
        if func is _ATEN._local_scalar_dense.default:
            kind = args[0].dtype
            return True if kind is torch.bool else 1.0 if kind.is_floating_point else self.whole_number
        if func is _ATEN.nonzero.default:
            return torch.empty((self.shares.count(args[0]), args[0].ndim), dtype=torch.int64)
        if func is _ATEN.masked_select.default:
            return torch.empty(self.shares.count(args[1]), dtype=args[0].dtype)
        if func is _ATEN.index.Tensor:
            return self._masked(*args)
        return NotImplemented

    def _masked(self, values: Tensor, indices: Sequence[Tensor | None]) -> Any:
        """Return the rows that one boolean mask chooses; other ways of indexing are the tensor's own."""
        masks = [index for index in indices if index is not None and index.dtype is torch.bool]
        if not masks:
            return NotImplemented
        # The kernel makes row numbers of the mask first.
        rows = torch.empty((self.shares.count(masks[0]), masks[0].ndim), dtype=torch.int64)
        self.note(rows)
        return torch.empty((rows.shape[0], *values.shape[masks[0].ndim :]), dtype=values.dtype)


@cache
def _is_composite(func: Any) -> bool:
    return bool(func.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd))


class HostReads(TorchFunctionMode):
    """Gives the host ones where it asks for the values of a tensor that has none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a read, or run the function."""
        if func in (torch.Tensor.numpy, torch.Tensor.tolist) and isinstance(args[0], FakeTensor):
            kind = torch.empty(0, dtype=args[0].dtype).dtype
            ones = np.broadcast_to(np.ones((), dtype=_NUMPY.get(kind, np.float64)), tuple(args[0].shape))
            return ones if func is torch.Tensor.numpy else ones.tolist()
        return func(*args, **(kwargs or {}))


_NUMPY: Final[dict[torch.dtype, Any]] = {
    torch.float32: np.float32, torch.int64: np.int64, torch.int32: np.int32, torch.bool: np.bool_,
}  # fmt: skip


@contextmanager
def without_data(tape: Tape) -> Iterator[None]:
    """Run what follows on tensors without data, on the tape."""
    with tape.mode, tape, HostReads():
        yield


@contextmanager
def _removed(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()
