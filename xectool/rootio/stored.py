"""A reading as its branch holds it: those that are read are float32, which has not all digits of other types."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from xectool.detector.markers import decimal
from xectool.errors import DataFileError
from xectool.rootio.reader import EventFile


def stored_as(path: str, tree: str, branch: str, place: tuple[int, int], number: float) -> float:
    """Return a number as a branch holds it: whole, a float64, or the decimal that a float32 is called by.

    Args:
        path: The file.
        tree: Its tree.
        branch: The branch.
        place: Entry and component that have the number, as far as is known.
        number: The number as a float32; its decimal where the file does not tell another one.
    """
    entry, component = place
    with suppress(DataFileError, IndexError), EventFile(path, tree) as file:
        if entry >= file.num_entries:  # an empty file among others
            return decimal(number)
        rows = file.read_entries(branch, entry, entry + 1)
        if not isinstance(rows, np.ndarray):
            import awkward as ak

            rows = np.asarray(ak.flatten(rows, axis=None))
        found = rows.reshape(-1)[component]
        with np.errstate(over="ignore"):
            is_it = np.float32(found) == np.float32(number)
        if is_it and found.dtype != np.float32:
            return float(found) if found.dtype.kind == "f" else int(found)
    return decimal(number)
