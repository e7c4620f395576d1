"""``torch.export``, the successor of TorchScript: a graph with its weights that PyTorch and AOTInductor run."""

from __future__ import annotations

import json
import logging
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any, Final

import torch
from torch.export.passes import move_to_device_pass

from xectool.errors import CheckpointError
from xectool.export.description import EXPORT_AGAIN, Description
from xectool.export.formats import Written, register
from xectool.export.graphs import ExportGraph
from xectool.export.ports import BATCH_AXIS
from xectool.export.reference import Arrays
from xectool.export.runtime import Runtime, in_order
from xectool.export.torchscript import EXTRA_FILE, described

_UNREADABLE: Final = (RuntimeError, ValueError, OSError, KeyError, pickle.UnpicklingError, zipfile.BadZipFile)


@register("pt2", ".pt2")
class Pt2Format:
    """A graph of ``torch.export`` with a free batch axis."""

    opset = 0

    @staticmethod
    def write(graph: ExportGraph, description: Description, example: tuple[torch.Tensor, ...], path: Path) -> Written:
        """Export a network and write it."""
        batch = torch.export.Dim(BATCH_AXIS, min=1)
        extra = {EXTRA_FILE: json.dumps(description.to_metadata(), sort_keys=True)}
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            shapes = (tuple({0: batch} for _ in example),)
            program = torch.export.export(graph, example, dynamic_shapes=shapes, strict=False)
            torch.export.save(program, path, extra_files=extra)
        return Written((path,))

    @staticmethod
    def open(path: Path, device: str = "cpu") -> Runtime:
        """Return the file, ready to run on a device of PyTorch."""
        return Pt2Runtime(path, device)


class Pt2Runtime(Runtime):
    """A file of ``torch.export`` in PyTorch.

    Args:
        path: The file.
        device: Device of PyTorch.

    Raises:
        CheckpointError: It cannot be read, or xectool did not export it.
    """

    def __init__(self, path: Path, device: str = "cpu") -> None:
        self.path, self.device = path, torch.device(device)
        self.description = described(_extra(path), path)
        logging.getLogger("torch.export").setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = torch.export.load(path)
        except _UNREADABLE as error:
            raise _damaged(path, error) from error
        if self.device.type != "cpu":
            program = move_to_device_pass(program, str(self.device))
        self.module: Any = program.module()
        self.providers = (f"PyTorch {torch.__version__} on {self.device}",)

    @torch.inference_mode()
    def run(self, given: Arrays) -> Arrays:
        """Return the outputs by name."""
        self.check_inputs(given)
        tensors = [torch.from_numpy(given[port.name]).to(self.device) for port in self.description.inputs]
        values = self.module(*tensors)
        return in_order([port.name for port in self.description.outputs], [value.cpu().numpy() for value in values])


def _extra(path: Path) -> bytes:
    """Return what xectool put into the archive, read without running or unpickling anything."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((name for name in archive.namelist() if name.endswith(f"extra/{EXTRA_FILE}")), None)
            return archive.read(name) if name is not None else b""
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return CheckpointError(
        f"cannot read the file of torch.export: {first}", where=str(path), fix=EXPORT_AGAIN, code="X-06"
    )
