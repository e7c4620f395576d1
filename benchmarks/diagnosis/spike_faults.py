"""Jumps of the loss: from one event, from the rate, from a restart of its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from xectool.config.tasks import TRUTH_BRANCHES
from xectool.training.optimization.schedule import LearningRate

from benchmarks.diagnosis.catalogue import fault
from benchmarks.diagnosis.files import Rows, changed
from benchmarks.diagnosis.lab import Lab
from benchmarks.diagnosis.nan_faults import corrupt

HIGH_RATE = ("XT-SPIKE-LR", "XT-NAN-LR", "XT-CONFIG-LR")  # one fault: it jumps, overflows, or only never falls


@fault("a truth 1e3 to 1e6 times too large", "spike", "XT-SPIKE-EVENT")
def truth(lab: Lab) -> None:
    lab.configure(steps=60, guards={"on_spike": lab.choose(["record", "skip", "rewind"])})
    corrupt(lab, TRUTH_BRANCHES[lab.choose(lab.tasks)], (lab.log_uniform(1e3, 1e6),), factor=True)
    lab.train()


@fault("sensor times 1e2 to 1e6 s in a reconstruction", "spike", "XT-SPIKE-EVENT")
def reading(lab: Lab) -> None:
    lab.configure(("mae",), steps=50)
    lab.set(guards={"on_spike": lab.choose(["record", "skip"])})
    corrupt(lab, "npho", (1.0,), factor=True)
    seconds = lab.log_uniform(1e2, 1e6)

    def change(rows: Rows, entry: int) -> None:
        rows["relative_time"][entry][rows["npho"][entry] > 200] = seconds

    planted_change(lab, change)
    lab.train()


@fault("all readings of an event 1e3 to 1e5 times too large", "spike", "XT-SPIKE-EVENT")
def bright(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=40)
    corrupt(lab, "npho", (1.0,), factor=True)
    factor = np.float32(lab.log_uniform(1e3, 1e5))

    def change(rows: Rows, entry: int) -> None:
        known = rows["npho"][entry] < 9e9
        rows["npho"][entry][known] *= factor

    planted_change(lab, change)
    lab.train()


def planted_change(lab: Lab, change: Callable[[Rows, int], None]) -> None:
    """Change the planted events in further copies of the files."""

    def each(rows: Rows, index: int) -> None:
        for file_index, entry in lab.planted:
            if file_index == index:
                change(rows, entry)

    place = lab.directory / "further"
    place.mkdir()
    lab.train_files = changed(lab.train_files, place, each)


@fault("learning rate 0.05 to 0.5", "spike", *HIGH_RATE)
def rate(lab: Lab) -> None:
    lab.configure(("regressor", "regressor", "mae"), steps=60)
    lab.set(
        training={"lr": lab.log_uniform(0.05, 0.5), "lr_scheduler": "constant", "grad_clip": lab.choose([0.0, 1.0])}
    )
    lab.train()


@fault("learning rate 30 times the usual", "spike", *HIGH_RATE)
def thirty(lab: Lab) -> None:
    lab.configure(steps=70)
    lab.set(training={"lr": 30 * lab.settings["training"]["lr"] + 0.01, "lr_scheduler": "constant"}).train()


@fault("the rate jumps by 300 to 3000 in mid-run", "spike", *HIGH_RATE)
def jump(lab: Lab) -> None:
    lab.configure(steps=70, training={"lr_scheduler": "constant", "lr": 1e-3})
    begin, factor, planned = int(lab.rng.integers(25, 50)), lab.log_uniform(300, 3000), LearningRate.__call__
    lab.train(lambda: setattr(LearningRate, "__call__", _raised(planned, begin, factor)))


def _raised(planned: Any, begin: int, factor: float) -> Any:
    return lambda self, step: planned(self, step) * (factor if step >= begin else 1.0)


@fault("a schedule that restarts at a rate the network cannot take", "spike", "XT-SPIKE-RESTART")
def restart(lab: Lab) -> None:
    """The first cycle starts below, as after a change of the file in mid-run; the second at the full rate."""
    lab.configure(steps=90)
    peak, gentle_peak = lab.log_uniform(0.3, 1.0), 2e-3
    lab.set(
        training={
            "grad_accum_steps": 1,
            "lr_scheduler": "cosine_restarts",
            "lr": peak,
            "lr_restart_mult": 1,
            "warmup_epochs": 0,
            "lr_min": 1e-6,
            "grad_clip": lab.choose([0.0, 1.0]),
        },
    )
    period = math.ceil(60 / lab.steps_per_epoch)
    planned, first = LearningRate.__call__, period * lab.steps_per_epoch

    def gentle(self: LearningRate, step: int) -> float:
        return planned(self, step) * (gentle_peak / peak if step < first else 1.0)

    lab.set(training={"lr_restart_period": period})
    lab.set(training={"epochs": math.ceil((first + 30) / lab.steps_per_epoch)})
    lab.train(lambda: setattr(LearningRate, "__call__", gentle))


@fault("a resume with a fresh schedule at a hundred times the rate", "spike", "XT-SPIKE-RESTART", *HIGH_RATE)
def refreshed(lab: Lab) -> None:
    lab.configure(steps=60, training={"lr_scheduler": "cosine", "lr": 1e-3})
    half = lab.num_steps // 2
    lab.train(max_steps=half)
    lab.set(training={"lr": lab.log_uniform(0.1, 0.5)}, checkpoint={"refresh_lr": True})
    lab.train(resume="auto")
