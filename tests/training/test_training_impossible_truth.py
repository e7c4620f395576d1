"""An event whose truth `check-data` calls impossible is not trained on: named, counted, with the line that says so."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.config.impossible_room import room_for_impossible
from xectool.config.load import load_config
from xectool.data.source import open_source
from xectool.detector.truth_ranges import RANGES, impossible
from xectool.engine.training_run.result import TrainResult
from xectool.findings import Finding
from xectool.rootio.writer import TreeWriter
from xectool.runlog.reader import RunReader
from xectool.training.events.targets import resolve_target_scaling, rows_left_out, stretched_scales

Config = Callable[..., Path]
TASKS = {
    "energy": {"enabled": True, "scale": "auto", "shift": "auto"},
    "uvwFI": {"enabled": True, "scale": "auto", "shift": "auto"},
}


@pytest.fixture
def written(tiny_data: Path, tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a file of the tiny data with some truths replaced, and returns its path."""

    def write(name: str, source: str = "train_000.root", **truths: dict[int, object]) -> str:
        with uproot.open(tiny_data / source) as file:
            columns = {key: values.copy() for key, values in file["tree"].arrays(library="np").items()}
        for branch, values in truths.items():
            for entry, value in values.items():
                columns[branch][entry] = value
        target = tmp_path / name
        with TreeWriter(target, {key: (v.dtype.str[1:], v.shape[1:]) for key, v in columns.items()}) as writer:
            writer.extend(columns)
        return str(target)

    return write


def left_out(result: TrainResult) -> set[tuple[str, int]]:
    """Return file and entry of the events in quarantine; empty without any."""
    path = Path(result.run_dir) / "quarantine.json"
    if not path.is_file():
        return set()
    return {(Path(event["file"]).name, event["entry"]) for event in json.loads(path.read_text())["events"]}


def outside(findings: tuple[Finding, ...]) -> list[Finding]:
    return [item for item in findings if item.code == "DAT-16" and "outside of what is possible" in item.problem]


def test_a_truth_that_check_data_calls_impossible_is_not_trained_on(
    tiny_config: Config, written: Callable[..., str]
) -> None:
    """1.5 GeV was impossible for one and trained on by the other, whose range reached from -1 to 2 GeV."""
    path = written("odd.root", energyTruth={7: 1.5, 11: -0.2}, uvwTruth={3: (0.0, 0.0, 60.0)})
    val = written("val.root", "val.root", energyTruth={2: 1.5})
    assert {item.where.split()[2] for item in outside(engine.check_data(path).findings)} == {"energyTruth", "uvwTruth"}
    config = tiny_config(data={"train_path": path, "val_path": val}, tasks=TASKS)
    result = engine.train(config, max_steps=8)
    assert left_out(result) == {("odd.root:tree", entry) for entry in (3, 7, 11)}
    told = [event for event in RunReader(Path(result.run_dir)).events() if event.kind == "implausible_event"]
    reasons = [event.data["reasons"][0] for event in told]
    assert "the truth of task energy is 1.5 GeV" in reasons
    energy, position, validated = outside(result.findings)
    assert energy.problem.endswith("; 2 such in all, left out of the training")
    assert position.problem.endswith("; 1 such in all, left out of the training")
    assert validated.problem.endswith("is 1.5 GeV: outside of what is possible; 1 such in all")
    settings = {
        item.fix.partition("leave these events out: --set ")[2].partition("; ")[0] for item in (energy, position)
    }
    (line,) = settings  # one for all: of two the second would undo the first
    overrides = shlex.split(line)
    again = engine.train(config, overrides=overrides, max_steps=8, run_name="pasted")
    assert (outside(again.findings), left_out(again)) == ([], set())


@pytest.mark.parametrize("guards", [{"quarantine": False}, {"on_input_scale": "warn"}, {"max_quarantined": 0.0}])
def test_what_guards_leave_in_is_told_as_such(
    tiny_config: Config, written: Callable[..., str], guards: dict[str, object]
) -> None:
    path = written("odd.root", energyTruth={7: 1.5})
    result = engine.train(tiny_config(data={"train_path": path}, tasks=TASKS, guards=guards), max_steps=8)
    (found,) = outside(result.findings)
    assert (found.problem.endswith("; 1 such in all"), left_out(result)) == (True, set())


def test_a_truth_that_is_left_out_sets_no_scale(tiny_config: Config, written: Callable[..., str]) -> None:
    path = written("odd.root", energyTruth={7: 1.2})
    config = load_config(tiny_config(data={"train_path": path}, tasks=TASKS)).config
    source = open_source(config.data, "train", tasks=("energy", "uvwFI"), require_truth=True)
    others = np.delete(source.truth(0, "energy").astype(np.float64), 7)
    assert resolve_target_scaling(config, source).tasks.energy.scale == pytest.approx(others.std())


