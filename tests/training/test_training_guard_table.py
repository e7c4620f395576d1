"""docs/guards.md says of every guard what the catalogue says, and names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from xectool.config.guard_catalogue import GUARDS, GuardFact

ROOT = Path(__file__).parents[2]
ROWS = {
    cells[0]: cells
    for line in (ROOT / "docs" / "guards.md").read_text().splitlines()
    if line.startswith("| G")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}


def test_every_guard_has_one_row() -> None:
    assert list(ROWS) == [guard.code for guard in GUARDS]


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.code)
def test_row_is_that_of_the_catalogue_and_its_tests_exist(guard: GuardFact) -> None:
    code, name, title, period, action, control, tests = ROWS[guard.code]
    assert (code, name.strip("`"), title, period, action) == guard[:5]
    assert control.replace("`", "") == guard.control
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
    assert named
    for path, function in named:
        assert f"def {function}(" in (ROOT / path).read_text()
