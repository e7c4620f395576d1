"""The quarantine follows files that have been moved or copied, and never goes over to events of another file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.config.load import load_config
from xectool.data.loader import EventLoader
from xectool.data.plan import DataPlan
from xectool.data.source import open_source
from xectool.rootio.writer import TreeWriter
from xectool.runlog.reader import RunReader
from xectool.training.events.quarantine import ASKED, PoisonedEvent, Quarantine
from xectool.training.process.progress import NullObserver

Config = Callable[..., Path]
BAD = (2, 5, 11)
Trained = Sequence[Mapping[str, Any]]


@pytest.fixture
def moved(tiny_data: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A file where it was, and a copy of it elsewhere."""
    old, new = tmp_path / "old" / "a.root", tmp_path / "new" / "a.root"
    for path in (old, new):
        path.parent.mkdir()
        shutil.copy(tiny_data / "train_000.root", path)
    return old, new


@contextmanager
def quarantine_of(tiny_config: Config, *paths: Path) -> Iterator[Quarantine]:
    loaded = load_config(tiny_config(data={"train_path": [str(path) for path in paths]})).config
    source = open_source(loaded.data, "train", ("energy", "uvwFI"))
    with EventLoader(source, DataPlan(source.files, 8, seed=0, chunksize=64)) as loader:
        yield Quarantine(loaded.guards, loader)


def left_out_of(path: Path, entry: int, number: int = 0, reason: str = "XT-NAN-DATA") -> dict[str, Any]:
    """Return an event of a file as a quarantine lists it; ``number`` is added to its event number."""
    with uproot.open(path) as file:
        run, event = (int(file["tree"][name].array(library="np")[entry]) for name in ("run", "event"))
    return asdict(PoisonedEvent(f"{path}:tree", 0, entry, run, event + number, reason, 3))


def rewrite(path: Path, to: Path, **factors: float) -> None:
    """Write the events of a file with the values of branches times a factor."""
    with uproot.open(path) as file:
        columns = {key: values.copy() for key, values in file["tree"].arrays(library="np").items()}
    for branch, factor in factors.items():
        columns[branch] *= columns[branch].dtype.type(factor)
    write(to, columns)


def write(path: Path, columns: Mapping[str, Any]) -> None:
    with TreeWriter(path, {k: (v.dtype.str[1:], v.shape[1:]) for k, v in columns.items()}) as writer:
        writer.extend(columns)


def trained_on(*paths: Path) -> Trained:
    return [{"name": path.name, "events": 20, "entries": 20, "path": f"{path}:tree"} for path in paths]


def test_events_are_left_out_where_their_file_is_now(tiny_config: Config, moved: tuple[Path, Path]) -> None:
    old, new = moved
    state = {"events": [left_out_of(old, entry) for entry in (3, 7)]}
    with quarantine_of(tiny_config, new) as quarantine:
        quarantine.load_state_dict(state, trained_on(old))
        assert [(event.file, event.entry) for event in quarantine.events] == [(f"{new}:tree", 3), (f"{new}:tree", 7)]
        served = [entry for batch in quarantine._loader.epoch(0) for entry in batch.entry.tolist()]
        assert sorted(served) == [entry for entry in range(20) if entry not in (3, 7)]


@pytest.mark.parametrize(
    "case",
    ["other numbers", "trained on", "other name", "fewer entries", "two of them", "other readings", "other truth"],
)
def test_events_of_another_file_are_never_left_out_in_their_place(
    tiny_config: Config, moved: tuple[Path, Path], case: str
) -> None:
    """Simulated files all count their events from 0: run and event number alone are those of any of them."""
    old, new = moved
    trained, state, paths = trained_on(old), {"events": [left_out_of(old, 3)]}, [new]
    if case == "other numbers":
        state["events"] = [left_out_of(old, 3, number=1)]
    elif case == "trained on":
        trained = trained_on(old, new)
    elif case == "other name":
        paths = [new.rename(new.with_name("b.root"))]
    elif case == "fewer entries":
        trained = [{**trained[0], "entries": 30}]
    elif case in ("other readings", "other truth"):  # and the file itself is where it was
        rewrite(new, new, **{"npho" if case == "other readings" else "energyTruth": 1.5})
    else:
        paths.append(Path(shutil.copytree(new.parent, new.parent.with_name("too"))) / new.name)
    with quarantine_of(tiny_config, *paths) as quarantine:
        quarantine.load_state_dict(state, trained)
        assert quarantine.events == []


