"""TorchScript, for programs that link libtorch; PyTorch 2.13 has deprecated it and still writes and runs it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, Final

import torch

from xectool.checkpoint.inspection.archive_digest import DIGESTS_FILE, PROMISE, digests_of
from xectool.checkpoint.soundness import require_checksums
from xectool.errors import CheckpointError, UsageError
from xectool.export.description import EXTRA_FILE, Description
from xectool.export.formats import Written, register
from xectool.export.graphs import ExportGraph
from xectool.export.runtime import Runtime
from xectool.export.torch_runtime import TorchRuntime, damaged, described, require_as_exported
from xectool.findings import Finding, Severity

_DEPRECATED: Final = "deprecated"
_WHAT: Final = "TorchScript file"


@register("torchscript", ".torchscript")
class TorchScriptFormat:
    """A traced graph with its weights."""

    opset = 0

    @staticmethod
    def write(graph: ExportGraph, description: Description, example: tuple[torch.Tensor, ...], path: Path) -> Written:
        """Trace a network and write it.

        PyTorch's own check of a trace compares it at the example's batch only, and fails on transformers because it
        compares graphs, not numbers; the numbers are compared afterwards at several batch sizes.

        Raises:
            UsageError: This PyTorch has no TorchScript any more.
            CheckpointError: An operation cannot be traced, or the disk refuses.
        """
        if not hasattr(torch.jit, "trace"):
            raise UsageError(
                f"PyTorch {torch.__version__} has no TorchScript any more",
                where="--to torchscript",
                fix="--to pt2, or --to onnx",
                code="X-17",
            )
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # the fused kernel of a transformer cannot be traced
        try:
            with warnings.catch_warnings(record=True) as caught, torch.no_grad():
                warnings.simplefilter("always")
                trace: Any = torch.jit.trace
                traced = trace(graph, example, check_trace=False)
                extra = {EXTRA_FILE: json.dumps({**description.to_metadata(), **PROMISE}, sort_keys=True)}
                torch.jit.save(traced, str(path), _extra_files=extra)
                torch.jit.save(traced, str(path), _extra_files={**extra, DIGESTS_FILE: digests_of(path)})
        except RuntimeError as error:
            raise _not_traceable(error, path) from error
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
        return Written((path,), _notes(caught))

    @staticmethod
    def open(path: Path, device: str = "cpu") -> Runtime:
        """Return the file, ready to run on a device of PyTorch.

        Raises:
            CheckpointError: It cannot be read, or xectool did not export it.
        """
        extra, place = {EXTRA_FILE: ""}, torch.device(device)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                require_checksums(path)
                require_as_exported(path, _WHAT)
                load: Any = torch.jit.load
                script: Any = load(str(path), map_location=place, _extra_files=extra).eval()
        except (RuntimeError, ValueError, OSError) as error:
            raise damaged(_WHAT, path, error) from error
        return TorchRuntime(path, described(extra[EXTRA_FILE], path), script, place)


def _not_traceable(error: RuntimeError, path: Path) -> CheckpointError:
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return CheckpointError(
        f"PyTorch {torch.__version__} cannot write this network as TorchScript: {first}",
        where=str(path),
        fix="--to onnx, or --to pt2",
        code="XT-EXPORT-OP",
    )


def _notes(caught: list[warnings.WarningMessage]) -> tuple[Finding, ...]:
    """Return what a user should know of the warnings: not that constants are constant, but that the format ends."""
    if any(_DEPRECATED in str(item.message) for item in caught):
        problem = f"PyTorch {torch.__version__} calls TorchScript deprecated and will drop it"
        return (Finding("X-17", Severity.INFO, problem, "--to torchscript", fix="--to onnx, or --to pt2"),)
    return ()
