"""Which checkpoints are offered to who names one that is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from xectool.config import checkpoints_near as near
from xectool.config.checkpoints_near import SHOWN, checkpoints_near, hint_of


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    place = tmp_path / "far/from/runs"
    place.mkdir(parents=True)
    return place


def made(path: Path, time_s: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (time_s, time_s))
    return path


def test_the_newest_of_a_long_list_are_kept_however_they_are_called(runs: Path) -> None:
    """It was cut by name, and the newest were never named."""
    every = [made(runs / f"one/checkpoint_epoch_{epoch}.pt", 1000 + epoch) for epoch in range(1, 31)]
    assert checkpoints_near(runs / "one/checkpoint_epoch_40.pt") == every[:-5:-1]
    assert len(every[:-5:-1]) == SHOWN


def test_the_same_directory_goes_before_the_runs_beside_it_and_those_above(runs: Path) -> None:
    above = made(runs.parent / "other/checkpoint_best.pt", 3000)
    beside = made(runs / "two/checkpoint_x.safetensors", 2000)
    older, newer = made(runs / "one/x.pth", 10), made(runs / "one/checkpoint_last.pt", 20)
    made(runs / "one/config.yaml", 5000)
    made(runs / "two/model.pt", 5000)
    assert checkpoints_near(runs / "one/reg.pt") == [newer, older, beside, above]
    assert checkpoints_near(runs / "gone/reg.pt") == [beside, newer, above], "the newest run first"
    assert checkpoints_near(runs / "reg.pt") == [beside, newer, above], "the run was left out"
    assert checkpoints_near(runs / "one/reg.pt", fits=near.may_be_resumed) == [newer, older, above]


def test_a_mistyped_name_goes_before_newer_ones(runs: Path) -> None:
    best, last = made(runs / "one/checkpoint_best.pt", 10), made(runs / "one/checkpoint_last.pt", 20)
    found = checkpoints_near(runs / "one/checkpoint_bset.pt")
    assert found == [best, last]
    assert hint_of(runs / "one/checkpoint_bset.pt", found) == ", did you mean 'checkpoint_best.pt'?"


def test_a_mistyped_run_is_found_by_its_file(runs: Path) -> None:
    best = made(runs / "first/checkpoint_best.pt", 10)
    made(runs / "second/checkpoint_best.pt", 20)
    wanted = runs / "frist/checkpoint_best.pt"
    assert checkpoints_near(wanted) == [best]
    assert hint_of(wanted, [best]) == f", did you mean '{best}'?"


def test_another_number_is_another_file_and_the_newest_goes_before_it(runs: Path) -> None:
    old, new = made(runs / "one/checkpoint_epoch_2.pt", 10), made(runs / "one/checkpoint_last.pt", 20)
    wanted = runs / "one/checkpoint_epoch_21.pt"
    assert checkpoints_near(wanted) == [new, old]
    made(runs / "one/reg_1.pth", 30)
    assert not hint_of(runs / "one/reg_2.pth", checkpoints_near(runs / "one/reg_2.pth"))


def test_a_file_that_goes_away_while_it_is_looked_at_is_left_out(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, stays = made(runs / "one/checkpoint_best.pt", 20), made(runs / "one/checkpoint_last.pt", 10)
    listed = near._names

    def list_and_replace(place: Path, endings: tuple[str, ...]) -> list[str]:
        names = listed(place, endings)
        gone.unlink(missing_ok=True)
        return names

    wanted = runs / "one/zzz.pt"
    assert checkpoints_near(wanted) == [gone, stays], "both, where nothing happens meanwhile"
    monkeypatch.setattr(near, "_names", list_and_replace)
    assert checkpoints_near(wanted) == [stays]


def test_a_place_that_is_closed_or_none_holds_nothing(runs: Path) -> None:
    assert checkpoints_near(Path("/nowhere/at/all/a.pt")) == []
    file = made(runs / "file", 1)
    assert checkpoints_near(file / "below/deep/a.pt") == []


def test_an_export_is_answered_with_exports_too(runs: Path) -> None:
    graph = made(runs / "one/model.onnx", 10)
    assert checkpoints_near(runs / "one/modell.onnx") == [graph]
    assert checkpoints_near(runs / "one/modell.pt") == []
