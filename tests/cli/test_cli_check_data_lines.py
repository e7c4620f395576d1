"""What ``check-data`` prints leads from files with names of their own to a training, a line pasted after the other."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.checks.facts import FileFacts
from xectool.engine.check_lines import _ALONE, Told
from xectool.findings import Finding, Severity

PATHS = ("own events/run 1.root", "own events/run 2.root")
TASKS = "tasks: {energy: {enabled: true}, uvwFI: {enabled: true}}\n"


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


@pytest.mark.parametrize("at_once", [True, False])
def test_of_several_files_none_is_left_out_on_the_way_to_a_training(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    monkeypatch.chdir(folder)
    words = ["check-data", *(PATHS if at_once else ["own events"])]
    while words[0] == "check-data":
        run = xectool(*words, "--json")
        assert len(run.document["result"]["files"]) == 2, words
        words = shlex.split(run.document["result"]["next"], comments=True)[1:]
    (paths,) = (word for word in words if word.startswith("data.train_path="))
    assert paths == "data.train_path=" + (f"[{', '.join(PATHS)}]" if at_once else "own events")


def test_a_tree_that_one_file_alone_lacks_is_told_with_this_file(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    Path("mixed").mkdir()
    values = uproot.open("simulated.root:tree").arrays(["npho", "relative_time"], library="np")
    for name, tree, part in (("a", "tree", 0), ("b", "events", 1)):
        with uproot.recreate(f"mixed/{name}.root") as file:
            file[tree] = {branch: rows[part::2] for branch, rows in values.items()}
    line = shlex.split(xectool("check-data", "mixed", "--json").document["result"]["next"], comments=True)
    assert line[1:] == ["check-data", "mixed/b.root:events", "mixed/a.root:tree"], "a tree for both would be a circle"
    assert xectool(*line[1:], "--json").code == 0


def test_a_branch_that_one_file_names_otherwise_is_told_with_this_file(
    xectool: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both files in it the line named the branch of the one, then that of the other, and so on for ever."""
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).uniform(0, 100, (50, 4760)).astype(np.float32)
    for name, photons in (("a.root", "npho"), ("b.root", "photons2")):
        numbers = {"run": np.ones(50, np.int32), "event": np.arange(50, dtype=np.int32)}
        with uproot.recreate(name) as file:
            file["tree"] = {photons: values, "relative_time": values * np.float32(1e-9), **numbers}
    found = xectool("check-data", "a.root", "b.root", "--json")
    line, _, remark = found.document["result"]["next"].partition("   # ")
    assert line == "xectool check-data b.root --set data.npho_branch=photons2"
    assert remark == "this file alone; a run reads all of its files by the same names"
    alone = xectool("check-data", "b.root", "--json").document["result"]["next"]  # the control: no other file is there
    assert alone == line


@pytest.mark.parametrize(("name", "is_of_one"), [("photons2", True), ("BRANCH", False), ("charge", False)])
def test_of_one_file_alone_is_said_where_it_has_the_branch_and_another_has_not(name: str, is_of_one: bool) -> None:
    """It stood behind a name that is still to be filled in, and one that no file has."""
    files = [FileFacts(file, "tree", "TTree", names=(own,)) for file, own in (("a", "npho"), ("b", "photons2"))]
    line = f"xectool check-data b --set data.npho_branch={name}"
    assert Told(["a", "b"], files=files).again(line) == line + f"   # {_ALONE}" * is_of_one


