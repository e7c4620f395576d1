"""What a pickle describes, as inert symbols: names, calls that are never made, tensors as references to bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import torch


@dataclass(frozen=True, eq=False)
class Global:
    """A name the pickle asks to import.

    Attributes:
        module: Module, as written.
        name: Attribute of it, dotted where nested.
        offset: Byte of the opcode in its pickle.
    """

    module: str
    name: str
    offset: int

    @property
    def dotted(self) -> str:
        """Module and name in one."""
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Made:
    """An object the pickle would make by calling something; nothing is called.

    Attributes:
        function: What would be called.
        args: With what.
        state: What BUILD would hand to it.
        pairs: Items set on it.
        values: Items appended to it.
    """

    function: Any
    args: Any
    state: Any = None
    pairs: list[tuple[Any, Any]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the class or function, or of its kind where that is computed."""
        if isinstance(self.function, Global):
            return self.function.dotted
        return "a computed call"


@dataclass(frozen=True, eq=False)
class Unknown:
    """A value that cannot be known without running the pickle, or that a damaged pickle lost."""

    why: str = ""


@dataclass(eq=False)
class StorageRef:
    """The bytes behind tensors.

    Attributes:
        key: Its name in the file.
        dtype: Name of its element type, such as ``float32``.
        device: Where it lay when saved, such as ``cuda:0``.
        num_elements: Elements it claims to have.
        data: Its bytes in the file; None where the file has none.
        where: Place in the file, for messages.
    """

    key: str
    dtype: str
    device: str
    num_elements: int
    data: memoryview | None = None
    where: str = ""
    big_endian: bool = False


@dataclass(eq=False)
class TensorRef:
    """A tensor as a pickle or header describes it.

    Attributes:
        storage: Its bytes; None for one without (meta device).
        dtype: Name of its element type.
        shape: Its shape.
        stride: Elements from one index to the next, an axis each.
        first: Element of the storage it starts at.
        trainable: Whether it was a parameter that requires a gradient.
        note: What is unusual about it: sparse, quantised, parameter.
    """

    storage: StorageRef | None
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    first: int = 0
    trainable: bool = False
    note: str = ""

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def device(self) -> str:
        """Device it was saved from."""
        return self.storage.device if self.storage is not None else "meta"


MAX_RANK: Final = 64
_FREE_REPEATS: Final = 1 << 16


class BadTensor(ValueError):
    """The description of a tensor contradicts the bytes there are."""


def item_size(dtype: str) -> int:
    """Return the bytes of an element.

    Raises:
        BadTensor: torch knows no such element type.
    """
    known = getattr(torch, dtype, None)
    if not isinstance(known, torch.dtype):
        raise BadTensor(f"unknown dtype '{dtype}'")
    return known.itemsize


def extent(ref: TensorRef) -> int:
    """Return how many elements of its storage a tensor spans, after checking that shape and stride make sense.

    Raises:
        BadTensor: They do not.
    """
    numbers = (*ref.shape, *ref.stride, ref.first)
    if len(ref.shape) != len(ref.stride) or len(ref.shape) > MAX_RANK:
        raise BadTensor(f"shape of {len(ref.shape)} axes with strides of {len(ref.stride)}")
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 or n >= 2**62 for n in numbers):
        raise BadTensor("a negative or absurd number in shape, stride or offset")
    if 0 in ref.shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(ref.shape, ref.stride, strict=True))


def tensor(ref: TensorRef) -> torch.Tensor:
    """Return a tensor as a view of the file's bytes, or on the meta device where it never had any.

    Raises:
        BadTensor: The bytes are missing or too few, the description is absurd, or the element type is unknown.
    """
    size = item_size(ref.dtype)
    span = extent(ref)
    dtype: torch.dtype = getattr(torch, ref.dtype)
    if ref.storage is None:
        return torch.empty(ref.shape, dtype=dtype, device="meta")
    if ref.storage.data is None:
        raise BadTensor(f"its bytes are missing from the file ({ref.storage.where or ref.storage.key})")
    available = len(ref.storage.data)
    if span and (ref.first + span) * size > available:
        raise BadTensor(
            f"{ref.dtype} {list(ref.shape)} needs {(ref.first + span) * size} bytes, "
            f"{ref.storage.where or ref.storage.key} has {available}"
        )
    if ref.num_elements > 16 * span + _FREE_REPEATS:
        raise BadTensor(f"{list(ref.shape)} repeats {span} stored numbers")
    if not span:
        return torch.empty(ref.shape, dtype=dtype)
    data = ref.storage.data[ref.first * size : (ref.first + span) * size]
    flat = _flat(data, dtype, size, ref.storage.big_endian)
    return flat.as_strided(ref.shape, ref.stride)


def _flat(data: memoryview, dtype: torch.dtype, size: int, big_endian: bool) -> torch.Tensor:
    raw = torch.frombuffer(data if not data.readonly else bytearray(data), dtype=torch.uint8)
    if big_endian and size > 1 and not dtype.is_complex:
        raw = raw.view(-1, size).flip(1).reshape(-1)
    if raw.data_ptr() % size:
        raw = raw.clone()
    return raw.view(dtype)
