"""Numbers as their branches hold them, for lines to paste; where a file does not tell, the decimal of the float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import uproot
from xectool.rootio.stored import stored_as

NUMBER = -999.12345678


@pytest.mark.parametrize(
    ("name", "branch", "place", "found"),
    [
        ("one", "npho", (0, 1), NUMBER),
        ("one", "npho", (0, 0), -999.1235),
        ("one", "npho", (0, 9), -999.1235),
        ("one", "npho", (7, 1), -999.1235),
        ("one", "other", (0, 1), -999.1235),
        ("empty", "npho", (0, 1), -999.1235),
        ("none", "npho", (0, 1), -999.1235),
    ],
)
def test_a_number_is_that_of_its_place_or_a_decimal(
    tmp_path: Path, name: str, branch: str, place: tuple[int, int], found: float
) -> None:
    """An empty file among those of a sample ended the check in a traceback."""
    for file, rows in (("one", 1), ("empty", 0)):
        with uproot.recreate(tmp_path / f"{file}.root") as written:
            tree = written.mktree("tree", {"npho": ("f8", (2,))})
            if rows:
                tree.extend({"npho": np.array([[1.0, NUMBER]])})
    path = str(tmp_path / f"{name}.root")
    assert stored_as(path, "tree", branch, place, float(np.float32(NUMBER))) == found