def test_of_two_files_of_one_name_that_with_the_longer_common_end_is_taken(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / root / run / "a.root" for root in ("old", "new") for run in ("run1", "run2")]
    for path in paths:
        path.parent.mkdir(parents=True)
        shutil.copy(tiny_data / "train_000.root", path)
    with quarantine_of(tiny_config, *paths[:1:-1]) as quarantine:
        quarantine.load_state_dict({"events": [left_out_of(paths[0], 3)]}, trained_on(*paths[:2]))
        assert [event.file for event in quarantine.events] == [f"{paths[2]}:tree"]


def test_the_list_on_disk_keeps_what_earlier_attempts_wrote(
    tiny_config: Config, moved: tuple[Path, Path], tmp_path: Path
) -> None:
    old, new = moved
    absent = asdict(PoisonedEvent("/gone/c.root:tree", 1, 4, 1, 4, "XT-NAN-DATA", 2))
    asked_before = left_out_of(new, 9, reason=ASKED)  # by an attempt that was given up
    before = [left_out_of(old, 3), absent, asked_before]
    (tmp_path / "quarantine.json").write_text(json.dumps({"format": 1, "events": before}))
    with quarantine_of(tiny_config, new) as quarantine:
        assert quarantine.read(tmp_path, 1, trained_on(old)) == (1, "")
        assert quarantine.try_write(tmp_path) == ""
    listed = json.loads((tmp_path / "quarantine.json").read_text())["events"]
    assert [(event["file"], event["entry"], event["step"]) for event in listed] == [
        (f"{old}:tree", 3, 3),
        ("/gone/c.root:tree", 4, 2),
        (f"{new}:tree", 3, 2),  # left out from the first step of the resume on
    ]


