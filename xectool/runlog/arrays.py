"""Named arrays as ``numpy.savez`` keeps them, read back without believing what they say of themselves."""

from __future__ import annotations

import tokenize
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.errors.unreadable import ARCHIVE_ERRORS

_UNREADABLE: Final = (*ARCHIVE_ERRORS, TypeError, SyntaxError, tokenize.TokenError, MemoryError)


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return every array of an ``.npz``; nothing is unpickled.

    The header of an array is a line of Python, whose shape is allocated before a byte of it is read.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It cannot be read, or not as arrays.
    """
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as stored:  # numpy leaves its own open
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        raise ValueError(str(error) or type(error).__name__) from error
