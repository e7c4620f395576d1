"""Events with the readings of another are counted whatever numbers they have; sound ones never are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.config.load import load_config
from xectool.data.batch import EventBatch
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.ranking import diagnose
from xectool.rootio.writer import TreeWriter
from xectool.training.healing.repeated_readings import RepeatedReadings
from xectool.training.process.device import plan_execution
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.build import build_parts, open_data


@pytest.fixture
def batch(tiny_config: Callable[..., Path]) -> EventBatch:
    """Forty events of two files, with their extremes."""
    data = open_data(load_config(tiny_config(data={"batch_size": 40, "drop_last": False})).config)
    with build_parts(data, plan_execution(data.config.training, "cpu"), Ranks()).train_loader as loader:
        loader.measured_epoch = 1
        return next(iter(loader.epoch(1)))


def test_copies_under_other_numbers_are_counted_and_what_is_served_twice_is_not(batch: EventBatch) -> None:
    seen = RepeatedReadings()
    seen.add([batch, batch])
    assert seen.found() is None, "the same places"
    copies = batch.take(np.array([4, 7, 11]))
    seen.add([replace(copies, run=copies.run + 5, entry=copies.entry + 1000)])
    found = seen.found()
    assert found is not None
    assert found.count == 3
    (file, entry), (other, other_entry) = found.first
    assert (other, other_entry) == (file, entry + 1000)


def test_events_without_light_or_extremes_say_nothing(batch: EventBatch) -> None:
    seen = RepeatedReadings()
    seen.add([replace(batch, extremes=None)])
    dark = batch.extremes
    assert dark is not None
    seen.add([replace(batch, extremes=dark * 0.0)])
    assert seen.found() is None


def test_a_file_written_twice_with_one_seed_is_named_by_its_readings(
    tiny_config: Callable[..., Path], tmp_path: Path
) -> None:
    for name, run in (("a", 31), ("b", 32)):
        engine.simulate(tmp_path / f"{name}.root", events=12, seed=run, detector_seed=1)
    with_copies = tmp_path / "copies.root"
    _renumbered(tmp_path / "a.root", with_copies)
    files = [str(tmp_path / "a.root"), str(tmp_path / "b.root"), str(with_copies)]
    result = engine.train(tiny_config(data={"train_path": files, "batch_size": 12}, training={"epochs": 1}))
    (cause,) = [c for c in diagnose(gather(result.run_dir)).causes if c.code == "XT-DUPLICATE-EVENTS"]
    assert cause.problem.startswith("12 events have the readings of another")


@pytest.mark.parametrize("renumbered", [False, True])
def test_copies_under_their_numbers_hide_none_under_others(
    tiny_config: Callable[..., Path], tmp_path: Path, renumbered: bool
) -> None:
    """They are other events of other files; without these, the copies are told once."""
    for name, run in (("a", 31), ("b", 32)):
        engine.simulate(tmp_path / f"{name}.root", events=12, seed=run, detector_seed=1)
    (tmp_path / "same.root").write_bytes((tmp_path / "a.root").read_bytes())
    _renumbered(tmp_path / "b.root", tmp_path / "others.root")
    names = ["a", "b", "same", *(["others"] if renumbered else [])]
    files = [str(tmp_path / f"{name}.root") for name in names]
    result = engine.train(tiny_config(data={"train_path": files, "batch_size": 12}, training={"epochs": 1}))
    (cause,) = [c for c in diagnose(gather(result.run_dir)).causes if c.code == "XT-DUPLICATE-EVENTS"]
    said = "\n".join((cause.problem, *cause.evidence))
    assert f"12 of {12 * len(names)} training events have the run and event number of another" in said
    assert ("24 events have the readings of another" in said) == renumbered
    assert said.count("events have the readings of another") == renumbered


def _renumbered(source: Path, target: Path) -> None:
    with uproot.open(source) as file:
        columns = dict(file["tree"].arrays(library="np"))
    columns["run"] = columns["run"] + 77
    with TreeWriter(target, {name: (v.dtype.str[1:], v.shape[1:]) for name, v in columns.items()}) as writer:
        writer.extend(columns)
