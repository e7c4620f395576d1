"""How many elements of a boolean tensor are true, where nobody knows which.

Some operations give as many rows as a mask has true elements. A tensor without data has no such number, but its share
follows from what is known: the mask ratio, the share of readings that are valid, and the logic between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Share = npt.NDArray[np.float64]
_SAME: Final = ("clone", "_to_copy", "detach", "alias", "contiguous", "lift_fresh", "expand", "to", "copy_")


class TrueShares:
    """Shares of true elements of boolean tensors, each of a shape that broadcasts to the tensor's.

    What is not known counts as true: readings are there and positive. Comparisons with zero or less from below count
    as false for the same reason.

    Args:
        tables: Real values of index tables by the storage of the tensor that stands for them.
    """

    def __init__(self, tables: dict[int, npt.NDArray[Any]]) -> None:
        self._tables = tables
        self._known: Any = WeakTensorKeyDictionary()

    def set(self, tensor: Tensor, share: Share) -> None:
        """Remember a share; its shape must broadcast to that of the tensor."""
        self._known[tensor] = share.reshape((1,) * (tensor.ndim - share.ndim) + share.shape)

    def of(self, tensor: Tensor) -> Share:
        """Return the share of a tensor."""
        found: Share | None = self._known.get(tensor)
        if found is not None:
            return found
        table = self.table(tensor) if tensor.dtype is torch.bool else None
        return np.ones((1,) * tensor.ndim) if table is None else table.astype(np.float64)

    def count(self, tensor: Tensor) -> int:
        """Return how many elements are true, rounded."""
        return round(float(self.of(tensor).mean()) * tensor.numel())

    def table(self, tensor: Tensor) -> npt.NDArray[Any] | None:
        """Return the real values of a small table, None where the tensor is none or only a part of one."""
        values = self._tables.get(tensor.untyped_storage()._cdata)
        return None if values is None or values.size != tensor.numel() else values.reshape(tuple(tensor.shape))

    def follow(self, name: str, args: Sequence[Any], out: Any) -> None:
        """Work out the share of a boolean result.

        Args:
            name: Of the operation, without namespace and overload.
            args: What it was called with.
            out: What it returned.
        """
        if not isinstance(out, Tensor) or out.dtype is not torch.bool:
            return
        rule = _RULES.get(name)
        share = rule(self, args, out) if rule else None
        if share is not None and _fits(share, out):
            self._known[out] = share


def _fits(share: Share, out: Tensor) -> bool:
    return share.ndim == out.ndim and all(n in (1, size) for n, size in zip(share.shape, out.shape, strict=True))


def _given(shares: TrueShares, value: Any, ndim: int) -> Share:
    if not isinstance(value, Tensor):
        return np.full((1,) * ndim, float(bool(value)))
    share = shares.of(value)
    return share.reshape((1,) * (ndim - share.ndim) + share.shape)


def _and(shares: TrueShares, args: Sequence[Any], out: Tensor) -> Share:
    return _given(shares, args[0], out.ndim) * _given(shares, args[1], out.ndim)


def _or(shares: TrueShares, args: Sequence[Any], out: Tensor) -> Share:
    first, second = (_given(shares, value, out.ndim) for value in args[:2])
    return first + second - first * second


def _not(shares: TrueShares, args: Sequence[Any], out: Tensor) -> Share:
    return 1.0 - shares.of(args[0])


def _same(shares: TrueShares, args: Sequence[Any], out: Tensor) -> Share:
    return _given(shares, args[0], out.ndim)


def _below(shares: TrueShares, args: Sequence[Any], out: Tensor) -> Share:
    nothing = isinstance(args[1], int | float) and args[1] <= 0
    return np.full((1,) * out.ndim, 0.0 if nothing else 1.0)


def _select(shares: TrueShares, args: Sequence[Any], out: Tensor) -> Share:
    share, dim = shares.of(args[0]), int(args[1])
    taken: Share = np.take(share, int(args[2]) if share.shape[dim] > 1 else 0, axis=dim)
    return taken


def _unsqueeze(shares: TrueShares, args: Sequence[Any], out: Tensor) -> Share:
    dim = int(args[1])
    return np.expand_dims(shares.of(args[0]), dim if dim >= 0 else out.ndim + dim)


def _reshape(shares: TrueShares, args: Sequence[Any], out: Tensor) -> Share:
    share, given = shares.of(args[0]), tuple(args[0].shape)
    if share.size == 1 or given[0] != out.shape[0] or share.shape[0] != 1:
        return np.full((1,) * out.ndim, float(share.mean()))
    whole = np.broadcast_to(share, (1, *given[1:]))
    return whole.reshape((1, *out.shape[1:]))


def _index(shares: TrueShares, args: Sequence[Any], out: Tensor) -> Share:
    share, indices = shares.of(args[0]), list(args[1])
    places = [dim for dim, index in enumerate(indices) if index is not None]
    table = shares.table(indices[places[0]]) if len(places) == 1 else None
    if table is None or share.shape[places[0]] == 1 or table.dtype == np.bool_:
        return np.full((1,) * out.ndim, float(share.mean()))
    return np.take(share, table, axis=places[0])


def _all(shares: TrueShares, args: Sequence[Any], out: Tensor) -> Share:
    return _reduced(shares, args, out, lambda share, dim: np.prod(share, axis=dim))


def _any(shares: TrueShares, args: Sequence[Any], out: Tensor) -> Share:
    return _reduced(shares, args, out, lambda share, dim: 1.0 - np.prod(1.0 - share, axis=dim))


def _reduced(shares: TrueShares, args: Sequence[Any], out: Tensor, rule: Callable[[Share, int], Share]) -> Share:
    if len(args) < 2 or not isinstance(args[1], int):
        return np.ones((1,) * out.ndim)
    share, dim = shares.of(args[0]), args[1]
    found = rule(share, dim)
    return np.expand_dims(found, dim) if found.ndim < out.ndim else found


_RULES: Final[dict[str, Callable[[TrueShares, Sequence[Any], Tensor], Share]]] = {
    **dict.fromkeys(("bitwise_and", "logical_and", "__and__"), _and),
    **dict.fromkeys(("bitwise_or", "logical_or", "__or__"), _or),
    **dict.fromkeys(("bitwise_not", "logical_not"), _not),
    **dict.fromkeys(("lt", "le"), _below),
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "flatten"), _reshape),
    "select": _select,
    "unsqueeze": _unsqueeze,
    "index": _index,
    "all": _all,
    "any": _any,
}
