"""What ``check-data`` prints leads from files with names of their own to a training, a line pasted after the other."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.engine.check_lines import Told

PATHS = ("own events/run 1.root", "own events/run 2.root")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files with spaces in their names, other trees before the one with the events, and names of their own."""
    folder = tmp_path_factory.mktemp("walk")
    (folder / "own events").mkdir()
    for seed, path in enumerate(PATHS, 1):
        engine.simulate(str(folder / "simulated.root"), events=24, seed=seed)
        values = uproot.open(f"{folder}/simulated.root:tree").arrays(library="np")
        with uproot.recreate(folder / path) as file:
            file["calibration"] = {"gain": np.ones(4760, np.float32), "offset": np.zeros(4760, np.float32)}
            file["sev"] = {
                "xec_npho": values["npho"],
                "xec_time": values["relative_time"],
                "RunNumber": values["run"],
                "EventNumber": values["event"],
                "energyTruth": values["energyTruth"],
                "uvwTruth": values["uvwTruth"],
            }
    return folder


def test_pasted_one_after_the_other_the_lines_end_in_a_training(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    words, seen = ["check-data", PATHS[0], "--against", PATHS[1]], []
    while words[0] == "check-data":
        assert words not in seen, f"in a circle: {words}"
        seen.append(words)
        line = xectool(*words, "--json").document["result"]["next"]
        program, *words = shlex.split(line, comments=True)
        assert program == "xectool", line
    assert [len(words), words[:2], words[-2:]] == [18, ["config", "init"], [">", "config.yaml"]], words
    Path("config.yaml").write_text(xectool(*words[:-2]).out)
    again = xectool("check-data", PATHS[0], "--config", "config.yaml", "--deep", "--set", "data.batch_size=8", "--json")
    training = shlex.split(again.document["result"]["next"])[1:]
    assert training == ["train", "config.yaml", "--set", "data.batch_size=8", "--dry-run"]
    assert xectool(*training).code == 0


def test_a_line_keeps_the_names_that_were_told(folder: Path, xectool: Callable[..., Any]) -> None:
    told = ("--set", "data.tree_name=sev", "--set", "data.time_branch=xec_time")
    run = xectool("check-data", folder / PATHS[0], *told, "--json")
    assert run.code == 1
    line = shlex.split(run.document["result"]["next"])
    assert {"data.tree_name=sev", "data.time_branch=xec_time", "data.npho_branch=xec_npho"} <= set(line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("xectool check-data b.root --set data.npho_branch=n", "b.root --config 'c 1.yaml' --set data.npho_branch=n"),
        ("xectool check-data b.root:t --config d.yaml", "b.root:t --set data.npho_branch=old --config d.yaml"),
        ("xectool check-data 'b c.root'   # why", "'b c.root' --config 'c 1.yaml' --set data.npho_branch=old   # why"),
    ],
)
def test_what_a_line_says_itself_holds(line: str, expected: str) -> None:
    told = Told(["a.root"], "c 1.yaml", ["data.npho_branch=old"])
    assert told.again(line) == f"xectool check-data {expected}"


def test_the_other_sample_is_not_compared_with_itself() -> None:
    told = Told(["a.root"], against=["b.root"])
    assert told.again("xectool check-data a.root --deep") == "xectool check-data a.root --against b.root --deep"
    assert told.again("xectool check-data b.root:t --deep") == "xectool check-data b.root:t --deep"


def test_other_advice_stays_as_it_is() -> None:
    told = Told(["a.root"], "c.yaml", ["data.npho_branch=old"])
    assert [told.again(line) for line in ("", "--set data.batch_size=4", "ls -l 'a")] == [
        "",
        "--set data.batch_size=4",
        "ls -l 'a",
    ]


def test_many_files_are_named_by_a_word_and_go_into_the_configuration_as_the_pattern_they_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"run_{number}.root" for number in range(9)]
    for name in [*names, "config.yaml"]:
        Path(name).touch()
    few, many = Told(["a b.root", "*.root"]), Told(names, deep=True)
    assert (few.inputs(), many.inputs()) == ("'a b.root' '*.root'", "DATA")
    whole = many.following("DATA", has_hashes=True)
    assert whole == "xectool config init --set 'data.train_path=run_*.root' > config2.yaml"  # config.yaml is there
    part = Told(names[1:], deep=True).following("DATA", has_hashes=True)
    assert shlex.split(part)[4] == f"data.train_path=[{', '.join(names[1:])}]"  # the pattern would take another one
