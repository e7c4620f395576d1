"""Where else a run has room when its directory is refused."""

from __future__ import annotations

import errno
import os
import shlex
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from xectool.config import save_places
from xectool.config.save_places import nearest_existing, other_save_dir, refusal_to_write
from xectool.errors import DiskError
from xectool.runlog import writer
from xectool.runlog.writer import RunWriter


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return the only places there are, by their name: none of this machine's."""
    found = {name: tmp_path / name for name in ("here", "scratch", "work", "home", "tmp")}
    for place in found.values():
        place.mkdir()
    monkeypatch.chdir(found["here"])
    for name, variable in (("scratch", "SCRATCH"), ("work", "WORK"), ("home", "HOME")):
        monkeypatch.setenv(variable, str(found[name]))
    monkeypatch.setattr(tempfile, "tempdir", str(found["tmp"]))
    return found


def named(fix: str) -> str:
    option, setting = shlex.split(fix)
    assert option == "--set"
    key, _, value = setting.partition("=")
    assert key == "checkpoint.save_dir"
    return str(yaml.safe_load(value))


def test_the_first_place_that_can_be_written_is_named_and_left_as_it_was(places: dict[str, Path]) -> None:
    (places["here"] / "artifacts").write_text("a file")  # nothing can be written below it
    (places["scratch"] / "artifacts").write_text("a file")
    assert named(other_save_dir(Path("/refused"))) == str(places["work"] / "artifacts")
    assert os.listdir(places["work"]) == []
    assert named(other_save_dir(places["work"] / "artifacts")) == str(places["home"] / "artifacts")
    for name in ("work", "home"):
        places[name].rmdir()
    assert named(other_save_dir(Path("/refused"))) == str(places["tmp"] / "artifacts")


def test_where_the_working_directory_has_room_it_is_named_unless_it_is_what_was_refused(
    places: dict[str, Path],
) -> None:
    assert named(other_save_dir(Path("/refused"))) == str(places["here"] / "artifacts")
    assert named(other_save_dir(Path("artifacts"))) == str(places["scratch"] / "artifacts")


def test_without_any_room_the_disks_are_listed(places: dict[str, Path]) -> None:
    assert places
    assert shlex.split(other_save_dir(Path("/refused"), needed_bytes=1e30), comments=True) == ["df", "-h"]


def test_a_place_that_may_not_be_looked_into_is_passed_over(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Path.is_dir` raises PermissionError there, in the middle of the answer to another failure."""

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refused)
    monkeypatch.setattr(Path, "exists", refused)
    assert named(other_save_dir(Path("/refused"))) == str(places["here"] / "artifacts")
    usage = save_places.shutil.disk_usage
    monkeypatch.setattr(save_places.shutil, "disk_usage", lambda at: refused(at) if "here" in str(at) else usage(at))
    assert named(other_save_dir(Path("/refused"))) == str(places["scratch"] / "artifacts")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_does_not_lead_to_itself(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An empty file can be made on a full disk, and every place on it was one that has room."""
    refused, full = places["here"] / "runs", OSError(number, os.strerror(number))
    assert shlex.split(other_save_dir(refused, refusal=full), comments=True) == ["df", "-h"]
    stat = os.stat
    other = os.stat_result([*stat(places["work"])[:2], 2**40, *stat(places["work"])[3:]])
    monkeypatch.setattr(os, "stat", lambda at, **how: other if Path(at) == places["work"] else stat(at, **how))
    assert named(other_save_dir(refused, refusal=full)) == str(places["work"] / "artifacts")
    monkeypatch.setattr(writer, "open_sink", Mock(side_effect=full))
    with pytest.raises(DiskError, match=r"No space left|quota") as caught:
        RunWriter(refused / "r")
    assert named(caught.value.fix) == str(places["work"] / "artifacts")
    assert named(other_save_dir(refused, refusal=PermissionError(13, "no"))) == str(places["here"] / "artifacts")


def test_a_disk_that_is_full_has_no_room_for_what_was_refused_elsewhere(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = save_places.shutil.disk_usage
    none = usage(places["here"])._replace(free=4096)
    monkeypatch.setattr(save_places.shutil, "disk_usage", lambda at: none if "here" in str(at) else usage(at))
    assert named(other_save_dir(Path("/refused"))) == str(places["scratch"] / "artifacts")


def test_a_refusal_is_that_of_the_nearest_directory_above(places: dict[str, Path]) -> None:
    assert nearest_existing(places["here"] / "a" / "b") == places["here"]
    assert refusal_to_write(places["here"] / "a" / "b") is None
    (places["here"] / "a").write_text("a file")
    assert isinstance(refusal_to_write(places["here"] / "a" / "b"), NotADirectoryError)