def test_a_pattern_of_other_files_that_the_shell_expanded_is_the_other_sample(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    others = [f"val_{number}.root" for number in (0, 1)]
    for name in others:
        Path(name).write_bytes(Path("simulated.root").read_bytes())
    cases = (["simulated.root", "--against", *others, "--max-events", "5"], ["--against", *others])
    for words, data in zip(cases, ("simulated.root", others[1]), strict=True):
        document = xectool("check-data", *words, "--json").document
        assert [file["path"] for file in document["result"]["files"]] == [data]


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


def test_a_good_file_leads_to_a_configuration_in_two_steps_hashes_only_where_they_can_be_kept(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deep check and the one with hashes were two steps, and files in a folder of others led to one that failed."""
    path = shutil.copy(folder / "simulated.root", folder / "fresh.root")
    deep = xectool("check-data", path, "--json").document["result"]["next"]
    assert deep == f"xectool check-data {path} --deep --write-digest"
    monkeypatch.setattr(os, "access", lambda *where: False)
    deep = xectool("check-data", path, "--json").document["result"]["next"]
    assert deep == f"xectool check-data {path} --deep"
    assert xectool(*shlex.split(deep)[1:], "--json").document["result"]["next"].startswith("xectool config init ")
    monkeypatch.undo()
    line = f"xectool check-data {path} --deep --write-digest"
    assert xectool(*shlex.split(line)[1:], "--json").document["result"]["next"].startswith("xectool config init ")


def test_a_file_without_run_and_event_numbers_leads_to_a_configuration_too(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are worth having and not needed, and the line after Next was no command there."""
    values = uproot.open(f"{folder}/simulated.root:tree").arrays(library="np")
    with uproot.recreate(folder / "plain.root") as file:
        file["tree"] = {name: values[name] for name in ("npho", "relative_time", "energyTruth", "uvwTruth")}
    monkeypatch.chdir(folder)
    words, seen = ["check-data", "plain.root"], []
    while words[0] == "check-data":
        assert words not in seen, f"in a circle: {words}"
        seen.append(words)
        program, *words = shlex.split(xectool(*words, "--json").document["result"]["next"], comments=True)
        assert program == "xectool"
    assert words[:2] == ["config", "init"]


def test_a_file_without_a_truth_of_a_usual_name_is_said_to_have_none_that_was_looked_at(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = uproot.open(f"{folder}/simulated.root:tree").arrays(library="np")
    readings = {name: values[name] for name in ("npho", "relative_time")}
    with uproot.recreate(folder / "bare.root") as file:
        file["tree"] = readings | {"E_rec": values["energyTruth"]}
    monkeypatch.chdir(folder)
    words = ("check-data", "bare.root", "--json")
    (said,) = [line for line in xectool(*words).document["result"]["why"] if "no truth" in line]
    assert "not read: E_rec" in said
    named = xectool(*words, "--set", "data.truth_branches.energy=E_rec").document["result"]
    assert not [line for line in named["why"] if "no truth" in line], "the control"


def test_truths_that_are_not_there_are_named_beside_those_that_are_with_what_was_not_read(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position in branches of its components was passed over in silence where an energy was found."""
    values = uproot.open(f"{folder}/simulated.root:tree").arrays(library="np")
    parts = {name: values["uvwTruth"][:, part] for part, name in enumerate("uvw")}
    readings = {name: values[name] for name in ("npho", "relative_time")}
    with uproot.recreate(folder / "parts.root") as file:
        file["tree"] = readings | {"Egamma": values["energyTruth"], **parts}
    monkeypatch.chdir(folder)
    words = ("check-data", "parts.root", "--json")
    for told in ((), ("--set", "data.truth_branches.energy=Egamma")):  # told of as a guess, and named
        run = xectool(*words, *told)
        (said,) = [line for line in run.document["result"]["why"] if "truth was looked at" in line]
        assert said.startswith(
            "not every truth was looked at: emiAng, timeTruth, uvwTruth, emiVec, nGammaTruth are not"
        )
        assert "there; not read: u, v, w (" in said
        assert run.code == 0
    whole = xectool("check-data", "simulated.root", "--json").document["result"]["why"]
    assert not [line for line in whole if "truth was looked at" in line], "the control"


def test_files_without_truth_lead_to_a_training_that_needs_none(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They led to a regressor, which no training takes."""
    monkeypatch.chdir(folder)
    values = uproot.open(f"{folder}/simulated.root:tree").arrays(library="np")
    with uproot.recreate(folder / "raw.root") as file:
        file["rec"] = {"nphe": values["npho"], "relative_time": values["relative_time"]}
    settings = ["data.tree_name=rec", "data.npho_branch=nphe", "training.lr=1e-4"]
    others = [
        "tasks.energy.enabled=true",
        "model.hidden_dim=8",
        "data.fiducial.enabled=true",
    ]  # of a regressor, of truth
    told = [f"--set={text}" for text in (*settings, *others)]
    line = xectool("check-data", "raw.root", *told, "--deep", "--write-digest", "--json").document["result"]["next"]
    words = shlex.split(line, comments=True)[1:]
    assert words[:4] == ["config", "init", "--kind", "mae"]
    Path("raw.yaml").write_text(xectool(*words[:-2]).out)
    assert all(f"--set {text}" in line for text in settings)
    assert not [text for text in others if text in line], "a masked autoencoder has none of these"
    same = ("--set=data.val_path=raw.root", "--set=data.allow_overlap=true")
    assert xectool("train", "raw.yaml", *same, "--dry-run", "--json").document["status"] == "ok"


def test_the_other_sample_is_not_compared_with_itself() -> None:
    trees = Told(["a.root:train"], against=["a.root:val"])
    assert trees.again("xectool check-data a.root:train --deep") == (
        "xectool check-data a.root:train --against a.root:val --deep"
    )
    assert trees.again("xectool check-data a.root:val --deep") == "xectool check-data a.root:val --deep"
    told = Told(["a.root"], against=["b.root"])
    assert told.again("xectool check-data a.root --deep") == "xectool check-data a.root --against b.root --deep"
    for line in ("b.root:tree --deep", "b.root:events --deep", "b.root --deep --set data.tree_name=events"):
        assert told.again(f"xectool check-data {line}") == f"xectool check-data {line}"


@pytest.mark.parametrize("data", [["a.root", "b.root"], ["b.root", "a.root"]])
def test_a_file_of_both_samples_is_still_compared_whatever_the_order(data: list[str]) -> None:
    line = Told(data, against=["b.root"]).again(f"xectool check-data {' '.join(data)} --deep")
    assert line == f"xectool check-data {' '.join(data)} --against b.root --deep"


def test_another_tree_of_the_same_file_is_still_compared_with(folder: Path, xectool: Callable[..., Any]) -> None:
    path = folder / "both.root"
    values = uproot.open(f"{folder}/simulated.root:tree").arrays(library="np")
    with uproot.recreate(path) as file:
        for part, tree in enumerate(("tree", "more")):
            file[tree] = {name: values[name][part::2] for name in ("npho", "relative_time", "run", "event")}
    run = xectool("check-data", f"{path}:more", "--against", path, "--json")
    line = shlex.split(run.document["result"]["next"])
    assert line == ["xectool", "check-data", f"{path}:more", "--against", str(path), "--deep", "--write-digest"]
    named = Told(["a.root:t"], overrides=["data.tree_name=t"], against=["a.root"], tree="t")
    assert "--against" not in named.again("xectool check-data a.root:t --deep")
    assert "--against" not in Told(["c.root"], against=["a.root"]).again(
        "xectool check-data a.root:t --set data.tree_name=t"
    )


def test_a_line_keeps_how_it_was_checked(folder: Path, xectool: Callable[..., Any], tmp_path: Path) -> None:
    how = ("--max-events", "12", "--plots", str(tmp_path / "its plots"), "--time-limit", "50", "--write-digest")
    told = ("--set", "data.tree_name=sev", "--set", "data.time_branch=xec_time")
    for flags in (how, (*how, "--deep")):
        line = shlex.split(xectool("check-data", folder / PATHS[0], *told, *flags, "--json").document["result"]["next"])
        assert set(flags) <= set(line), "another branch is proposed, and the rest holds"
        assert line.count("--write-digest") == 1
    deeper = Told(["a.root"], flags=["--max-events 12", "--plots p"]).again("xectool check-data a.root --deep")
    assert deeper == "xectool check-data a.root --plots p --deep"  # all that was left out
    other = Told(["a.root"], against=["b.root"], flags=["--write-digest"]).again("xectool check-data b.root")
    assert other == "xectool check-data b.root"


def test_lines_about_hashes_and_time_name_the_tree(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, side = f"{folder / PATHS[0]}:sev", folder / f"{PATHS[0]}.digest.json"
    side.write_text("{")
    told = ("--set", "data.npho_branch=xec_npho", "--set", "data.time_branch=xec_time")
    line = shlex.split(xectool("check-data", name, *told, "--json").document["result"]["next"])
    assert line[:3] == ["xectool", "check-data", name]
    assert xectool(*line[1:], "--json").document["result"]["digests"] == [str(side)]
    side.unlink()
    monkeypatch.setenv("PYTHONPATH", str(slow_start(folder)))
    line = shlex.split(xectool("check-data", name, "--time-limit", "1", "--json").document["result"]["next"])
    assert line == ["xectool", "check-data", name, "--time-limit", "10"]


def test_a_file_that_was_simulated_again_has_no_hashes_of_the_one_before(
    xectool: Callable[..., Any], tmp_path: Path
) -> None:
    path, side = tmp_path / "s.root", tmp_path / "s.root.digest.json"
    xectool("simulate", path, "--events", "4")
    assert xectool("check-data", path, "--write-digest", "--json").document["result"]["digests"] == [str(side)]
    again = xectool("simulate", path, "--events", "4")
    assert f"removed, recorded hashes of what lay there before: {side}" in " ".join(again.err.split())
    assert xectool("check-data", path, "--deep", "--json").code == 0
    side.write_text("{}")
    again = xectool("simulate", path, "--events", "4", "--json").document["result"]
    assert (again["replaced"], again["removed"]) == ([str(path)], [str(side)])


def test_a_file_that_others_wrote_anew_is_one_error_with_the_line_that_records_it_again(
    xectool: Callable[..., Any], tmp_path: Path
) -> None:
    """It was one for each branch, and no fix fitted: the same hashes refused to be replaced."""
    path, side = tmp_path / "it's new.root", tmp_path / "it's new.root.digest.json"
    told = ("--set", "data.npho_branch=light")
    values = seen_as(tmp_path, seed=1), seen_as(tmp_path, seed=2)
    with uproot.recreate(path) as file:
        file["tree"] = values[0]
    assert xectool("check-data", path, *told, "--write-digest", "--json").document["result"]["digests"] == [str(side)]
    with uproot.recreate(path) as file:
        file["tree"] = values[1]
    run = xectool("check-data", path, *told, "--deep", "--json")
    (found,) = [item for item in run.document["findings"] if item["severity"] == "error"]
    assert (run.code, found["code"], found["where"]) == (1, "DAT-02", f"{path}:tree")
    told_of = found["problem"].partition(" branches: ")[2].split(", ")
    assert {"light", "relative_time", "energyTruth"} <= set(told_of)
    assert "light: 1 of 1 baskets or pages, of entries 0 to 4" in found["evidence"]
    assert len(found["evidence"]) == len(told_of) + 1
    copy, _, anew = found["fix"].partition("; where it was written anew on purpose: ")
    assert copy == "copy the file again from where it was made, or take it out of the list"
    remove, check = anew.split(" && ")
    command, gone = shlex.split(remove)
    assert (command, gone) == ("rm", str(side))
    assert xectool(*shlex.split(check)[1:], "--json").code == 1, "the control: hashes that do not fit stay"
    side.unlink()
    done = xectool(*shlex.split(check)[1:], "--json")
    assert (done.code, done.document["result"]["digests"]) == (0, [str(side)])


def seen_as(folder: Path, seed: int) -> dict[str, Any]:
    """Return simulated events under a name of their own."""
    engine.simulate(str(folder / "other.root"), events=4, seed=seed)
    values = uproot.open(f"{folder}/other.root:tree").arrays(library="np")
    return {"light": values.pop("npho"), **values}


def slow_start(folder: Path) -> Path:
    """Return a folder whose ``sitecustomize`` makes the process that opens files wait before it opens one."""
    (folder / "slow").mkdir()
    code = "uproot.open = lambda *_, **__: time.sleep(30)"
    code = f"import sys, time, uproot\nif 'xectool.checks.sandbox' in sys.orig_argv:\n    {code}\n"
    (folder / "slow" / "sitecustomize.py").write_text(code)
    return folder / "slow"


def test_a_file_without_the_suffix_is_shared_among_workers(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    Path("run7.dat").write_bytes(Path("simulated.root").read_bytes())
    Path("dat.yaml").write_text("kind: regressor\ndata: {num_workers: 1, batch_size: 8}\n" + TASKS)
    run = xectool("check-data", "run7.dat", "--config", "dat.yaml", "--json")
    assert run.document["result"]["sharing"]["shares"]
    assert not [found for found in run.document["findings"] if "does not exist" in found["problem"]]


def test_other_advice_stays_as_it_is() -> None:
    told = Told(["a.root"], "c.yaml", ["data.npho_branch=old"])
    assert [told.again(line) for line in ("", "--set data.batch_size=4", "ls -l 'a")] == [
        "",
        "--set data.batch_size=4",
        "ls -l 'a",
    ]


def test_many_files_are_named_and_go_into_the_configuration_as_the_pattern_they_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"run_{number}.root" for number in range(9)]
    for name in [*names, "config.yaml"]:
        Path(name).touch()
    few, many = Told(["a b.root", "*.root"]), Told(names, deep=True)
    assert (few.inputs(), many.inputs()) == ("'a b.root' '*.root'", "'run_*.root'")
    assert Told(names[1:]).inputs() == " ".join(names[1:])
    whole = many.following("", has_hashes=True)
    assert whole.partition("   # ")[0] == "xectool config init --set 'data.train_path=run_*.root' > config2.yaml"
    assert Path("config.yaml").exists(), "so it is another one"
    part = Told(names[1:], deep=True).following("", has_hashes=True)
    assert shlex.split(part)[4] == f"data.train_path=[{', '.join(names[1:])}]"  # the pattern would take another one


def test_directories_are_named_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that finds directories opens none of their files: "'d0' is a directory, not a file"."""
    monkeypatch.chdir(tmp_path)
    folders = [f"d{number}" for number in range(6)]
    for name in folders:
        Path(name).mkdir()
    assert Told(folders).inputs() == " ".join(folders)


def test_of_several_advices_the_next_line_is_one_that_can_be_pasted(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    names = ("--set", "data.run_branch=RunNumber", "--set", "data.event_branch=EventNumber")
    small = (*names, "--set", "tasks.uvwFI.enabled=false", "--set", "data.val_path='own events/run 2.root'")
    Path("small.yaml").write_text(
        "kind: regressor\ndata: {tree_name: sev, npho_branch: xec_npho, time_branch: xec_time}\n" + TASKS
    )
    run = xectool("check-data", PATHS[0], "--config", "small.yaml", *small, "--json")
    assert run.document["findings"][0]["fix"] == "--set data.batch_size=24"
    program, *line = shlex.split(run.document["result"]["next"])
    assert (program, line[:2], line[-1]) == ("xectool", ["check-data", PATHS[0]], "data.batch_size=24")
    assert [word in line for word in (*small, "small.yaml")] == [True] * 9
    assert "data.batch_size" not in json.dumps(xectool(*line, "--json").document["findings"])


@pytest.mark.parametrize(
    ("fix", "line"),
    [
        ("--set data.truth_branches.energy=ENERGY", "--set data.truth_branches.energy=ENERGY"),
        ("--set data.val_path='[A.root, B.root]'", "--set 'data.val_path=[A.root, B.root]'"),
        ("--set data.chunksize=8   # or more, or another file", "--set data.chunksize=8   # or more, or another file"),
        ("--set checkpoint.save_dir=PATH  # on a larger disk", None),
        ("--set data.cache_limit_gb=GB", None),
        ("--set tasks.energy.enabled=true, or --set reweighting.energy.enabled=false", None),
        ("--set data.cache='a, or so", None),
    ],
)
def test_names_in_capitals_are_values_and_what_is_to_fill_in_or_prose_is_no_line(fix: str, line: str | None) -> None:
    step = Told(["a.root"]).first_step([finding(fix), finding("xectool check-data a.root --deep")])
    assert step == f"xectool check-data a.root {line or '--deep'}"


def finding(fix: str) -> Finding:
    return Finding("DAT-20", Severity.WARNING, "", "", (), fix)


def test_the_truth_that_is_left_is_found_beside_the_counters_of_varying_branches(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    values = uproot.open(f"{PATHS[0]}:sev").arrays(library="np")
    with uproot.recreate("varying.root") as file:
        types = {"charge": "var * float32", "hit_t": "var * float32", "E_MeV": "float32", "where": ("float32", (3,))}
        file.mktree("calo", types)
        readings = {"charge": values["xec_npho"], "hit_t": values["xec_time"].astype(np.float32)}
        rest = {"E_MeV": 1e3 * values["energyTruth"].ravel(), "where": values["uvwTruth"]}
        file["calo"].extend({name: ak.from_regular(ak.Array(rows)) for name, rows in readings.items()} | rest)
    Path("varying.yaml").write_text(
        "kind: regressor\ndata: {tree_name: calo, npho_branch: charge, time_branch: hit_t}\n" + TASKS
    )
    run = xectool("check-data", "varying.root", "--config", "varying.yaml", "--json")
    line = shlex.split(run.document["result"]["next"])
    assert {"data.truth_branches.energy=E_MeV", "data.truth_branches.uvwFI=where"} <= set(line)
    found = xectool(*line[1:], "--json").document["findings"]
    (error,) = (item["problem"] for item in found if item["severity"] == "error")
    assert "looks like MeV" in error


def test_the_first_line_names_the_branches_of_the_tree_that_it_proposes(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It named the tree alone; the branches came with the second check."""
    monkeypatch.chdir(folder)
    for files in (PATHS[:1], PATHS):
        found = xectool("check-data", *files, "--json").document
        line = shlex.split(found["result"]["next"], comments=True)
        names = {"npho_branch=xec_npho", "time_branch=xec_time", "run_branch=RunNumber", "event_branch=EventNumber"}
        settings = {word.removeprefix("data.") for word in line if word.startswith("data.")}
        assert settings == {"tree_name=sev", *names}
        assert line[2 : 2 + len(files)] == list(files)
        after = xectool(*line[1:], "--json").document
        assert after["result"]["events_scanned"] == 24 * len(files)
        assert [item for item in after["findings"] if item["code"] in ("DAT-03", "DAT-04")] == []


def test_of_files_whose_trees_have_other_names_each_line_names_what_it_did(
    folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    found = xectool("check-data", PATHS[0], "simulated.root", "--json").document["findings"]
    (tree,) = (item["fix"] for item in found if item["code"] == "DAT-03")
    assert "xec_npho" not in tree, "the other file has no such branch"


def test_what_may_stay_as_it_is_does_not_end_the_way_to_a_training(xectool: Any, tmp_path: Path) -> None:
    """Two NaN among 250000 readings led to `explain`, and from there nowhere."""
    engine.simulate(str(tmp_path / "s.root"), events=24, seed=1)
    rows = dict(uproot.open(tmp_path / "s.root")["tree"].arrays(library="np"))
    rows["npho"] = rows["npho"].copy()
    rows["npho"][2, 100] = rows["npho"][3, 200] = np.nan
    with uproot.recreate(tmp_path / "nan.root") as file:
        file.mktree("tree", {n: np.dtype((c.dtype, c.shape[1:])) for n, c in rows.items()}).extend(rows)
    line, seen = f"xectool check-data {tmp_path / 'nan.root'}", []
    while line.startswith("xectool check-data ") and line not in seen[:-1]:
        result = xectool(*shlex.split(line, comments=True)[1:], "--json").document["result"]
        line = result["next"]
        seen.append(line)
    assert "usable with care" in result["verdict"]
    assert line.startswith("xectool config init "), seen
    assert line.count("   # ") == 1
    assert line.endswith("; as they are; what is told of them: xectool explain DAT-07")
