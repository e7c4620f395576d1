"""Events that a configuration leaves out, as FILE:ENTRY."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from xectool.config.data import DataConfig
from xectool.config.left_out import leaving_out, left_out
from xectool.config.load import config_from_dict
from xectool.errors import ConfigError


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name in ("train/run1.root", "train/run2.root", "val/run1.root", "val/other.root"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"root")
    return tmp_path


def data(files: Path, *exclude: str) -> DataConfig:
    return DataConfig(train_path=str(files / "train"), val_path=str(files / "val"), exclude=exclude)


def paths(files: Path, which: str) -> list[str]:
    return sorted(map(str, (files / which).glob("*.root")))


@pytest.mark.parametrize(
    "value", [["a.root"], ["a.root:-1"], ["a.root:x"], [{"a.root": 17}], [":3"], 17, {"a.root": 1}]
)
def test_what_is_no_file_and_entry_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected .*FILE:ENTRY"):
        config_from_dict({"tasks": {"energy": {"enabled": True}}, "data": {"exclude": value}}, "here")


@pytest.mark.parametrize(
    ("value", "read"), [(None, ()), ("a.root:3", ("a.root:3",)), (["a.root:t:3"], ("a.root:t:3",))]
)
def test_one_event_needs_no_list(value: Any, read: tuple[str, ...]) -> None:
    assert DataConfig(exclude=value).exclude == read


@pytest.mark.parametrize(
    "name", ["{0}/train/run2.root", "{0}/train/../train/run2.root", "run2.root", "train/run2.root", "run2.root:tree"]
)
def test_a_file_is_told_by_its_path_or_the_end_of_it(files: Path, name: str) -> None:
    told = data(files, f"{name.format(files)}:17")
    assert left_out(told, paths(files, "train")) == {(1, 17)}
    assert left_out(told, paths(files, "val")) == set()


def test_an_event_of_no_file_or_of_several_is_refused_with_what_may_be_meant(files: Path) -> None:
    for event, words, fix in (
        ("othr.root:4", "is of no file of data.train_path or data.val_path", "/other.root:4"),
        ("un1.root:4", "is of no file", "run1.root:4"),  # the end of a name is none of a path
        ("nothing.root:4", "is of no file", "data.exclude=[other.root:0]"),
        ("run2.root:elsewhere:4", "is of no file", "run2.root:4"),
        ("run1.root:4", "may be of", f"{files}/train/run1.root:4"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            left_out(data(files, "other.root:0", event), paths(files, "train"))
        assert caught.value.where == "data.exclude"
        assert fix in caught.value.fix, event
        (setting,) = shlex.split(caught.value.fix)[1:]
        mended = config_from_dict({"tasks": {"energy": {"enabled": True}}}, "x", [setting]).data.exclude
        left_out(data(files, *mended), paths(files, "train"))


def test_events_in_one_text_are_a_list(files: Path) -> None:
    """`--set data.exclude=a.root:1,b.root:2` was one event of a file with a comma in its name."""
    assert data(files, "a.root:1").model_validate({"exclude": "a.root:1,b.root:2, c.root:3"}).exclude == (
        "a.root:1", "b.root:2", "c.root:3",
    )  # fmt: skip
    assert data(files, "a.root:1").model_validate({"exclude": "a,b.root:2"}).exclude == ("a,b.root:2",)


def test_one_more_event_goes_to_those_that_are_left_out(files: Path) -> None:
    first = leaving_out(data(files), ("a b.root", 3))
    assert first == 'data.exclude=["a b.root:3"]'
    for names in (
        ("a b.root", "c,d.root"),
        ("root://server:1094//x/a.root:sub/t", "/x/[1].root"),
        ("~/a.root", "ü.root"),
    ):
        setting = leaving_out(DataConfig(), *((name, 7) for name in names))
        read = config_from_dict({"tasks": {"energy": {"enabled": True}}}, "x", [setting]).data.exclude
        assert read == tuple(f"{name}:7" for name in names)
    assert leaving_out(data(files, "a.root:1"), ("a.root", 1), ("b.root", 2)) == "data.exclude=[a.root:1, b.root:2]"