def test_many_such_truths_are_no_single_events(tiny_config: Config, written: Callable[..., str]) -> None:
    """A mark that is neither NaN nor 1e10 in a third of the events: told with its line, as before."""
    path = written("marked.root", uvwTruth=dict.fromkeys(range(7), -9999.0))
    result = engine.train(tiny_config(data={"train_path": path}, tasks=TASKS), max_steps=2)
    (found,) = outside(result.findings)
    assert (found.problem.endswith("; 7 such in all"), left_out(result)) == (True, set())


def test_sound_events_and_marks_of_unknown_truth_are_left_in(tiny_config: Config, written: Callable[..., str]) -> None:
    path = written("marks.root", energyTruth={2: np.nan, 4: 1e10, 5: 0.0, 6: 1.0}, uvwTruth={3: 1e10})
    result = engine.train(tiny_config(data={"train_path": path}, tasks=TASKS), max_steps=8)
    assert (outside(result.findings), left_out(result)) == ([], set())


@pytest.mark.parametrize("task", sorted(RANGES))
def test_the_ends_of_a_range_are_possible_and_what_lies_beyond_is_not(task: str) -> None:
    low, high = np.array([RANGES[task].low, RANGES[task].high])
    assert not impossible(task, np.stack([low, high, np.full_like(low, 1e10), np.full_like(low, np.nan)])).any()
    step = 1e-3 * (high - low)
    assert impossible(task, np.stack([low - step, high + step])).all()


@pytest.mark.parametrize(("guards", "told"), [({}, 0), ({"on_input_scale": "warn"}, 1)])
def test_no_scale_is_told_to_be_stretched_by_what_is_left_out(
    tiny_config: Config, written: Callable[..., str], guards: dict[str, object], told: int
) -> None:
    """It was said to make the scale 13 times as wide, while it went by the others."""
    path = written("odd.root", energyTruth={7: -0.2})
    config = load_config(tiny_config(data={"train_path": path}, tasks=TASKS, guards=guards)).config
    source = open_source(config.data, "train", tasks=("energy", "uvwFI"), require_truth=True)
    assert len(list(stretched_scales(config, source))) == told


def test_what_a_resume_leaves_out_inside_an_epoch_is_not_told_again(
    tiny_config: Config, written: Callable[..., str]
) -> None:
    path = written("odd.root", energyTruth={7: -0.2, 11: -0.2})
    config = tiny_config(data={"train_path": path}, tasks=TASKS, guards={"on_input_scale": "warn"})
    assert len(outside(engine.train(config, max_steps=1).findings)) == 1
    some = engine.train(config, resume="auto", max_steps=2, overrides=["data.exclude=[odd.root:7]"])
    (found,) = outside(some.findings)
    assert "1 such in all" in found.problem
    both = engine.train(config, resume="auto", max_steps=3, overrides=["data.exclude=[odd.root:7, odd.root:11]"])
    assert (outside(both.findings), left_out(both)) == ([], {("odd.root:tree", 7), ("odd.root:tree", 11)})


def test_an_event_takes_one_place_however_many_of_its_truths_cannot_be(
    tiny_config: Config, written: Callable[..., str]
) -> None:
    """The same events were counted for each task: beyond the room, they set the scale of both."""
    entries = range(4)
    odd = {"energyTruth": dict.fromkeys(entries, 1.2), "uvwTruth": dict.fromkeys(entries, (0.0, 0.0, 400.0))}
    path = written("odd.root", **odd)
    config = load_config(tiny_config(data={"train_path": path}, tasks=TASKS)).config
    source = open_source(config.data, "train", tasks=("energy", "uvwFI"), require_truth=True)
    room = room_for_impossible(config.guards, source.num_events)
    assert 4 <= room < 8
    gone = rows_left_out(config.guards, source, ("energy", "uvwFI"))
    assert {name: int(rows.sum()) for name, rows in gone.items()} == {"energy": 4, "uvwFI": 4}


def test_more_than_can_be_named_are_said_to_be(tiny_config: Config, written: Callable[..., str]) -> None:
    path = written("odd.root", uvwTruth=dict.fromkeys(range(17), (0.0, 0.0, -30.0)))
    result = engine.train(tiny_config(data={"train_path": path}, tasks=TASKS), max_steps=1)
    assert "too many to name" in outside(result.findings)[0].fix
