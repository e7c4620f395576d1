"""A jump whose record names no event, after which the user left events out that `diagnose replay` had named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xectool import engine

Write = Callable[[Any], Path]
LATE = {
    "file": "a.root:tree",
    "file_index": 0,
    "entry": 31,
    "run": 1,
    "event": 31,
    "reason": "data.exclude",
    "step": 31,
}
SAID = "; mended: attempt 2 leaves 1 further event out (data.exclude), and it did not come back"


@pytest.mark.parametrize(
    ("late", "num_train", "mended"),
    [
        ([LATE], 160, True),  # inside an epoch: the list of its order stays
        ([], 159, True),  # between two epochs
        ([], 160, False),
        ([LATE | {"step": 11}], 160, False),  # before the jump
        ([LATE | {"reason": "XT-SPIKE-EVENT"}], 160, False),  # a guard's own
        ([], 161, False),
    ],
)
def test_a_jump_is_a_note_once_the_user_leaves_events_out_and_it_does_not_come_back(
    course: Any, write_run: Write, late: list[dict[str, Any]], num_train: int, mended: bool
) -> None:
    run = course(steps=60, resume_at=30)
    run.at(22, loss=12.0, losses={"energy": 11.0, "uvwFI": 1.0})
    run.event(1, "run_start", num_train=160, steps_per_epoch=20)
    run.event(31, "run_start", num_train=num_train, steps_per_epoch=20)
    place = write_run(run)
    (place / "quarantine.json").write_text(json.dumps({"format": 1, "budget": 16, "events": late}))
    found = engine.diagnose.run(place)
    notes = [note.problem for note in found.notes if note.code == "XT-SPIKE-EVENT"]
    assert [SAID in problem for problem in notes] == [True] * mended
    assert [cause.code for cause in found.causes] == ["XT-SPIKE-EVENT"] * (not mended)
