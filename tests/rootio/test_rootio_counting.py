"""The number of events of files, known without reading one."""

from __future__ import annotations

from pathlib import Path

import pytest
from xectool import engine
from xectool.rootio import counting
from xectool.rootio.counting import count_events


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("counted")
    engine.simulate(str(directory / "t.root"), events=12, seed=1, files=3)
    return directory


def test_all_files_of_a_pattern_count(files: Path) -> None:
    assert count_events(str(files / "t_*.root")) == 12
    assert count_events([str(files / "t_000.root"), str(files / "t_002.root")]) == 8


def test_of_many_files_the_rest_counts_by_its_size(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST_OPENED", 1)
    assert count_events(str(files)) == pytest.approx(12, abs=1)


@pytest.mark.parametrize("spec", ["absent.root", "https://example.org/a.root", "damaged.root", "t_000.root:events"])
def test_what_cannot_be_counted_is_not_guessed(files: Path, spec: str) -> None:
    (files / "damaged.root").write_bytes(b"root" + bytes(100))
    assert count_events(spec if "://" in spec else str(files / spec)) is None
