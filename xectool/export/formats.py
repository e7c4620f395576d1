"""Formats of an export, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from xectool.export.description import Description
from xectool.export.graphs import ExportGraph
from xectool.export.runtime import Runtime
from xectool.findings import Finding
from xectool.registry import Registry


@dataclass(frozen=True)
class Written:
    """What a format wrote.

    Attributes:
        files: Its files, the one to name first.
        notes: What is worth knowing about them.
    """

    files: tuple[Path, ...]
    notes: tuple[Finding, ...] = ()


class Format(Protocol):
    """What every format can do."""

    opset: int

    @staticmethod
    def write(graph: ExportGraph, description: Description, example: tuple[torch.Tensor, ...], path: Path) -> Written:
        """Write a network with its description.

        Args:
            graph: What to export, in evaluation mode.
            description: What the file says of itself.
            example: Inputs of two events or more.
            path: The file to write.
        """

    @staticmethod
    def open(path: Path, device: str = "cpu") -> Runtime:
        """Return a file of this format, ready to run."""


FORMATS: Registry[type[Format]] = Registry("format", "xectool.export.all_formats")
SUFFIXES: dict[str, str] = {}
"""Suffix of each format's files: ``.torchscript``, as ``checkpoint_*.pt`` is what a training resumes from."""
ASKED_FOR = {".pt": "torchscript"}
"""Formats by a suffix that only a user gives a file: PyTorch's own examples call scripted modules so."""


def register(name: str, suffix: str) -> Callable[[type[Format]], type[Format]]:
    """Return a decorator that registers a format and the suffix of its files."""
    SUFFIXES[name] = suffix
    return FORMATS.register(name)
