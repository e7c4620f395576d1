"""Tables in terminals of any width: every value is there, and no word is cut while there is another way."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from xectool.cli.render import console, table

ROWS = [["a_run", "interrupted", 1234, 0.945411, "2026-11-26 01:31"], ["b_run", "finished", 7, 1.0, "2026-11-26 01:40"]]
COLUMNS = ("run", "status", "steps", "val/loss", "started")
WORDS = {*COLUMNS, "a_run", "interrupted", "1234", "0.94541", "2026-11-26", "01:31", "finished", "7", "1", "01:40"}


def drawn(width: int, columns: tuple[str, ...] = COLUMNS, rows: list[list[object]] = ROWS) -> list[str]:
    console = Console(file=io.StringIO(), width=width, soft_wrap=True)
    console.print(table("2 runs in [a]", columns, rows))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_tree_is_no_emoji() -> None:
    """rich makes one of `:train:`, also where markup is off: a line to paste named no event."""
    stream = io.StringIO()
    console(stream).print("--set data.exclude=[a.root:train:40]", markup=False)
    assert stream.getvalue() == "--set data.exclude=[a.root:train:40]\n"


@pytest.mark.parametrize("width", [1, 2, 7, 20, 40, 52, 53, 60, 80, 200])
def test_no_word_of_a_table_is_cut(width: int) -> None:
    lines = drawn(width)
    assert "2 runs in [a]" in lines
    assert set(" ".join(lines).replace(": ", " ").split()) >= WORDS


def test_the_narrower_the_closer_and_in_the_end_a_line_a_value() -> None:
    wide, close, narrow = drawn(80), drawn(52), drawn(20)
    assert any(line.startswith(" a_run   interrupted   1234 ") for line in wide)
    assert any(line.startswith(" a_run interrupted 1234 ") for line in close)
    assert narrow[1:5] == ["", "run: a_run", "status: interrupted", "steps: 1234"]
    assert max(map(len, wide)) <= 80
    assert max(map(len, close)) <= 52


def test_settings_can_be_pasted_and_paths_of_any_length_go_on_below() -> None:
    setting = "training.activation_checkpointing=stages"
    lines = drawn(60, ("remedy", "setting"), [["recompute the activations of each stage", f"--set {setting}"]])
    assert any(setting in line for line in lines)
    assert max(map(len, drawn(60, ("file", "events"), [["/data/" + 30 * "long/", 4]]))) <= 60


def test_a_column_in_which_nothing_stands_is_left_out() -> None:
    lines = drawn(80, ("pid", "file", "reads"), [[1, "", 9], [2, "", 1]])
    assert lines[2].split() == ["pid", "reads"]


def test_a_long_title_stays_whole_above_a_narrow_table() -> None:
    title = "/data/" + 12 * "long/" + "checkpoint_last.pt [and more]"
    console = Console(file=io.StringIO(), width=50, soft_wrap=True)
    console.print(table(title, ("what", "value"), [["kind", "mae"]]))
    assert console.file.getvalue().splitlines()[0] == title  # type: ignore[attr-defined]


def test_a_table_without_rows_is_its_title() -> None:
    assert "\n".join(drawn(80, rows=[])).split("\n") == ["2 runs in [a]", ""]
