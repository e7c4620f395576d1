"""Lists of dead channels survive a round trip, and mistakes are named with file and line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xectool.detector.dead_channels import read_dead_channels, write_dead_channels
from xectool.errors import DataFileError, UsageError


@given(ids=st.sets(st.integers(0, 4759), max_size=60))
def test_a_written_list_is_read_back(tmp_path_factory: pytest.TempPathFactory, ids: set[int]) -> None:
    path = tmp_path_factory.mktemp("dead") / "dead.txt"
    write_dead_channels(path, ids, comment="run 430000\nmade by hand")
    assert read_dead_channels(path).tolist() == sorted(ids)


def test_the_older_list_is_read(reference_dir: Path) -> None:
    assert read_dead_channels(reference_dir / "data" / "dead_channels.txt").size == 40


def test_comments_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "dead.txt"
    path.write_text("# whole line\n\n7 3  # after ids\n4759\n")
    assert np.array_equal(read_dead_channels(path), [3, 7, 4759])


def test_a_byte_order_mark_is_no_part_of_the_first_id(tmp_path: Path) -> None:
    path = tmp_path / "dead.txt"
    path.write_text("7 3\n", encoding="utf-8-sig")
    assert path.read_text(encoding="utf-8").split()[0] != "7"  # the control
    assert np.array_equal(read_dead_channels(path), [3, 7])


@pytest.mark.parametrize("word", ["4760", "-1", "12.5", "1e3", "SiPM", "٣", "1" * 5000], ids=lambda word: word[:9])
def test_a_word_that_is_no_sensor_is_named_with_its_line(tmp_path: Path, word: str) -> None:
    path = tmp_path / "dead.txt"
    path.write_text(f"1\n{word}\n", encoding="utf-8")
    with pytest.raises(DataFileError, match=r"dead\.txt:2\nfix: write ids from 0 to 4759"):
        read_dead_channels(path)


def test_a_sensor_listed_twice_is_refused_and_the_fix_makes_a_list_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "two runs.txt"
    path.write_text("# dead\n0 5 4000 # twice\n  6\n\n5\n")
    with pytest.raises(DataFileError, match="sensor 5 is listed twice, first on line 2") as refused:
        read_dead_channels(path)
    subprocess.run(refused.value.fix, shell=True, check=True)
    assert read_dead_channels(tmp_path / "two runs_once.txt").tolist() == [0, 5, 6, 4000]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for beside in ("other.txt", "none.root", "none", "none2.txt"):
        (tmp_path / beside).touch()
    (tmp_path / "nine.txt").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "none1.txt", tmp_path / "gone/none.txt"):
        with pytest.raises(DataFileError, match=r"no such list(.|\n)*none1?\.txt") as refused:
            read_dead_channels(path)
        assert refused.value.fix == "give a text file with one sensor id a line"


@pytest.mark.parametrize(("typed", "there"), [("dead chanels.txt", "dead channels.txt"), ("deadchannels.txt", "")])
def test_a_mistyped_list_is_answered_with_the_one_beside_it(tmp_path: Path, typed: str, there: str) -> None:
    there = there or "dead channels.dat"
    for beside in {there, "dead channels.dat", "other.txt", "dead channel.root"}:
        (tmp_path / beside).touch()
    with pytest.raises(DataFileError, match=f"did you mean '{there}'") as refused:
        read_dead_channels(tmp_path / typed)
    assert shlex.split(refused.value.fix) == [str(tmp_path / there)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_link_into_a_directory_of_others_is_no_defect(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "of others").mkdir(mode=0o700)
    (tmp_path / "link.txt").symlink_to(tmp_path / "of others/link.txt")
    read = f"""
import os
from xectool.detector.dead_channels import read_dead_channels
from xectool.errors import DataFileError
os.chdir({str(tmp_path)!r})
os.setuid(65534)
try:
    read_dead_channels("lnk.txt")
except DataFileError as refused:
    print(refused)
"""
    found = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True)
    assert found.stdout.startswith("no such list of dead channels\n"), found


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dead.root"
    path.write_bytes(b"root\xff\xfe\x00")
    with pytest.raises(DataFileError, match="give a text file with one sensor id a line"):
        read_dead_channels(path)


@pytest.mark.parametrize(("ids", "fix"), [([4760], "from 0 to 4759"), ([1, 1], "each dead sensor once")])
def test_bad_ids_are_not_written(tmp_path: Path, ids: list[int], fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        write_dead_channels(tmp_path / "dead.txt", ids)
    assert not (tmp_path / "dead.txt").exists()
