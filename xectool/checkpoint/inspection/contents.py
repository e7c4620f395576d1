"""One file taken apart: format, tree, tensors, names it asks for, and what is wrong with its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from xectool.checkpoint.inspection.archive import Problem
from xectool.checkpoint.inspection.symbols import TensorRef
from xectool.checkpoint.inspection.tree import resolve
from xectool.checkpoint.inspection.trust import UnsafeGlobal


@dataclass
class Contents:
    """What a file holds.

    Attributes:
        path: The file.
        format: ``torch-zip``, ``torch-legacy``, ``torch-tar``, ``torchscript``, ``torch-export``, ``safetensors``,
            ``onnx`` or ``pickle``.
        sha256: Digest of the file on disk.
        size_bytes: Its size on disk.
        payload: Plain values with tensors that view the file.
        tensors: What the file says of every tensor, by dotted place.
        values: The tensors that can be read, by the same name.
        unsafe: Names that the safe loader refuses.
        problems: What is wrong with the bytes.
        changed: Parts that are not those that were exported; None where the format stores no digest of them.
        checksums: What protects the bytes, and whether it was verified; empty where nothing does.
        facts: What the format itself says: producer, opset, metadata, code files.
    """

    path: Path
    format: str
    sha256: str
    size_bytes: int
    payload: Any = None
    tensors: dict[str, TensorRef] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)
    unsafe: list[UnsafeGlobal] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    changed: tuple[str, ...] | None = None
    checksums: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def fill(self, value: Any) -> None:
        """Take over a tree of symbols."""
        resolved = resolve(value)
        self.payload, self.tensors, self.values = resolved.payload, resolved.tensors, resolved.values
        self.problems += resolved.problems
