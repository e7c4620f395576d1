"""A truth of which nothing is known, or little, is judged as training does with it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xectool import engine
from xectool.engine.checking import CheckOptions, check_data
from xectool.errors import XecError
from xectool.findings import Finding

Rows = dict[str, np.ndarray]
Mark = Callable[[np.ndarray], None]
NOTHING = {"nan": np.nan, "1e10": 1e10, "zero": 0.0, "inf": np.inf}
CONFIG = (
    "kind: regressor\n"
    "data: {{batch_size: 8, train_path: {train}, val_path: {val}, cache: 'off'}}\n"
    "tasks: {{energy: {{enabled: true, scale: {scale}}}, uvwFI: {{enabled: true}}}}\n"
    "checkpoint: {{save_dir: {runs}}}\n"
)


@pytest.fixture
def config(tmp_path: Path, rows: Rows, write: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that writes a configuration with files whose energies are replaced, by sample."""

    def config(scale: str = "1.0", **energies: np.ndarray) -> Path:
        for number, sample in enumerate(("train", "val"), 1):
            own = rows | {"run": rows["run"] + number, "npho": rows["npho"] + np.float32(number)}
            write(tmp_path / f"{sample}.root", own | {"energyTruth": energies.get(sample, rows["energyTruth"])})
        path = tmp_path / "c.yaml"
        names = {name: tmp_path / f"{name}.root" for name in ("train", "val")}
        path.write_text(CONFIG.format(**names, scale=scale, runs=tmp_path / "runs"))
        return path

    return config


def of_energy(config: Path, sample: str = "train", **options: Any) -> list[Finding]:
    """Return what a check of the training files says of the energy above notes."""
    path = str(config.parent / f"{sample}.root")
    found = check_data(path, CheckOptions(config=config, **options)).findings
    return [item for item in found if "task energy" in item.problem and item.severity.value != "info"]


def refusal(config: Path) -> str:
    """Return the code with which training refuses to begin; empty where it does not."""
    try:
        engine.train(config, dry_run=True, device="cpu")
    except XecError as error:
        return error.code
    return ""


@pytest.mark.parametrize("scale", ["1.0", "auto"])
@pytest.mark.parametrize("mark", [*NOTHING, "mixed"])
def test_no_known_truth_is_one_error_as_training_refuses_it(config: Any, rows: Rows, mark: str, scale: str) -> None:
    values = np.full_like(rows["energyTruth"], NOTHING.get(mark, np.nan))
    if mark == "mixed":
        values[::2], values[1] = 1e10, 0.0
    written = config(scale, train=values)
    (found,) = of_energy(written)
    assert (found.severity.value, "training refuses these files" in found.problem) == ("error", True)
    assert found.fix == "--set tasks.energy.enabled=false"
    assert refusal(written) == "XT-DATA-NO-TRUTH"
    assert of_energy(written, overrides=[found.fix.removeprefix("--set ")]) == []


def test_one_known_truth_is_enough(config: Any, rows: Rows) -> None:
    """The control of the others."""
    values = np.full_like(rows["energyTruth"], 1e10)
    values[:9] = rows["energyTruth"][:9]
    written = config(train=values)
    assert (of_energy(written), refusal(written)) == ([], "")


@pytest.mark.parametrize("mark", sorted(NOTHING))
def test_a_validation_without_known_truth_is_a_warning_alone_or_beside_training(
    config: Any, rows: Rows, mark: str
) -> None:
    written = config(val=np.full_like(rows["energyTruth"], NOTHING[mark]))
    for sample in ("train", "val"):
        (found,) = of_energy(written, sample)
        assert found.severity.value == "warning"
        assert "nothing of it is validated" in found.problem
    assert refusal(written) == ""


@pytest.mark.parametrize(("num_nan", "severity"), [(60, "warning"), (61, "error")])
def test_numbers_that_are_none_in_most_events_are_an_error(
    config: Any, rows: Rows, num_nan: int, severity: str
) -> None:
    values = rows["energyTruth"].copy()
    values[:num_nan] = np.nan
    written = config(train=values)
    (found,) = of_energy(written)
    assert (found.severity.value, "leaves the events out of the task's loss" in found.problem) == (severity, True)
    assert refusal(written) == ""
    marked = values.copy()
    marked[61:81] = 1e10  # known is what is left
    assert [item.severity.value for item in of_energy(config(train=marked))] == ["error"]
    untrained = of_energy(written, overrides=["tasks.energy.enabled=false"])
    assert [(item.severity.value, "loss" in item.problem) for item in untrained] == [("warning", False)]


