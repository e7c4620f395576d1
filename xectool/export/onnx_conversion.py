"""From a network to an ONNX model, by PyTorch's exporter."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from xectool.errors import CheckpointError
from xectool.export.graphs import ExportGraph
from xectool.export.ports import BATCH_AXIS

if TYPE_CHECKING:
    import onnx

OPSET: Final = 20
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_OPERATOR: Final = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")
_LOGGERS: Final = ("torch.onnx", "onnxscript", "onnx_ir")


def converted(graph: ExportGraph, example: tuple[torch.Tensor, ...], path: Path) -> onnx.ModelProto:
    """Return a network as an ONNX model with a free batch axis.

    Args:
        graph: In evaluation mode.
        example: Inputs of two events or more.
        path: The file it is for, for messages.

    Raises:
        CheckpointError: An operation cannot be exported.
    """
    if example[0].shape[0] < 2:
        raise ValueError("an example of one event freezes the batch: give two or more")
    batch = torch.export.Dim(BATCH_AXIS, min=1)
    with _quiet(), torch.no_grad():
        try:
            program = torch.onnx.export(
                graph,
                example,
                dynamo=True,
                dynamic_shapes=(tuple({0: batch} for _ in example),),
                input_names=[port.name for port in graph.inputs],
                output_names=[port.name for port in graph.outputs],
                opset_version=OPSET,
                external_data=False,
                verbose=False,
                optimize=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise CheckpointError(
                f"PyTorch {torch.__version__} cannot export this network to ONNX: {_obstacle(error)}",
                where=str(path),
                fix="pip install --upgrade torch onnxscript, or --to pt2",
                code="XT-EXPORT-OP",
            ) from error
    assert program is not None
    _fold(program.model)
    model: onnx.ModelProto = program.model_proto
    return model


def _fold(model: Any) -> None:
    """Compute what depends on no input, and take out what is there twice or without use.

    ONNX Runtime does all else on its own. PyTorch would also try each of some 50 rewrites at each operation, one of
    them against each other operation: 28 of the 140 s an inpainter took, and no event was faster for it.
    """
    from onnx_ir.passes import Sequential, common
    from onnxscript.optimizer import fold_constants

    fold_constants(model)
    Sequential(
        common.RemoveUnusedNodesPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
    )(model)


def _obstacle(error: BaseException) -> str:
    """Return the operator that has no ONNX function, or the first line that is said, without colours."""
    said = _COLOURS.sub("", f"{error}\n{error.__cause__ or ''}")
    operators = dict.fromkeys(_OPERATOR.findall(said))
    first = next((line for line in said.splitlines() if line.strip()), type(error).__name__)
    return f"no ONNX function for {', '.join(list(operators)[:5])}" if operators else first


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's remarks on its own state off the screen; what matters is compared afterwards."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