@pytest.mark.parametrize("case", ["stale", "directory", "no JSON"])
def test_a_list_that_cannot_be_read_costs_no_training_and_stays(
    tiny_config: Config, moved: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    path, found = tmp_path / "quarantine.json", PoisonedEvent(**left_out_of(moved[1], 3))
    if case == "directory":
        path.mkdir()
    else:
        path.write_text("{'events'" if case == "no JSON" else json.dumps({"events": [left_out_of(moved[1], 7)]}))
    read = Path.read_text

    def stale(self: Path, *args: Any, **options: Any) -> str:
        if self == path:
            raise OSError(116, "Stale file handle")
        return read(self, *args, **options)

    with quarantine_of(tiny_config, moved[1]) as quarantine, monkeypatch.context() as patch:
        if case == "stale":
            patch.setattr(Path, "read_text", stale)
        quarantine.add([found])
        added, problem = quarantine.read(tmp_path, 1)
        assert added == 0
        assert problem.startswith("quarantine.json cannot be read: ")
        assert quarantine.try_write(tmp_path) == problem
    assert path.is_dir() or ("'events'" if case == "no JSON" else '"entry": 7') in path.read_text()


@pytest.mark.parametrize("listed", [None, {}, ["a.root"], [{"file": "a.root"}], "entry"])
def test_what_is_no_event_in_the_list_is_passed_over(
    tiny_config: Config, moved: tuple[Path, Path], tmp_path: Path, listed: Any
) -> None:
    sound = left_out_of(moved[1], 3)
    if listed == "entry":
        listed = [sound | {"entry": "4"}, sound | {"later": 1}]
    (tmp_path / "quarantine.json").write_text(json.dumps({"format": 1, "events": listed}))
    with quarantine_of(tiny_config, moved[1]) as quarantine:
        read = quarantine.read(tmp_path, 5)
        assert read == (len(quarantine.events), "")
        assert [event.entry for event in quarantine.events] == [3] * (isinstance(listed, list) and len(listed) == 2)
        assert quarantine.try_write(tmp_path) == ""


class Said(NullObserver):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


def run_with_bad_events(tiny_config: Config, tiny_data: Path, place: Path) -> tuple[Path, Path]:
    """Train an epoch on a file with bad events and a sound one; return the configuration and the run."""
    place.mkdir()
    with uproot.open(tiny_data / "train_000.root") as file:
        columns = {key: values.copy() for key, values in file["tree"].arrays(library="np").items()}
    columns["energyTruth"][list(BAD)] = np.float32(-0.2)
    write(place / "bad.root", columns)
    shutil.copy(tiny_data / "train_001.root", place / "sound.root")
    config = tiny_config(data={"train_path": str(place / "*.root")}, checkpoint={"save_interval": 1})
    run = Path(engine.train(config, overrides=["training.epochs=1"]).run_dir)
    before = json.loads((run / "quarantine.json").read_text())["events"]
    assert sorted(event["entry"] for event in before) == [*BAD]
    return config, run


def test_a_run_whose_files_are_moved_goes_on_without_its_bad_events_and_all_its_steps_come_again(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    config, run = run_with_bad_events(tiny_config, tiny_data, old)
    old.rename(new)
    first = len(list(RunReader(run).steps()))
    said = Said()
    engine.train(config, resume="auto", overrides=[f"data.train_path={new}/*.root"], observer=said)
    told = f"left out of {new}/bad.root:tree, to which {old}/bad.root:tree was moved or copied: {len(BAD)} events"
    assert said.lines.count(told) == 1
    assert sum(record.num_events for record in RunReader(run).steps() if record.step > first) == 40 - len(BAD)
    listed = [(event["file"], event["entry"]) for event in json.loads((run / "quarantine.json").read_text())["events"]]
    assert sorted(listed) == sorted((f"{place}/bad.root:tree", entry) for place in (old, new) for entry in BAD)
    quarantined = [event for event in RunReader(run).events() if event.kind == "quarantine"]
    assert max(event.step for event in quarantined) <= first  # not found once more
    assert all(engine.diagnose.replay(run, step).reproduced for step in (first, first + 1, first + 5))
    health = engine.diagnose.run(run)
    assert str(old) not in health.exclude


@pytest.mark.parametrize("step", [1, 0])
def test_no_sound_event_of_another_file_of_the_same_name_is_left_out_or_blamed(
    tiny_config: Config, tiny_data: Path, tmp_path: Path, step: int
) -> None:
    """Two simulated samples of one name, with the same numbers, or (``step`` 0) with other run numbers."""
    old, new = tmp_path / "run1", tmp_path / "run2"
    config, run = run_with_bad_events(tiny_config, tiny_data, old)
    new.mkdir()
    rewrite(tiny_data / "train_000.root", new / "bad.root", npho=1.1, run=step)
    shutil.copy(old / "sound.root", new)
    first = len(list(RunReader(run).steps()))
    said = Said()
    engine.train(config, resume="auto", overrides=[f"data.train_path={new}/*.root"], observer=said)
    assert sum(record.num_events for record in RunReader(run).steps() if record.step > first) == 40
    assert not any("moved or copied" in line for line in said.lines)
    assert_no_longer_read(run, f"{old}/bad.root:tree")


def test_events_of_a_file_that_the_run_has_dropped_are_told_as_a_note_without_a_line_that_is_refused(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    config, run = run_with_bad_events(tiny_config, tiny_data, tmp_path / "old")
    health = engine.diagnose.run(run)
    assert all(health.exclude in cause.fix for cause in health.causes if cause.blamed)
    assert all(f"bad.root:tree:{entry}" in health.exclude for entry in BAD)
    engine.train(config, resume="auto", overrides=[f"data.train_path={tmp_path}/old/sound.root"])
    assert_no_longer_read(run, f"{tmp_path}/old/bad.root:tree")


def assert_no_longer_read(run: Path, name: str) -> None:
    health = engine.diagnose.run(run)
    assert health.exclude == ""
    assert not [cause for cause in health.causes if cause.blamed or "data.exclude" in cause.fix]
    assert [note for note in health.notes if f"mended: attempt 2 no longer reads {name}" in note.problem]


def test_a_quarantine_without_a_checkpoint_of_paths_does_not_guess_between_two(
    tiny_config: Config, moved: tuple[Path, Path]
) -> None:
    """Checkpoints of earlier versions kept the names of the files alone."""
    old, new = moved
    names = [{"name": "a.root", "events": 20, "entries": 20}]
    for trained, count in ((names, 1), (names * 2, 0)):
        with quarantine_of(tiny_config, new) as quarantine:
            quarantine.load_state_dict({"events": [left_out_of(old, 3)]}, trained)
            assert len(quarantine.events) == count
