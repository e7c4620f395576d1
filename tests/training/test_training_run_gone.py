"""A run whose directory is deleted or moved away in mid-run notices it, saves what it has and ends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from xectool import engine
from xectool.checkpoint import store
from xectool.errors import WorldError
from xectool.runlog.writer import RunWriter
from xectool.training.process.progress import NullObserver
from xectool.training.saving import record_place
from xectool.training.saving.record_place import RecordPlace

Config = Callable[..., Path]
Fault = Callable[[Path], object]


class Deleting(NullObserver):
    """Does something to the run directory after so many steps, or as a phase begins."""

    def __init__(self, run: Path, fault: Fault, after: int = 0, phase: str = "-") -> None:
        self.run, self.fault, self.left, self.at_phase = run, fault, after, phase

    def advanced(self, num_batches: int, values: Mapping[str, float]) -> None:
        if num_batches and values:
            self.left -= 1
            if not self.left:
                self.fault(self.run)

    def phase(self, name: str, num_batches: int, done: int = 0) -> None:
        if name.startswith(self.at_phase):
            self.fault(self.run)


def moved(run: Path) -> None:
    run.rename(run.with_name("moved"))


def lost(config: Path, observer: Deleting) -> WorldError:
    with pytest.raises(WorldError) as caught:
        engine.train(config, run_name="r", observer=observer)
    assert (caught.value.code, caught.value.exit_code, caught.value.where) == ("XT-RUN-GONE", 3, str(observer.run))
    return caught.value


@pytest.mark.parametrize("fault", [shutil.rmtree, moved])
def test_a_run_whose_directory_goes_ends_at_its_next_checkpoint(
    tiny_config: Config, tmp_path: Path, fault: Fault
) -> None:
    run = tmp_path / "runs" / "r"
    error = lost(tiny_config(training={"epochs": 50}), Deleting(run, fault, after=3))
    assert "before step 5" in error.problem
    assert store.load(run / store.LAST_NAME).step == 5  # an epoch has 5 steps
    assert str(run / store.LAST_NAME) in error.fix
    assert "diagnose run" not in error.fix  # there is no record to look into


def test_it_is_noticed_inside_an_epoch(tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_place, "LOOK_EVERY_S", 0.0)
    error = lost(tiny_config(), Deleting(tmp_path / "runs" / "r", shutil.rmtree, after=2))
    assert "before step 2 " in error.problem


def test_it_is_noticed_where_the_validation_writes_predictions(sensor_config: Config, tmp_path: Path) -> None:
    config = sensor_config("mae")
    run = tmp_path / "runs" / "r"
    error = lost(config, Deleting(run, shutil.rmtree, phase="validate 1"))
    assert store.load(run / store.LAST_NAME).step == 5
    assert "saved there anew" in error.problem


def test_checkpoints_of_a_run_that_took_the_place_stay(tiny_config: Config, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "r"

    def retaken(directory: Path) -> None:
        shutil.rmtree(directory)
        (directory / "rec" / "a0001").mkdir(parents=True)
        (directory / "rec" / "lock").write_text(f"{os.getppid()}\n")

    error = lost(tiny_config(), Deleting(run, retaken, after=2))
    assert "nothing was saved" in error.problem
    assert not (run / store.LAST_NAME).exists()


def test_a_directory_that_does_not_answer_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunWriter(tmp_path / "run") as writer:
        place = RecordPlace(tmp_path / "run", writer.attempt)
        assert not place.is_gone()
        monkeypatch.setattr(Path, "stat", _stale)
        assert not place.is_gone()


def test_a_directory_with_a_new_number_is_not_gone(tmp_path: Path) -> None:
    """File systems of programs, such as sshfs, number anew what they have forgotten."""
    with RunWriter(tmp_path / "run") as writer:
        place = RecordPlace(tmp_path / "run", writer.attempt)
        (directory,) = (tmp_path / "run" / "rec").glob("a*")
        shutil.copytree(directory, tmp_path / "copy")
        directory.rename(tmp_path / "before")
        (tmp_path / "copy").rename(directory)
        assert not place.is_gone()
        shutil.rmtree(directory)
        assert place.is_gone()


def _stale(*_: object, **__: object) -> os.stat_result:
    raise OSError(5, "Input/output error")
