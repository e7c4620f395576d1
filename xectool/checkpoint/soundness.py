"""What weights have to be before anything is computed with them: the bytes that were written, and numbers."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from xectool.checkpoint.inspection.values import may_be_infinite, statistics
from xectool.errors import CheckpointError, in_shell
from xectool.errors.unreadable import ARCHIVE_ERRORS


def require_checksums(path: Path) -> None:
    """Compare the bytes of a zip archive with its checksums: torch does not, and takes a flipped bit for a weight.

    An archive without checksums, as torch can be told to write, passes; so does what is no archive.

    Raises:
        CheckpointError: An entry is not what was written.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip() if any(entry.CRC for entry in archive.infolist()) else None
    except ARCHIVE_ERRORS as error:
        raise _refused(path, f"the archive is damaged: {error}", "XT-CKPT-CORRUPT") from error
    if damaged is not None:
        problem = f"the file is damaged: the checksum (CRC) of its entry {damaged} does not hold"
        raise _refused(path, problem, "XT-CKPT-CORRUPT")


def require_finite(weights: Mapping[str, Tensor], path: str | Path, what: str = "weights") -> None:
    """Refuse weights that give no numbers; masks that are added before a softmax may be infinite.

    Args:
        weights: Tensors by name.
        path: File that they are from.
        what: What they are, for the message.

    Raises:
        CheckpointError: A value is NaN or infinite; the message names the first such tensor.
    """
    for name, value in weights.items():
        found = statistics(value)
        if found is not None and found.num_nonfinite and not may_be_infinite(name, value):
            place = f"{found.first_value} at {list(found.first_nonfinite)}"
            problem = f"{found.num_nonfinite} of {value.numel()} values of {name} are not finite; the first is {place}"
            raise _refused(path, f"the {what} cannot be used: {problem}", "K08")


def _refused(path: str | Path, problem: str, code: str) -> CheckpointError:
    fix = f"xectool inspect-ckpt {in_shell(path)}   # all that is wrong, and the other checkpoints of the run"
    return CheckpointError(problem, where=str(path), fix=fix, code=code)
