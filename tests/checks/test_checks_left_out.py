"""What a configuration leaves out is left out of its check, of the files that are checked and of no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rows = dict[str, Any]


@pytest.fixture
def spoiled(tmp_path: Path, rows: Rows, write: Callable[..., Path]) -> tuple[Path, Path]:
    """A file with two bad events, and a configuration of others."""
    write(tmp_path / "own.root", rows)
    rows["npho"][41] = 7e9
    rows["energyTruth"][7] = 4.2e7
    config = tmp_path / "config.yaml"
    config.write_text(
        "kind: regressor\ntasks: {energy: {enabled: true, scale: auto, shift: auto}}\n"
        f"data: {{train_path: {tmp_path}/own.root, val_path: {tmp_path}/own.root, allow_overlap: true}}\n"
    )
    return write(tmp_path / "bad.root", rows), config


def test_events_that_are_left_out_are_no_fault_of_the_file(
    spoiled: tuple[Path, Path], check: Callable[..., Any], codes: Callable[..., set[str]]
) -> None:
    file, config = spoiled
    both = f"data.exclude=[{file}:41, bad.root:7]"
    assert {"DAT-02", "DAT-16"} & codes(check(file, config=str(config)))
    assert "DAT-16" in codes(check(file, config=str(config), overrides=["data.exclude=[bad.root:41]"]))
    result = check(file, config=str(config), overrides=[both])
    assert not codes(result) & {"DAT-02", "DAT-16", "DAT-23"}, result.findings


@pytest.mark.parametrize("name", ["own.root", "elsewhere.root"])
def test_events_of_other_files_are_not_looked_for_in_it(
    spoiled: tuple[Path, Path], check: Callable[..., Any], codes: Callable[..., set[str]], name: str
) -> None:
    """A sound event of another file was offered to be left out."""
    file, config = spoiled
    assert "DAT-23" not in codes(check(file, config=str(config), overrides=[f"data.exclude=[{name}:119]"]))


def test_an_entry_beyond_the_file_is_named_and_the_others_stay(
    spoiled: tuple[Path, Path], check: Callable[..., Any]
) -> None:
    file, config = spoiled
    result = check(file, config=str(config), overrides=["data.exclude=[bad.root:41, bad.root:120]"])
    (found,) = (found for found in result.findings if found.code == "DAT-23")
    assert "bad.root:120 is not there" in found.problem
    assert found.fix == "--set 'data.exclude=[bad.root:41]'"