def test_without_a_configuration_nothing_known_is_a_warning_in_all_forms(
    tmp_path: Path, rows: Rows, write: Callable[..., Path]
) -> None:
    for mark, value in NOTHING.items():
        path = write(tmp_path / f"{mark}.root", rows | {"energyTruth": np.full_like(rows["energyTruth"], value)})
        found = [item for item in check_data(str(path)).findings if "task energy" in item.problem]
        assert [item.severity.value for item in found] == ["warning"], mark


@pytest.mark.parametrize(("scale", "severity", "code"), [("auto", "error", "XT-DATA-CONSTANT"), ("1.0", "warning", "")])
def test_a_constant_truth_is_an_error_where_training_refuses_it(
    config: Any, rows: Rows, scale: str, severity: str, code: str
) -> None:
    written = config(scale, train=np.full_like(rows["energyTruth"], 0.0528))
    found = [item for item in of_energy(written) if "in every event" in item.problem]
    assert [item.severity.value for item in found] == [severity]
    assert refusal(written) == code
    if code:  # the only task cannot be left out: that was refused (CFG-04), with the line that takes it in again
        assert found[0].fix == "--set tasks.energy.enabled=false"
        (alone,) = (
            item for item in of_energy(written, overrides=["tasks.uvwFI.enabled=false"]) if item.code == found[0].code
        )
        assert alone.fix == "--set tasks.energy.scale=1.0 --set tasks.energy.shift=null"


@pytest.mark.parametrize("mark", sorted(NOTHING))
def test_files_to_compare_with_may_know_no_truth(config: Any, rows: Rows, mark: str) -> None:
    """It said that a training refuses real data beside simulation, which no training reads."""
    written = config(val=np.full_like(rows["energyTruth"], NOTHING[mark]))
    real = str(written.parent / "val.root")
    found = of_energy(written, against=[real])
    assert [item.problem for item in found if "no event has a known truth" in item.problem] == []
    alone = check_data(real).findings  # the control
    assert any("a training of it refuses these files" in item.problem for item in alone)


def test_files_to_compare_with_that_lack_the_truth_of_a_trained_task_are_told(
    config: Any, rows: Rows, write: Callable[..., Path], tmp_path: Path
) -> None:
    """The verdict was good, and the training refused them for validation."""
    without = {name: values for name, values in rows.items() if name != "energyTruth"}
    other = str(write(tmp_path / "other.root", without | {"run": rows["run"] + 9}))
    written = config()
    (found,) = (item for item in of_energy(written, against=[other]) if item.code == "DAT-04")
    assert found.severity.value == "warning"
    assert "has no branch 'energyTruth', the truth of task energy: no training" in found.problem
    assert found.fix == f"xectool check-data {other} --config {written}   # as a training reads it"
    seen = check_data(str(tmp_path / "train.root"), CheckOptions(against=[other])).findings  # the control
    assert [item for item in seen if item.code == "DAT-04" and item.severity.value != "info"] == []


def test_few_energies_of_zero_are_left_out_by_one_line(config: Any, rows: Rows) -> None:
    """It said how many, and not which."""
    zeros = rows["energyTruth"].copy()
    zeros[[3, 40]] = 0
    written = config(train=zeros)
    (found,) = (item for item in of_energy(written) if "exactly 0 in 2 of" in item.problem)
    setting, _, remark = found.fix.partition("   # or ")
    names = [f"{written.parent / 'train.root'}:tree:{entry}" for entry in (3, 40)]
    assert setting == f"--set 'data.exclude=[{', '.join(names)}]'"
    assert remark.startswith("write 1e10")
    mended = check_data(
        str(written.parent / "train.root"), CheckOptions(config=written, overrides=[shlex.split(setting)[1]])
    ).findings
    assert not any("exactly 0" in item.problem for item in mended)
