from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from xectool.config.load import config_from_dict
from xectool.data.dead_channel_maps import DeadChannelQuery, find_dead_channels
from xectool.data.dead_masks import EventPlaces, FlaggedSensors
from xectool.data.source import open_source
from xectool.errors import DataFileError, DataUnusable, UsageError
from xectool.rootio.writer import TreeWriter


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Six events: sensors 5 and 9 dead in all of them, 7 in the last three."""
    npho = np.full((6, 4760), 10.0, np.float32)
    npho[:, 5], npho[:, 9], npho[3:, 7] = 1e10, np.nan, np.inf
    path = tmp_path / "data.root"
    with TreeWriter(path, {"npho": ("f4", (4760,)), "dead": ("i1", (4760,))}) as writer:
        writer.extend({"npho": npho, "dead": (~(npho < 9e9)).astype(np.int8)})
    return path


def test_a_text_file_lists_the_dead(tmp_path: Path) -> None:
    path = tmp_path / "dead.txt"
    path.write_text("# known\n12\n3\n")
    found = find_dead_channels(str(path))
    assert found.sensors.tolist() == [3, 12]
    assert found.mask.sum() == 2
    assert found.num_events == 0


@pytest.mark.parametrize(
    ("typed", "meant"), [("dat", "data"), ("brnch:dead", "branch:dead"), ("sqlit:///a.db", "sqlite:///a.db"), ("x", "")]
)
def test_a_mistyped_origin_is_answered_with_the_one_that_was_meant(typed: str, meant: str) -> None:
    with pytest.raises(DataFileError) as refused:
        find_dead_channels(typed)
    assert refused.value.fix == (meant or "give a text file with one sensor id a line")


@pytest.mark.parametrize("origin", ["data", "branch:dead"])
def test_only_sensors_that_are_dead_in_every_event_are_dead(data: Path, origin: str) -> None:
    found = find_dead_channels(origin, DeadChannelQuery(files=[str(data)]))
    assert found.sensors.tolist() == [5, 9]
    assert found.share[7] == 0.5
    assert found.num_events == 6


def test_looking_stops_at_the_wanted_number_of_events(data: Path) -> None:
    other = data.with_name("other.root")
    other.write_bytes(data.read_bytes())
    files = [str(data), str(other)]
    assert find_dead_channels("data", DeadChannelQuery(files=files, max_events=3)).num_events == 3
    assert find_dead_channels("data", DeadChannelQuery(files=files, max_events=9)).num_events == 9


def test_a_missing_flag_branch_is_named(data: Path) -> None:
    with pytest.raises(DataFileError, match="did you mean 'dead'"):
        find_dead_channels("branch:deads", DeadChannelQuery(files=[str(data)]))


def test_data_without_files_is_refused() -> None:
    with pytest.raises(DataUnusable, match="name data files"):
        find_dead_channels("data")


def test_a_database_is_asked_for_the_run() -> None:
    class Database:
        def dead_channels(self, run_number: int) -> np.ndarray:
            return np.array([run_number - 429_999], np.int64)

    query = DeadChannelQuery(run_number=430_000, database=lambda url: Database())
    assert find_dead_channels("sqlite:///conditions.db", query).sensors.tolist() == [1]
    with pytest.raises(UsageError, match="--run 430000"):
        find_dead_channels("sqlite:///conditions.db")


@pytest.mark.parametrize(("dtype", "wrong"), [("f4", 0.5), ("f8", np.nan), ("i4", 2), ("i1", -1), ("f4", 1e10)])
def test_a_branch_of_other_values_is_never_taken_for_flags(tmp_path: Path, dtype: str, wrong: float) -> None:
    path, branch = tmp_path / "flags.root", np.zeros((5, 4760), dtype)
    branch[:, 3] = 1
    npho = np.ones((5, 4760), np.float32)
    for value in (1, wrong):
        branch[3, 7] = value
        with TreeWriter(path, dict.fromkeys(("flags", "npho", "relative_time"), (dtype, (4760,)))) as writer:
            writer.extend({"flags": branch, "npho": npho.astype(dtype), "relative_time": npho.astype(dtype)})
        config = config_from_dict({"kind": "mae"}, "test").data
        source = open_source(config, [str(path)], tasks=(), require_truth=False)
        events = EventPlaces(npho[1:], np.zeros(4, np.int64), np.arange(1, 5))
        calls = (
            lambda: find_dead_channels("branch:flags", DeadChannelQuery(files=[str(path)])).mask,
            lambda source=source, events=events: FlaggedSensors(source, "flags").mask(events)[0],
        )
        for call in calls:
            if value == 1:  # the control: flags of any type are taken
                assert np.flatnonzero(call()).tolist() == [3]
                continue
            with pytest.raises(DataFileError, match="sensor 7 is") as caught:
                call()
            assert caught.value.where.endswith("branch flags entry 3")
