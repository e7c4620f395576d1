"""Makes the outputs of an operation without data again from what the same operation made before.

A step repeats its operations with the same shapes, and PyTorch's own memory of them asks so much about each that it
takes twice as long as this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

_FRESH: Final = -1
_Form = tuple[tuple[int, ...], tuple[int, ...], int]
_PLAIN: Final = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Unfit(Exception):
    """What was given or made is not described by shapes alone."""


class _Output(NamedTuple):
    """One tensor that an operation made.

    Attributes:
        source: Number of the given tensor whose storage it has, `_FRESH` where it has its own.
        same: Whether it is that tensor itself.
        form: Shape, strides and offset.
        dtype: Type.
        device: Device that it pretends to be on.
    """

    source: int
    same: bool
    form: _Form
    dtype: torch.dtype
    device: torch.device


class _Made(NamedTuple):
    """What an operation returns: ``kind`` is the sequence that holds the outputs, None for one alone."""

    kind: type | None
    outputs: tuple[_Output | None, ...]


_MADE: Final[dict[Any, _Made | None]] = {}
"""By the operation and all that it was given; None where it must be run each time."""


def run(mode: FakeTensorMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation in a mode without data, or return tensors as it made them before."""
    tensors: list[FakeTensor] = []
    try:
        key = (func, _key(args, tensors), _key(tuple(kwargs.items()), tensors))
    except _Unfit:
        return func(*args, **kwargs)
    if key not in _MADE:
        out = func(*args, **kwargs)
        _MADE[key] = _described(mode, out, tensors)
        return out
    made = _MADE[key]
    if made is None:
        return func(*args, **kwargs)
    found = [None if output is None else _again(mode, output, tensors) for output in made.outputs]
    return found[0] if made.kind is None else made.kind(found)


def _key(value: Any, tensors: list[FakeTensor]) -> Any:
    """Return what decides shapes, and gather the tensors.

    Raises:
        _Unfit: Something else decides.
    """
    if type(value) is FakeTensor:
        if value.constant is not None or value.layout is not torch.strided:
            raise _Unfit
        tensors.append(value)
        return (value.dtype, value.shape, value.stride(), value.storage_offset(), value.fake_device)
    if isinstance(value, list | tuple):
        return tuple(_key(item, tensors) for item in value)
    if not isinstance(value, _PLAIN):
        raise _Unfit
    return (type(value), value)


def _described(mode: FakeTensorMode, out: Any, given: Sequence[FakeTensor]) -> _Made | None:
    kind = type(out) if type(out) in (tuple, list) else None
    try:
        return _Made(kind, tuple(_output(mode, value, given) for value in (out if kind else (out,))))
    except _Unfit:
        return None


def _output(mode: FakeTensorMode, value: Any, given: Sequence[FakeTensor]) -> _Output | None:
    if value is None:
        return None
    if type(value) is not FakeTensor or value.constant is not None or value.layout is not torch.strided:
        raise _Unfit
    storage = value.untyped_storage()
    owners = (number for number, tensor in enumerate(given) if tensor.untyped_storage()._cdata == storage._cdata)
    same = next((number for number, tensor in enumerate(given) if tensor is value), None)
    source = next(owners, _FRESH) if same is None else same
    form = (tuple(value.shape), tuple(value.stride()), int(value.storage_offset()))
    if source == _FRESH and storage.nbytes() != _strided(mode, form, value.dtype).untyped_storage().nbytes():
        raise _Unfit
    if source != _FRESH and value.dtype != given[source].dtype:
        raise _Unfit
    return _Output(source, same is not None, form, value.dtype, value.fake_device)


def _strided(mode: FakeTensorMode, form: _Form, dtype: torch.dtype) -> Tensor:
    with in_kernel_invocation_manager(mode):
        return torch.empty_strided(form[0], form[1], dtype=dtype, device="meta")


def _again(mode: FakeTensorMode, output: _Output, given: Sequence[FakeTensor]) -> FakeTensor:
    if output.same:
        return given[output.source]
    if output.source == _FRESH:
        return FakeTensor(mode, _strided(mode, output.form, output.dtype), output.device)
    with in_kernel_invocation_manager(mode):
        view = torch.as_strided(given[output.source], *output.form)
    return FakeTensor(mode, view, output.device)
