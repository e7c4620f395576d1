"""The mirror's notes as they may lie in a copied or damaged run: what is no process is not looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from xectool.diagnosis.hang.tracker import TrackerLook


@pytest.mark.parametrize("pid", [None, "x", -1, 1.5, True, [3]])
def test_notes_without_a_process_are_none(tmp_path: Path, pid: object) -> None:
    (tmp_path / "tracking").mkdir()
    notes = {"attempt": 1} | ({} if pid is None else {"pid": pid})
    (tmp_path / "tracking" / "state.json").write_text(json.dumps(notes))
    look = TrackerLook(tmp_path, 1)
    assert look.pids == ()
    assert look.facts({}) is None
