"""Which file an export starts from, and whether that file is sound enough for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from xectool.checkpoint import store
from xectool.engine.inspection import inspect_ckpt
from xectool.errors import CheckpointError, in_shell
from xectool.findings import Severity

_OF_TRAINING: Final = ("K10", "K11", "K12", "K14")
"""What is wrong with the state of a training does not matter to its weights."""

_OF_AVERAGE: Final = ("K09",)


def source_of(path: Path, weights: str) -> Path:
    """Return the file whose weights are exported: ``best`` is the best checkpoint of the run, where there is one."""
    best = path.parent / store.BEST_NAME
    return best if weights == "best" and path.name.startswith("checkpoint_") and best.is_file() else path


def require_sound(path: Path, weights: str) -> str:
    """Return the SHA-256 of a checkpoint that is intact, finite, and has its heads.

    An average that is gone or is none does not matter to ``model``, the last weights.

    Raises:
        CheckpointError: It is not; the message says why.
    """
    found = inspect_ckpt(path)
    fit = next(item for item in found.fit_for if item.action == "export")
    of_others = (*_OF_TRAINING, *(_OF_AVERAGE if weights == "model" else ()))
    wrong = [item for item in found.findings if item.severity is Severity.ERROR and item.code not in of_others]
    if wrong:
        first, errors = wrong[0], f"{len(wrong)} error{'s' * (len(wrong) > 1)}"
        inspected = f"xectool inspect-ckpt {in_shell(path)}   # {errors}; then export a sound checkpoint"
        raise CheckpointError(
            f"this checkpoint is not exported: {first.problem}",
            where=f"{path}: {first.where}" if first.where else str(path),
            fix=first.fix if first.code == "XT-PLUGIN" else inspected,
            code=first.code,
        )
    if not fit.possible:
        raise CheckpointError(
            f"this file cannot be exported: {fit.why}",
            where=str(path),
            fix=f"xectool inspect-ckpt {in_shell(path)}",
            code="X-01",
        )
    return found.sha256
