"""Lines of many files: what a shell makes of them is just these files."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from xectool.engine.file_patterns import merging


def expanded(line: str) -> list[str]:
    """Return the words that a shell gives to the command."""
    done = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("files", "typed"),
    [
        (["a_1.root", "a_2.root", "a_3.root"], "a_*.root"),
        (["in/a.root", "in/b.root", "of/c.root"], "in/*.root of/c.root"),
        (["a b_1.root", "a b_2.root"], "'a b_1.root' 'a b_2.root'"),
        (["it's_1.root", "it's_2.root"], ""),
        (["[x]_1.root", "[x]_2.root"], "'[x]_1.root' '[x]_2.root'"),
        (["a.root", "a.root"], "a.root"),
        (["-a.root", "b.root"], "./-a.root b.root"),
        (["-a_1.root", "-a_2.root"], "./-a_*.root"),
    ],
)
def test_a_shell_takes_just_the_files_that_are_merged(
    files: Sequence[str], typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (*files, "other.dat", "merged.root"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    line = merging(files)
    given = [f"./{name}" if name.startswith("-") else name for name in dict.fromkeys(files)]
    assert expanded(line) == ["hadd", "merged2.root", *given], "what is there is not written over"
    assert line.endswith("   # then --set data.train_path=merged2.root")
    assert not typed or f" {typed}   #" in line


@pytest.mark.parametrize(
    ("trees", "setting"),
    [
        (set(), "data.train_path=merged.root"),
        ({"sev"}, "data.train_path=merged.root:sev"),
        ({"a #b"}, "data.train_path='merged.root:a #b'"),
        ({"sev", "tree"}, "data.train_path=['merged.root:sev', 'merged.root:tree']"),
    ],
)
def test_the_tree_that_is_read_is_named(
    trees: set[str], setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merged file was refused: it has no tree of the name that the configuration has."""
    monkeypatch.chdir(tmp_path)
    line, then = merging(["a.root", "b.root"], trees).split("   # then ")
    assert (line, shlex.split(then)) == ("hadd merged.root a.root b.root", ["--set", setting])


def test_more_files_than_a_line_holds_are_read_from_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = [f"{number}/run {number}.root" for number in range(300)]
    words = shlex.split(merging(files), comments=True)
    assert words == ["hadd", "merged.root", "@files.txt"]
    assert "# files.txt: the 300 files, one a line; then" in merging(files)
