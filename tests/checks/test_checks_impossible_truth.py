"""Truths that no event can have: one sentence a task, as training says it, with what leaves their events out."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xectool.engine.data_report import DataChecked
from xectool.findings import Finding

Rows = dict[str, np.ndarray]
TASKS = "tasks: {energy: {enabled: true}, uvwFI: {enabled: true}}\n"


def outside(result: DataChecked) -> list[Finding]:
    """Return what is said of truths that cannot be."""
    return [item for item in result.findings if "outside of what is possible" in item.problem]


def excluded(found: Finding) -> str:
    """Return the setting of a finding that leaves events out."""
    return shlex.split(found.fix.partition("leave these events out: --set ")[2])[0]


@pytest.fixture
def odd(rows: Rows, tmp_path: Path, write: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that writes a file with some truths that cannot be, the energies and depths of entries."""

    def odd(name: str, energies: Any = (), depths: Any = ()) -> Path:
        own = {branch: values.copy() for branch, values in rows.items()}
        own["energyTruth"][list(energies)] = 1.5
        own["uvwTruth"][list(depths), 2] = 400.0
        return write(tmp_path / name, own | {"run": own["run"] + len(name)})

    return odd


def test_all_events_of_all_tasks_and_of_validation_are_left_out_by_one_setting(
    odd: Any, check: Any, tmp_path: Path
) -> None:
    """There was a line a component and end, and no event was named but the first."""
    train, val = odd("train.root", energies=(7, 11), depths=(7, 30)), odd("valid.root", energies=(2,))
    config = tmp_path / "c.yaml"
    config.write_text(f"kind: regressor\ndata: {{batch_size: 8, train_path: {train}, val_path: {val}}}\n{TASKS}")
    energy, depth, validated = outside(check(train, config=config))
    assert energy.problem.endswith("energy is 1.5 GeV: outside of what is possible; 2 such in all")
    assert depth.problem.endswith("uvwFI is 400 cm: outside of what is possible; 2 such in all")
    assert validated.problem.startswith("validation sample: the truth of task energy is 1.5 GeV")
    (setting,) = {excluded(item) for item in (energy, depth, validated)}
    assert [word in setting for word in ("train.root:tree:7", ":11", ":30", "valid.root:tree:2")] == [True] * 4
    assert outside(check(train, config=config, overrides=[setting])) == []


def test_too_many_to_name_are_said_to_be_and_the_line_marks_them(odd: Any, check: Any) -> None:
    named, many = (outside(check(odd(f"{count}.root", range(count))))[0] for count in (16, 17))
    assert excluded(named).count("16.root") == 16
    assert "too many to name in data.exclude" in many.fix


def test_an_event_counts_once_and_more_than_training_leaves_out_are_an_error(odd: Any, check: Any) -> None:
    """Training leaves 8 events of 120 out; the truths of two tasks in 8 events are 8 of them."""
    both, more = odd("both.root", range(8), range(8)), odd("more.root", range(8), range(8, 10))
    assert [item.severity.value for item in outside(check(both))] == ["warning"] * 2
    assert [item.severity.value for item in outside(check(more))] == ["error"] * 2


def test_a_task_that_is_not_trained_takes_no_event_from_those_that_are(odd: Any, check: Any, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("kind: regressor\ndata: {batch_size: 8}\ntasks: {energy: {enabled: true}}\n")
    energy, depth = outside(check(odd("odd.root", (7,), range(40)), config=config))
    assert excluded(energy).endswith("odd.root:tree:7]")
    assert (energy.severity.value, depth.severity.value) == ("warning", "warning")
    assert "--set data.exclude" not in depth.fix


@pytest.mark.parametrize("count", [2, 20], ids=["few", "many"])
def test_of_files_to_compare_with_no_event_is_left_out(
    odd: Any, check: Any, good: Path, tmp_path: Path, count: int
) -> None:
    """The setting that was offered is refused by training, which does not read these files."""
    config = tmp_path / "c.yaml"
    config.write_text(f"kind: regressor\ndata: {{batch_size: 8, train_path: {good}}}\n{TASKS}")
    other = odd("other.root", energies=range(count))
    for options in ({}, {"config": config}):
        (found,) = outside(check(good, against=[str(other)], **options))
        assert found.severity.value == "warning"
        assert found.fix.startswith("xectool convert ")
        assert 'known"' in found.fix
        assert "exclude" not in found.fix
        (alone,) = outside(check(other, **options))  # the control
        assert "exclude" in alone.fix


def test_of_files_to_compare_with_no_number_and_no_scale_is_of_a_training(
    rows: Rows, check: Any, good: Path, tmp_path: Path, write: Any
) -> None:
    """A truth that is no number, and one far away that widens the scale of a training."""
    rows["energyTruth"][3], rows["timeTruth"][:2] = np.nan, 9e-9
    other = write(tmp_path / "other.root", rows | {"run": rows["run"] + 1})
    told = [[item for item in check(good, against=[str(other)]).findings if item.code == "DAT-16"]]
    told.append([item for item in check(other).findings if item.code == "DAT-16"])
    texts = ["\n".join(f"{item.problem}; {item.fix}" for item in found) for found in told]
    for words, beside, alone in (
        ("is NaN, infinite", 1, 1),
        ("leave these events out", 0, 1),
        ("automatic scale", 0, 1),
    ):
        assert [min(text.count(words), 1) for text in texts] == [beside, alone], words
