"""Several faults of one code in one run: another file, another task, other events. None may hide the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
import yaml
from xectool import engine
from xectool.diagnosis.cause import Cause, Diagnosis
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.ranking import diagnose
from xectool.rootio.writer import TreeWriter
from xectool.simulation.dataset import BRANCHES


def told(cause: Cause) -> str:
    """Return all that is said about a cause but its fix."""
    return "\n".join((cause.problem, *cause.evidence))


def train(directory: Path, tasks: dict[str, Any], *, millimetres: bool) -> Diagnosis:
    """Train a small network on 40 events and return what is said about it."""
    engine.simulate(str(directory / "made.root"), events=40, seed=5)
    engine.simulate(str(directory / "val.root"), events=8, seed=6)
    with uproot.open(directory / "made.root") as opened:
        rows = {name: np.array(opened["tree"][name].array(library="np")) for name in BRANCHES}
    rows["uvwTruth"] *= np.float32(10.0 if millimetres else 1.0)
    with TreeWriter(directory / "train.root", BRANCHES) as writer:
        writer.extend(rows)
    config: dict[str, Any] = {
        "kind": "regressor",
        "data": {
            "train_path": f"{directory}/train.root",
            "val_path": f"{directory}/val.root",
            "batch_size": 4,
            "cache": "off",
        },
        "model": {"encoder_dim": 32, "hidden_dim": 8, "outer_fine_pool": [9, 6], "num_fusion_layers": 1},
        "tasks": tasks,
        "training": {"epochs": 3, "warmup_epochs": 0, "lr": 3e-4},
        "checkpoint": {"save_dir": str(directory / "runs"), "save_artifacts": False, "save_minutes": None},
        "mlflow": {"enabled": False, "run_name": "r"},
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    return diagnose(gather(Path(engine.train(directory / "config.yaml").run_dir)))


def test_a_position_in_millimetres_is_told_beside_an_energy_whose_scale_is_wrong(tmp_path: Path) -> None:
    energy = {"enabled": True, "scale": 1e-6, "shift": 0.0}
    position = {"enabled": True, "scale": "auto", "shift": "auto"}
    found = train(tmp_path, {"energy": energy, "uvwFI": position}, millimetres=True)
    (scale,) = [cause for cause in found.causes if cause.code == "XT-TARGET-SCALE"]
    assert ("energy: the truth spreads" in told(scale), "uvwFI: the truth spreads" in told(scale)) == (True, True)
    assert f"xectool check-data {tmp_path}/train.root" in told(scale)  # what cures the second


def test_a_head_of_no_weight_hides_none_of_hardly_any(tmp_path: Path) -> None:
    task = {"enabled": True, "scale": "auto", "shift": "auto"}
    tasks = {"energy": task, "uvwFI": {**task, "weight": 0.0}, "timing": {**task, "weight": 2e-13}}
    found = train(tmp_path, tasks, millimetres=False)
    (head,) = [cause for cause in found.causes if cause.code == "XT-UNTRAINED-HEAD"]
    assert head.problem.startswith("heads.timing, heads.uvwFI is not trained")


def test_every_odd_file_is_told(record: Any, course: Any) -> None:
    run = course(steps=40)
    run.event(1, "files_differ", message="a.root: no light in face us", files=["a.root"], meaning="that face was off")
    run.event(1, "files_differ", message="b.root: 6.2 times the light", files=["b.root"], meaning="gains differ")
    (cause,) = record(run).causes
    assert cause.problem == "a.root: no light in face us: that face was off"
    assert any(line.startswith("also: b.root: 6.2 times the light: gains differ") for line in cause.evidence)


def test_repeated_readings_do_not_hide_copied_light(record: Any, course: Any) -> None:
    run = course(steps=40)
    run.event(1, "repeated_readings", message="82 events have the readings of another", files=["a.root"], count=82)
    run.event(1, "copied_light", message="b.root:tree: the light is that of one event", files=["b.root:tree"])
    (cause,) = record(run).causes
    assert ("82 events" in told(cause), "b.root:tree: the light is that of one event" in told(cause)) == (True, True)


@pytest.mark.parametrize(("factor", "named"), [(1.0, False), (12.0, True)])
def test_a_first_batch_below_what_a_constant_reaches_is_no_base(
    record: Any, course: Any, factor: float, named: bool
) -> None:
    """Two events may be right by chance, and the batches after it ten times above."""
    run = course(steps=120, baseline=0.46, lr=3e-5)
    start = ((0.077, 1.2), (0.95, 13.0), (0.56, 3.7), (0.12, 2.1), (0.51, 3.2), (0.57, 3.4), (1.12, 4.7))
    for row, (loss, norm) in zip(run.rows, start, strict=False):
        row |= {"loss": loss, "grad_norm": norm, "losses": {}}
    for row in run.rows[1:20]:
        row["loss"] = max(row["loss"], 0.3) * factor
    assert [cause.code for cause in record(run).causes[:1]] == ["XT-SPIKE-LR"] * named


@pytest.mark.parametrize(
    ("source", "settings", "named"),
    [
        ("regressor", {"init_from": "a.pt"}, ["XT-SPIKE-LR"]),
        ("mae", {"init_from": "a.pt"}, []),
        ("regressor", {"init_from": None}, []),
        ("", {}, []),
    ],
    ids=["its own kind", "another kind", "of an earlier run", "none"],
)
def test_weights_that_were_lent_are_seen_to_be_destroyed_below_a_constant(
    write_run: Any, course: Any, tmp_path: Path, source: str, settings: dict[str, Any], named: list[str]
) -> None:
    """Such a run begins far below a constant by right; with the encoder of another kind alone by two lucky events."""
    run = course(steps=60, baseline=0.46, lr=3e-4, config={"checkpoint": settings})
    if source:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "transfer.json").write_text(f'{{"source": "{source}", "target": "regressor"}}')
    losses = [0.02, 0.03, 0.06, 0.15, 0.4, 0.8, 1.2, 1.5, *[1.3] * 52]
    norms = [*np.geomspace(0.5, 9, 8), *[9.0] * 52]
    for row, loss, norm in zip(run.rows, losses, norms, strict=True):
        row |= {"loss": loss, "grad_norm": norm, "losses": {}}
    assert [cause.code for cause in diagnose(gather(write_run(run))).causes[:1]] == named


@pytest.mark.parametrize(("count", "both"), [(35, False), (82, True)])
def test_readings_under_other_numbers_are_told_beside_those_under_the_same(
    record: Any, course: Any, count: int, both: bool
) -> None:
    """The count of all has those with the numbers of another too: no more than these are one fault."""
    run = course(steps=40)
    run.event(1, "run_start", num_train=140, num_repeated=35)
    message = f"{count} events have the readings of another"
    run.event(1, "repeated_readings", message=message, files=["a.root:tree", "b.root:tree"], count=count)
    (cause,) = record(run).causes
    assert ("35 of 140 training events" in told(cause), message in told(cause)) == (True, both)
    assert "under other run and event numbers" not in told(cause)


@pytest.mark.parametrize(("copied", "both"), [("a.root:tree", False), ("b.root:tree", True)])
def test_events_of_copied_light_have_equal_readings_for_one_cause(
    record: Any, course: Any, copied: str, both: bool
) -> None:
    run = course(steps=40)
    run.event(1, "repeated_readings", message="40 events have the readings of another", files=["a.root:tree"], count=40)
    run.event(1, "copied_light", message=f"{copied}: the light is that of one event", files=[copied])
    (cause,) = record(run).causes
    assert ("the light is that of one event" in told(cause), "40 events" in told(cause)) == (True, both)


@pytest.mark.parametrize(("factor", "named"), [(1.0, False), (100.0, True)])
def test_numbers_of_order_one_for_an_energy_in_gev_are_an_untrained_head_and_no_explosion(
    record: Any, course: Any, factor: float, named: bool
) -> None:
    """The first two events may be right by chance, and a constant at the mean energy has a loss of 8e-5."""
    run = course(steps=40, baseline=8e-5, lr=3e-4, start=2e-3, floor=5e-4)
    start = (
        (1.7e-4, 0.096),
        (0.033, 2.9),
        (0.015, 0.94),
        (3.4e-3, 0.44),
        (9.9e-3, 0.34),
        (4.4e-3, 0.27),
        (0.013, 0.46),
    )
    for row, (loss, norm) in zip(run.rows, start, strict=False):
        row |= {"loss": loss, "grad_norm": norm, "losses": {}}
    for row in run.rows[1:20]:
        row["loss"] *= factor
    assert [cause.code for cause in record(run).causes if "SPIKE" in cause.code] == ["XT-SPIKE-LR"] * named
