"""``torch.export``, the successor of TorchScript: a graph with its weights that PyTorch and AOTInductor run."""

from __future__ import annotations

import json
import logging
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Final

import torch
from torch.export.passes import move_to_device_pass

from xectool.checkpoint.inspection.archive_digest import DIGESTS_FILE, PROMISE, digests_of
from xectool.errors.unreadable import ARCHIVE_ERRORS
from xectool.export.description import EXTRA_FILE, Description
from xectool.export.formats import Written, register
from xectool.export.graphs import ExportGraph
from xectool.export.ports import BATCH_AXIS
from xectool.export.runtime import Runtime
from xectool.export.torch_runtime import TorchRuntime, damaged, described, require_as_exported

_WHAT: Final = "file of torch.export"
_UNREADABLE: Final = (*ARCHIVE_ERRORS, pickle.UnpicklingError)


@register("pt2", ".pt2")
class Pt2Format:
    """A graph of ``torch.export`` with a free batch axis."""

    opset = 0

    @staticmethod
    def write(graph: ExportGraph, description: Description, example: tuple[torch.Tensor, ...], path: Path) -> Written:
        """Export a network and write it."""
        batch = torch.export.Dim(BATCH_AXIS, min=1)
        extra = {EXTRA_FILE: json.dumps({**description.to_metadata(), **PROMISE}, sort_keys=True)}
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            shapes = (tuple({0: batch} for _ in example),)
            program = torch.export.export(graph, example, dynamic_shapes=shapes, strict=False)
            torch.export.save(program, path, extra_files=extra)
            torch.export.save(program, path, extra_files={**extra, DIGESTS_FILE: digests_of(path)})
        return Written((path,))

    @staticmethod
    def open(path: Path, device: str = "cpu") -> Runtime:
        """Return a file that this process wrote, ready to run on a device of PyTorch.

        Of any other origin it must not be opened: ``torch.export.load`` unpickles without restriction, and evaluates
        text that stands in the file.

        Raises:
            CheckpointError: It cannot be read, or xectool did not export it.
        """
        require_as_exported(path, _WHAT)
        description, place = described(_extra(path), path), torch.device(device)
        logging.getLogger("torch.export").setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = torch.export.load(path)
        except _UNREADABLE as error:
            raise damaged(_WHAT, path, error) from error
        if place.type != "cpu":
            program = move_to_device_pass(program, str(place))
        return TorchRuntime(path, description, program.module(), place)


def _extra(path: Path) -> bytes:
    """Return what xectool put into the archive, read without running or unpickling anything."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((name for name in archive.namelist() if name.endswith(f"extra/{EXTRA_FILE}")), None)
            return archive.read(name) if name is not None else b""
    except ARCHIVE_ERRORS as error:
        raise damaged(_WHAT, path, error) from error
