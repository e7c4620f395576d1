"""What is proposed for inputs that are not there: never a file twice, and nothing of places that cannot be read."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xectool.config.inputs import expand_inputs
from xectool.config.load import config_from_dict, read_config
from xectool.config.rules.path import path_rules
from xectool.errors import DataFileError
from xectool.findings import Finding

NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a directory that other users can reach."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def found(place: Path, train: Any, val: Any = None) -> list[Finding]:
    data = {"train_path": train, "val_path": val or str(place / "val.root")}
    tasks = {"energy": {"enabled": True, "scale": "auto"}}
    start = {"save_dir": "/tmp/no/such/runs"}
    values = {"kind": "regressor", "data": data, "tasks": tasks, "checkpoint": start}
    return [item for item in path_rules(config_from_dict(values, "x")) if item.code == "CFG-38"]


def made(place: Path, *names: str) -> None:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"root")


def as_nobody(told: Path, ask: Any) -> str:
    """Return the text of what another user is told."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on, where other threads run
        child = os.fork()
    if not child:
        try:
            with told.open("w") as file:
                os.setuid(NOBODY)
                try:
                    file.write(str(ask()))
                except Exception as error:  # noqa: BLE001 - it is what the test looks at
                    file.write(repr(error))
        finally:
            os._exit(0)
    until = time.monotonic() + 60.0
    while not os.waitpid(child, os.WNOHANG)[0]:  # a lock that another thread held at the fork is never given back
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return told.read_text()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_directory_that_cannot_be_read_is_no_defect(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was looked at beside it, above it, or below the working directory ended in PermissionError, exit 70."""
    made(place, "val.root", "shut/data/a.root", "below/data/b.root", "below/c.root")
    assert found(place, f"{place}/shut/data/b.root"), "the control, which imports what the other user may not read"
    (place / "shut").chmod(0o700)
    (place / "below").chmod(0o711)
    monkeypatch.chdir(place)
    for train in (f"{place}/shut/data/b.root", "/x/shut/data/b.root", "/x/shut/data/*.root", "/x/below/data/q.root"):
        said = as_nobody(tmp_path / "told", lambda train=train: [item.problem for item in found(place, train)])
        assert f"no files match data.train_path: {train}" in said
    said = as_nobody(tmp_path / "told", lambda: [item.problem for item in found(place, f"{place}/below/d.root")])
    assert "no files match data.train_path" in said
    said = as_nobody(tmp_path / "told", lambda: [item.problem for item in found(place, f"{place}/below")])
    assert "below' cannot be listed: Permission denied" in said
    for name in (f"{place}/below/d.root", f"{place}/shut/d.root"):
        assert "does not exist" in as_nobody(tmp_path / "told", lambda name=name: expand_inputs(name))


@pytest.mark.parametrize("train", ["x/{}/y.root", "x/{}.root", "/elsewhere/{}/y.root", "@x/{}/y.txt", "x/{}/*.root"])
def test_a_name_that_no_file_can_have_is_a_file_that_is_not_there(
    place: Path, train: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an error of the command line, which told of a path that nobody had typed."""
    made(place, "val.root", "x/a.root")
    monkeypatch.chdir(place)
    spec = train.format("a" * 300)
    (item,) = found(place, spec)
    assert item.problem.startswith(f"no files match data.train_path: {spec}")
    with pytest.raises(DataFileError):
        expand_inputs(spec)


@pytest.mark.parametrize(
    ("key", "text", "whole"),
    [
        ("data.train_path", '"d\\0/x.root"', "d/x.root"),
        ("data.train_path", '["a.root", "d\\0/x.root"]', "'data.train_path=[a.root, d/x.root]'"),
        ("data.truth_branches", '{energy: "E\\0"}', "energy: E,"),
        ("data.cache", '"./c\\0"', "./c"),
        ("checkpoint.init_from", '"a\\0.pt"', "a.pt"),
        ("checkpoint.save_dir", '"a\\0/b"', "a/b"),
        ("mlflow.run_name", '"a\\0"', "a"),
    ],
)
def test_a_name_with_a_null_character_is_refused_before_it_is_looked_for(
    key: str, text: str, whole: str, place: Path
) -> None:
    """YAML can write it, and the system's calls raised an error that was a defect here."""
    config = place / "config.yaml"
    config.write_text("kind: regressor\ntasks: {energy: {enabled: true}}\n")
    (item,) = (item for item in read_config(config, [f"{key}={text}"]).findings if "null character" in item.problem)
    assert (item.problem.partition(":")[0], whole in item.fix) == (key, True)


def test_no_file_is_proposed_that_the_same_key_has(place: Path) -> None:
    """The line was a list with one file twice."""
    made(place, "val.root", "t/t2.root", "d/b3.root")
    (item,) = found(place, [f"{place}/t/t1.root", f"{place}/t/t2.root"])
    assert "did you mean" not in item.problem
    assert f"[DIR/t1.root, {place}/t/t2.root]" in item.fix
    first, second = found(place, [f"{place}/d/b1.root", f"{place}/d/b2.root"])
    assert "did you mean 'b3.root'?" in first.problem
    assert "did you mean" not in second.problem
    assert f"[{place}/d/b3.root, DIR/b2.root]" in second.fix


def test_that_a_file_is_of_the_other_sample_is_told_of_the_input_that_it_was_near_to(place: Path) -> None:
    """Every later input was told of the same file, which was never near to it."""
    made(place, "s1/train_1.root", "s2/unlike.txt")
    train = [f"{place}/s1/train_2.root", f"{place}/s2/events.root"]
    first, second = found(place, train, f"{place}/s1/train_1.root")
    assert "s1/train_1.root is the other sample" in first.problem
    assert "other sample" not in second.problem


def test_a_pattern_of_any_depth_is_not_looked_for_above(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the working directory may lie all disks of a cluster."""
    made(place, "val.root", "data/deep/a.root", "work/x.txt")
    monkeypatch.chdir(place / "work")
    (item,) = found(place, "/x/data/**/a.root")
    assert "DIR" in item.fix
    (item,) = found(place, "/x/data/deep/a.root")
    assert "DIR" not in item.fix
    monkeypatch.chdir(place)
    (item,) = found(place, "/x/data/**/a.root")
    assert item.fix == f"data.train_path: {place}/data/**/a.root"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_other_files_in_a_directory_that_cannot_be_read_are_not_there(place: Path, tmp_path: Path) -> None:
    """A checkpoint or a table of positions that was named there was a defect too."""
    made(place, "train.root", "val.root", "shut/a.pt", "shut/positions.txt", "listed/a.pt", "listed/positions.txt")
    (place / "shut").chmod(0o700)
    (place / "listed").chmod(0o744)

    def said(folder: str) -> set[tuple[str, str]]:
        table = {"head_type": "cross_attention", "sensor_positions_file": f"{place}/{folder}/position.txt"}
        values = {
            "kind": "inpainter",
            "data": {"train_path": f"{place}/train.root", "val_path": f"{place}/val.root"},
            "model": {**table, "freeze_encoder": False},
            "checkpoint": {"save_dir": "/tmp/no/such/runs", "init_from": f"{place}/{folder}/aa.pt"},
        }
        report = path_rules(config_from_dict(values, "x"))
        return {(item.code, item.where) for item in report}

    expected = {("CFG-45", "checkpoint.init_from"), ("CFG-66", "model.sensor_positions_file")}
    for folder in ("shut", "listed", "a" * 300):
        assert said(folder) == expected
        assert as_nobody(tmp_path / "told", lambda folder=folder: said(folder) == expected) == "True"
