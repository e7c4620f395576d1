"""Folders of incidents when several ranks write theirs at the same moment."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from xectool.training.record.incidents import IncidentFolders


def test_ranks_that_write_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    def rank(number: int) -> list[str]:
        folders = IncidentFolders(tmp_path, most=1000, attempt=1)
        return [folders.write({"rank": number, "step": step}, []) for step in range(40)]

    with ThreadPoolExecutor(4) as pool:
        written = [path for paths in pool.map(rank, range(4)) for path in paths]
    assert len(set(written)) == 160
    found = [json.loads((tmp_path / path / "incident.json").read_text()) for path in written]
    assert sorted((item["rank"], item["step"]) for item in found) == [(r, s) for r in range(4) for s in range(40)]
    assert not list(tmp_path.rglob("*.part"))
