"""What a model file is, by its content: a checkpoint, or an exported file with a graph."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Final

from xectool.checkpoint.inspection.protobuf import looks_like_onnx
from xectool.checkpoint.inspection.window import open_content
from xectool.errors.unreadable import ARCHIVE_ERRORS

_SCRIPT_MARK: Final = "/constants.pkl"
_PT2_MARK: Final = "archive_format"
_ONNX_STARTS: Final = (b"\x08", b"\x12", b":")


def exported_format(path: Path) -> str | None:
    """Return the format of a file with a graph, found by its content; None of anything else."""
    if not os.path.isfile(path):
        return None
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except ARCHIVE_ERRORS:  # the reader of checkpoints says what is wrong with it
            return None
        if any(name.rsplit("/", 1)[-1] == _PT2_MARK for name in names):
            return "pt2"
        return "torchscript" if any(name.endswith(_SCRIPT_MARK) for name in names) else None
    with path.open("rb") as stream:
        head = stream.read(1)
    is_onnx = head in _ONNX_STARTS and (path.suffix.lower() == ".onnx" or looks_like_onnx(open_content(path).data))
    return "onnx" if is_onnx else None
