"""The few calls of a checkpoint whose result is known without making them: tensors, ordered dictionaries, shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from xectool.checkpoint.inspection.symbols import Global, Made, StorageRef, TensorRef

StorageOf: TypeAlias = Callable[[Any], "StorageRef | None"]

STORAGE_DTYPES: Final[Mapping[str, str]] = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "UntypedStorage": "uint8", "TypedStorage": "uint8",
    "QInt8Storage": "qint8", "QUInt8Storage": "quint8", "QInt32Storage": "qint32",
}  # fmt: skip


_TYPED = (
    "restore_type_tag", "build_intlist", "build_tensorlist", "build_doublelist", "build_boollist",
    "build_complexlist",
)  # fmt: skip


def rebuild(function: Any, args: Any) -> Any:
    """Return what a known function would return, or a record of the call."""
    if isinstance(function, Global) and isinstance(args, tuple):
        known = _KNOWN.get(function.dotted.replace("__builtin__.", "builtins."))
        found = known(args) if known is not None else None
        if found is not None:
            return found
    return Made(function, args)


def dtype_of_storage(kind: Any) -> str:
    """Return the element type of a storage class as a pickle names it."""
    if not isinstance(kind, Global):
        return "unknown"
    return STORAGE_DTYPES.get(kind.name, f"unknown ({kind.dotted})")


def _tensor(args: tuple[Any, ...]) -> TensorRef | None:
    """Return the tensor of ``(storage, offset, size, stride, requires_grad, hooks)``."""
    if len(args) < 4 or not isinstance(args[0], StorageRef):
        return None
    storage, first, shape, stride = args[:4]
    if not (isinstance(first, int) and isinstance(shape, tuple) and isinstance(stride, tuple)):
        return None
    trainable = len(args) > 4 and args[4] is True
    return TensorRef(storage, storage.dtype, shape, stride, first, trainable)


def _typed_tensor(args: tuple[Any, ...]) -> TensorRef | None:
    """Return the tensor of ``(storage, offset, size, stride, requires_grad, hooks, dtype)``."""
    found = _tensor(args)
    if found is None or len(args) < 7 or not isinstance(args[6], Global):
        return None
    return replace(found, dtype=args[6].name)


def _quantised_tensor(args: tuple[Any, ...]) -> TensorRef | None:
    found = _tensor(args[:4])
    return None if found is None else replace(found, note="quantised")


def _parameter(args: tuple[Any, ...]) -> TensorRef | None:
    if not args or not isinstance(args[0], TensorRef):
        return None
    return replace(args[0], trainable=len(args) > 1 and args[1] is True, note="parameter")


def _meta_tensor(args: tuple[Any, ...]) -> TensorRef | None:
    """Return the tensor of ``(dtype, size, stride, requires_grad)``; it never had bytes."""
    if len(args) < 3 or not isinstance(args[0], Global):
        return None
    shape, stride = args[1], args[2]
    if not (isinstance(shape, tuple) and isinstance(stride, tuple)):
        return None
    return TensorRef(None, args[0].name, shape, stride, note="meta")


def _subclass_state(args: tuple[Any, ...]) -> Any:
    """Return the tensor inside ``_rebuild_from_type_v2(function, type, args, state)``."""
    if len(args) == 4 and isinstance(args[2], tuple):
        found = rebuild(args[0], args[2])
        return found if isinstance(found, TensorRef) else None
    return None


def _dictionary(args: tuple[Any, ...]) -> dict[Any, Any] | None:
    if not args:
        return {}
    pairs = args[0]
    if isinstance(pairs, dict):
        return dict(pairs)
    if isinstance(pairs, list) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        return {key: value for key, value in pairs if isinstance(key, str | int)}
    return None


def _factory_dictionary(args: tuple[Any, ...]) -> dict[Any, Any] | None:
    return {} if len(args) < 2 else None


def _shape(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    return tuple(args[0]) if args and isinstance(args[0], list | tuple) else None


def _encoded(args: tuple[Any, ...]) -> bytes | None:
    """Return bytes that protocol 2 writes as text: ``_codecs.encode(text, 'latin1')``."""
    if args and isinstance(args[0], str) and (len(args) < 2 or args[1] in ("latin1", "latin-1")):
        return args[0].encode("latin-1", "replace")
    return None


def _empty_bytes(args: tuple[Any, ...]) -> bytes | None:
    return None if args else b""


def _set(args: tuple[Any, ...]) -> set[Any] | None:
    if args and isinstance(args[0], list | tuple):
        return {item for item in args[0] if isinstance(item, str | int | float)}
    return set() if not args else None


def _device(args: tuple[Any, ...]) -> str | None:
    return ":".join(map(str, args)) if args and all(isinstance(item, str | int) for item in args) else None


def _first(args: tuple[Any, ...]) -> Any:
    """Return the value that TorchScript only wraps with its type."""
    return args[0] if args else None


_KNOWN: Mapping[str, Callable[[tuple[Any, ...]], Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_qtensor": _quantised_tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_meta_tensor_no_storage": _meta_tensor,
    "torch._tensor._rebuild_from_type_v2": _subclass_state,
    "torch.nn.parameter.Parameter": _parameter,
    "collections.OrderedDict": _dictionary,
    "collections.Counter": _dictionary,
    "collections.defaultdict": _factory_dictionary,
    "builtins.dict": _dictionary,
    "torch.Size": _shape,
    "torch.device": _device,
    "_codecs.encode": _encoded,
    "builtins.set": _set,
    "builtins.bytes": _empty_bytes,
    **{f"torch.jit._pickle.{name}": _first for name in _TYPED},
}
