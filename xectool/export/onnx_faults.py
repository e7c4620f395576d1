"""What ONNX Runtime says when something is wrong, in terms a user can act on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from xectool.errors import CheckpointError, OutOfMemory, XecError

_AGAIN: Final = "export it again: xectool export CKPT --to onnx --output FILE"


class _Known(NamedTuple):
    pattern: re.Pattern[str]
    code: str
    problem: str
    fix: str


def _known(pattern: str, code: str, problem: str, fix: str) -> _Known:
    return _Known(re.compile(pattern, re.IGNORECASE | re.DOTALL), code, problem, fix)


_FAULTS: Final = (
    _known(
        r"cannot be reshaped to the requested shape|the dimension.*not zero.*reshape",
        "XT-EXPORT-BATCH",
        "the graph is frozen to the batch size it was exported with",
        _AGAIN,
    ),
    _known(
        r"(?:Got invalid dimensions|Invalid rank) for input: (?P<what>\S+)",
        "XT-EXPORT-INPUT",
        "input {what} has another shape than the graph takes",
        "xectool inspect-ckpt FILE lists inputs with their shapes",
    ),
    _known(
        r"Unexpected input data type.*?(?P<what>Actual: \(tensor\(\w+\)\) , expected: \(tensor\(\w+\)\))",
        "XT-EXPORT-INPUT",
        "an input has another type than the graph takes ({what})",
        "give float32 arrays, and bool for the mask",
    ),
    _known(
        r"(?P<what>Required inputs .*? are missing|Invalid input name: \S+)",
        "XT-EXPORT-INPUT",
        "the names of the inputs are others than the graph's ({what})",
        "xectool inspect-ckpt FILE lists inputs with their names",
    ),
    _known(
        r"external data|External initializer|model_path must not be empty|\.data\b.*(no such file|cannot|error|exist)",
        "X-07",
        "its weights lie in another file, which is not beside it or is not read",
        "copy FILE.data beside it, or export it again as a single file",
    ),
    _known(
        r"Protobuf parsing failed|INVALID_PROTOBUF",
        "X-06",
        "it is truncated, or no ONNX model",
        _AGAIN,
    ),
    _known(
        r"INVALID_GRAPH|is not a registered function/op|NOT_IMPLEMENTED|Unsupported model IR version|opset",
        "X-06",
        "this version of ONNX Runtime cannot run its graph",
        "pip install --upgrade onnxruntime",
    ),
)
_MEMORY: Final = re.compile(r"Failed to allocate memory|bad_alloc|out of memory", re.IGNORECASE)


@contextmanager
def onnx_faults(path: Path) -> Iterator[None]:
    """Raise an error a user can act on in place of ONNX Runtime's own.

    Raises:
        CheckpointError: The file, or what it was given, is wrong.
        OutOfMemory: The machine has too little memory.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = (
        state.Fail, state.InvalidArgument, state.InvalidGraph, state.InvalidProtobuf, state.NoSuchFile,
        state.NotImplemented, state.RuntimeException, state.EPFail, state.NoModel,
    )  # fmt: skip
    try:
        yield
    except (*own, ValueError, RuntimeError) as error:
        raise translated(str(error), path) from error


def translated(said: str, path: Path) -> XecError:
    """Return the error for what ONNX Runtime said of a file."""
    first = " ".join(said.split())[:300]
    if _MEMORY.search(said):
        return OutOfMemory(f"ONNX Runtime ran out of memory: {first}", where=str(path), fix="--batch-size 16")
    for fault in _FAULTS:
        match = fault.pattern.search(said)
        if match:
            what = " ".join(match.groupdict().get("what", "").split())
            problem = f"cannot run the exported network: {fault.problem.format(what=what)}; ONNX Runtime says: {first}"
            return CheckpointError(problem, where=str(path), fix=fault.fix.replace("FILE", str(path)), code=fault.code)
    return CheckpointError(
        f"ONNX Runtime cannot run the exported network: {first}", where=str(path), fix=_AGAIN, code="X-06"
    )
