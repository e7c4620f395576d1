"""What the formats that PyTorch runs have in common: tensors in and out, and the description inside an archive."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from xectool.checkpoint.inspection.archive import DamagedArchive
from xectool.checkpoint.inspection.archive_digest import file_changes
from xectool.errors import CheckpointError
from xectool.export.description import EXPORT_AGAIN, EXTRA_FILE, Description, changed_since
from xectool.export.reference import Arrays
from xectool.export.runtime import Runtime, in_order


class TorchRuntime(Runtime):
    """A network that PyTorch runs.

    Args:
        path: The file.
        description: What it says of itself.
        network: Takes and gives tensors in the order of its ports.
        device: Device of PyTorch on which it lies.
    """

    def __init__(self, path: Path, description: Description, network: Callable[..., Any], device: torch.device) -> None:
        self.path, self.description = path, description
        self.network, self.device = network, device
        self.providers = (f"PyTorch {torch.__version__} on {device}",)

    @torch.inference_mode()
    def run(self, given: Arrays) -> Arrays:
        """Return the outputs by name."""
        self.check_inputs(given)
        tensors = [torch.from_numpy(given[port.name]).to(self.device) for port in self.description.inputs]
        values = self.network(*tensors)
        return in_order([port.name for port in self.description.outputs], [value.cpu().numpy() for value in values])


def described(text: str | bytes, path: Path) -> Description:
    """Return the description that stands as JSON in an archive.

    Raises:
        CheckpointError: There is none, or it cannot be read.
    """
    try:
        stored = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        problem = f"{EXTRA_FILE} in it cannot be read: {error}"
        raise CheckpointError(problem, where=str(path), fix=EXPORT_AGAIN, code="X-15") from error
    return Description.from_metadata(stored if isinstance(stored, dict) else {}, str(path))


def require_as_exported(path: Path, what: str) -> None:
    """Refuse an archive whose code or weights are not those that were exported; an older one, without any, passes.

    Raises:
        CheckpointError: There is no such file, it is empty or damaged, or its digests do not hold.
    """
    try:
        changed = file_changes(path)
    except (DamagedArchive, OSError, ValueError) as error:  # nothing to map is a ValueError
        raise damaged(what, path, error) from error
    if changed:
        raise changed_since(path, changed)


def damaged(what: str, path: Path, error: Exception) -> CheckpointError:
    """Return that a file cannot be read, in the first line of what its reader said."""
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return CheckpointError(f"cannot read the {what}: {first}", where=str(path), fix=EXPORT_AGAIN, code="X-06")
