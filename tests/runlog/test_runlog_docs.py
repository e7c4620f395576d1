import re
from dataclasses import fields
from pathlib import Path

import pytest
from xectool.runlog.records import AttemptRecord, EpochRecord, EventRecord, StepRecord

PAGE = (Path(__file__).parents[2] / "docs" / "recorder.md").read_text()


@pytest.mark.parametrize("kind", [AttemptRecord, StepRecord, EpochRecord, EventRecord])
def test_every_field_of_a_record_is_documented(kind):
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{kind.tag}`"))
    assert {item.name for item in fields(kind)} <= set(re.findall(r"\w+", row))
