"""Predictions say which state of their training they are of, and nobody takes them for another."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from xectool import engine
from xectool.cli import boundary
from xectool.cli.app import app
from xectool.engine import runs
from xectool.rootio.weights_state import state_of
from xectool.training.process.progress import NullObserver

pytestmark = pytest.mark.usefixtures("shallow")
Config = Callable[..., Path]
STEPS = 5  # of an epoch: 40 events in batches of 8


class Stopping(NullObserver):
    """Stops a run as a job's limit does, at the first batch of a phase."""

    def __init__(self, phase: str) -> None:
        self._wanted, self._current = phase, ""

    def phase(self, name: str, total: int, done: int = 0) -> None:
        self._current = name

    def advanced(self, num_batches: int, values: object) -> None:
        if num_batches and self._current == self._wanted:
            self._wanted = ""
            os.kill(os.getpid(), signal.SIGTERM)


def test_predictions_of_an_earlier_attempt_are_not_shown_as_of_the_best_epoch(
    tiny_config: Config, tmp_path: Path
) -> None:
    """Epoch and losses were of the best epoch, and every row with an error of the weights of an attempt before."""
    config = tiny_config(training={"epochs": 4}, checkpoint={"save_artifacts": True})
    run = Path(engine.train(config, max_steps=STEPS + 2).run_dir)
    earlier = shutil.copytree(run, tmp_path / "earlier")
    (metric,) = (item for item in runs.compare(earlier, run).metrics if item.key == "energy_res_68pct")
    assert metric.errors, "the control: both are of epoch 1"
    assert engine.train(config, resume=str(run), observer=Stopping("train 4/4")).status == "interrupted"

    compared = runs.compare(earlier, run)
    values = {item.key: item.values for item in compared.metrics}
    assert (values["epoch"][0], compared.events) == (1, 0)
    assert values["epoch"][1] > 1
    (told,) = (note for note in compared.notes if "predictions.root" in note)
    step = STEPS * int(values["epoch"][1])
    assert f"{run}/predictions.root is of step {STEPS}, epoch {values['epoch'][1]} is step {step}: " in told
    line = told.partition(": xectool ")[2]
    assert f"is of step {STEPS}" in Path(engine.report(run).path).read_text()
    assert boundary.run(app, shlex.split(line)) == 0

    again = runs.compare(earlier, run)
    (metric,) = (item for item in again.metrics if item.key == "energy_res_68pct")
    assert metric.values == pytest.approx(values["energy_res_68pct"], rel=1e-3)
    assert metric.errors
    assert f"is of step {STEPS}" not in Path(engine.report(run).path).read_text()


@pytest.mark.parametrize("kind", ["mae", "inpainter"])
def test_predictions_of_single_sensors_tell_their_state(
    sensor_config: Config, tiny_data: Path, tmp_path: Path, kind: str
) -> None:
    run = Path(engine.train(sensor_config(kind, {"epochs": 1})).run_dir)
    own = state_of(run / "predictions.root")
    assert own is not None
    assert (own.step, own.epoch, own.validated) == (STEPS, 1, True)
    (row,) = (item for item in runs.compare(run, run).metrics if item.key == "val/loss")
    assert own.loss == row.first
    for weights, is_validated in (("ema", True), ("model", False)):
        path = tmp_path / f"{weights}.root"
        engine.predict(run / "checkpoint_last.pt", [str(tiny_data / "val.root")], output=path, weights=weights)
        assert (found := state_of(path)) is not None
        assert found.validated == is_validated
