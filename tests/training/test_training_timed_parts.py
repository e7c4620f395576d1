"""The parts of the loop that `benchmarks.loop` times by name are there: renaming one ended `make bench`."""

from __future__ import annotations

import pytest
from benchmarks.loop import PARTS


@pytest.mark.parametrize(("kind", "name"), [method for methods in PARTS.values() for method in methods])
def test_each_part_of_the_loop_that_is_timed_is_there(kind: type, name: str) -> None:
    assert callable(getattr(kind, name, None))
