"""``python pretend_gpu.py COMMAND``: xectool with a GPU that is none.

Tensors stay where they are and are computed by the CPU, but each has a home.

What is sent to ``cuda`` is at home there, and what comes from it too. An operation on tensors of both homes, or the
memory of one of that device as an array, fails with PyTorch's own words, so that a machine without a GPU sees what one
with a GPU would see first. Nothing is said about speed, memory or precision.
"""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("cuda", 0)
HOST = torch.device("cpu")
MEMORY_BYTES = 80_000_000_000
COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._copy_from.default, torch.ops.aten._to_copy.default}
MIXED = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (in {})"
SENT = {torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu}
ARRAYS = {torch.Tensor.numpy, torch.Tensor.__array__}

_there: dict[int, Any] = {}
_calls: list[bool] = [False]
"""Whether the calls under way are given something of the device: what PyTorch makes in them is made there."""


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # fake and sparse tensors have none
        return None


def _is_there(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        storage = _storage(tensor)
        return storage is not None and storage._cdata in _there


def _place(tensor: torch.Tensor, there: bool) -> None:
    with torch._C.DisableTorchFunction():
        storage = _storage(tensor)
        if storage is None:
            return
        key = storage._cdata
        if there:
            _there[key] = weakref.ref(storage, lambda _: _there.pop(key, None))
        else:
            _there.pop(key, None)


def _tensors(*nested: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor)]


class Operations(TorchDispatchMode):
    """Refuses operations on tensors of two homes; their results are at home where their inputs are."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = _tensors(args, kwargs)
        homes = [_is_there(tensor) for tensor in inputs]
        if func not in COPIES and any(homes):
            # numbers of the host may meet tensors of the device, and its indices too
            indices = (
                {id(leaf) for leaf in _tensors(args[1:2])} if func.overloadpacket is torch.ops.aten.index else set()
            )
            for tensor, there in zip(inputs, homes, strict=True):
                if not there and tensor.dim() > 0 and id(tensor) not in indices:
                    raise RuntimeError(MIXED.format(func))
        result = func(*args, **(kwargs or {}))
        known = {storage._cdata for storage in map(_storage, inputs) if storage is not None}
        for tensor in _tensors(result):
            storage = _storage(tensor)
            if storage is not None and storage._cdata not in known:
                _place(tensor, any(homes) if inputs else _calls[-1])
        return result


class Calls(TorchFunctionMode):
    """Reads ``cuda`` in calls as a home, and answers where a tensor is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {key: value for key, value in (kwargs or {}).items() if key != "pin_memory"}
        name = getattr(func, "__name__", "")
        if func == torch.Tensor.device.__get__:
            return GPU if _is_there(args[0]) else func(*args)
        if func == torch.Tensor.is_cuda.__get__:
            return _is_there(args[0])
        if func in ARRAYS and _is_there(args[0]) and not kwargs.get("force"):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        if name == "pin_memory":
            return args[0]
        if name == "__deepcopy__":
            result = func(*args)
            _place(result, _is_there(args[0]))
            return result
        if func in SENT:
            return _sent(func, args, kwargs)
        return _made(func, args, kwargs)


def _sent(func: Any, args: Any, kwargs: Any) -> Any:
    here = _is_there(args[0])
    if func is torch.Tensor.cpu:
        asked: Any = HOST
    elif func is torch.Tensor.cuda:
        asked, func, args = GPU, torch.Tensor.to, (args[0], HOST)
    else:
        asked, args, kwargs = _asked_of(args, kwargs)
    there = here if asked is None else torch.device(asked).type == "cuda"
    result = func(*args, **kwargs)
    if there != here:
        result = result.clone() if _storage(result)._cdata == _storage(args[0])._cdata else result
        _place(result, there)
    return result


def _asked_of(args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """Return the device that ``Tensor.to`` is asked for, and its arguments with the CPU in its place."""
    asked, changed = kwargs.get("device"), [args[0]]
    for value in args[1:]:
        if isinstance(value, torch.Tensor):
            asked = GPU if _is_there(value) else HOST
        if isinstance(value, str | torch.device):
            asked, value = value, HOST
        changed.append(value)
    return asked, tuple(changed), kwargs | ({"device": HOST} if kwargs.get("device") is not None else {})


def _made(func: Any, args: Any, kwargs: Any) -> Any:
    device = kwargs.get("device")
    if not isinstance(device, str | torch.device):
        return _called(func, args, kwargs)
    there = torch.device(device).type == "cuda"
    result = _called(func, args, kwargs | {"device": HOST if there else device})
    for tensor in _tensors(result):
        _place(tensor, there)
    return result


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    _calls.append(any(map(_is_there, _tensors(args, kwargs))))
    try:
        return func(*args, **kwargs)
    finally:
        _calls.pop()


def _autocast(init: Any) -> Any:
    def on_the_cpu(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        init(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return on_the_cpu


def start() -> None:
    """Let this thread of the process have a GPU, until it ends."""
    facts = SimpleNamespace(name="pretended", total_memory=MEMORY_BYTES, major=9, minor=0, multi_processor_count=1)
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_name": "pretended",
        "get_device_properties": facts, "get_device_capability": (9, 0), "is_bf16_supported": True, "synchronize": None,
        "memory_allocated": 10**9, "max_memory_allocated": 10**9, "memory_reserved": 2 * 10**9, "set_device": None,
        "max_memory_reserved": 2 * 10**9, "reset_peak_memory_stats": None, "empty_cache": None,
        "mem_get_info": (MEMORY_BYTES // 2, MEMORY_BYTES), "get_rng_state_all": [], "set_rng_state_all": None,
        "memory_stats": {},
    }  # fmt: skip
    for name, answer in answers.items():
        mock.patch.object(torch.cuda, name, lambda *args, _answer=answer, **kwargs: _answer).start()
    mock.patch.object(torch.autocast, "__init__", _autocast(torch.autocast.__init__)).start()
    Operations().__enter__()
    Calls().__enter__()


if __name__ == "__main__":
    start()
    from xectool.__main__ import main

    sys.exit(main())
