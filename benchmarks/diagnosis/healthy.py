"""Sound runs of every kind: nothing above a note may be said about them."""

from __future__ import annotations

import math
import os
import signal
from typing import Any

import numpy as np
from xectool.checkpoint import store
from xectool.config.tasks import TRUTH_BRANCHES
from xectool.detector.constants import DEAD_VALUE

from benchmarks.diagnosis import hooks
from benchmarks.diagnosis.catalogue import fault
from benchmarks.diagnosis.lab import Lab
from benchmarks.diagnosis.learning_faults import rewritten

GROUP = "healthy"


@fault("regressor", GROUP)
def regressor(lab: Lab) -> None:
    lab.configure(steps=110).train()


@fault("mae", GROUP)
def mae(lab: Lab) -> None:
    lab.configure(("mae",), steps=50).train()


@fault("inpainter", GROUP)
def inpainter(lab: Lab) -> None:
    lab.configure(("inpainter",), steps=30).train()


@fault("a likelihood that passes through zero", GROUP)
def likelihood(lab: Lab) -> None:
    lab.configure(steps=80)
    for task in lab.settings["tasks"].values():
        task["loss_fn"] = "gaussian_nll"
    lab.train()


@fault("stopped by a signal and resumed", GROUP)
def interrupted(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=60)
    step = int(lab.rng.integers(5, 40))
    number = lab.choose([signal.SIGTERM, signal.SIGINT])
    lab.train(lambda: hooks.at_step(step, lambda _: os.kill(os.getpid(), number)))
    lab.train(resume="auto")


@fault("stopped by a signal", GROUP)
def stopped(lab: Lab) -> None:
    lab.configure(steps=60)
    step = int(lab.rng.integers(2, 50))
    lab.train(lambda: hooks.at_step(step, lambda _: os.kill(os.getpid(), signal.SIGTERM)))


@fault("max_steps, resumed twice", GROUP)
def in_parts(lab: Lab) -> None:
    lab.configure(steps=60)
    lab.train(max_steps=int(lab.rng.integers(3, 20)))
    lab.train(resume="auto", max_steps=int(lab.rng.integers(22, 40)))
    lab.train(resume="auto")


@fault("cosine with warm restarts", GROUP)
def restarts(lab: Lab) -> None:
    lab.configure(steps=90)
    lab.set(training={"lr_scheduler": "cosine_restarts", "lr_restart_period": 1, "lr_restart_mult": lab.choose([1, 2])})
    lab.train()


@fault("10 to 20 steps", GROUP)
def short(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=20).train(max_steps=int(lab.rng.integers(10, 21)))


@fault("20 events", GROUP)
def tiny(lab: Lab) -> None:
    lab.configure(steps=60, training={"grad_accum_steps": 1})
    rewritten(lab, lambda rows, index: [rows.__setitem__(name, rows[name][:20]) for name in rows])
    lab.train_files = lab.train_files[:1]
    lab.set(data={"batch_size": 4}, training={"epochs": 10})
    lab.train()


@fault("40 steps with truth in its own unit, two events a batch", GROUP)
def unscaled(lab: Lab) -> None:
    """An untrained network is far above what a constant reaches, and of two events one by far."""
    lab.configure(steps=60, training={"grad_accum_steps": 1, "lr": 3e-4})
    lab.set(data={"batch_size": 2})
    lab.settings["tasks"] = {"energy": {"enabled": True}}
    lab.train(max_steps=40)


@fault("float16", GROUP)
def half(lab: Lab) -> None:
    lab.configure(steps=60, training={"amp": "fp16"}).train()


@fault("bfloat16", GROUP)
def brain(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=40, training={"amp": "bf16"}).train()


@fault("reading processes", GROUP)
def workers(lab: Lab) -> None:
    lab.configure(steps=60, data={"num_workers": 2}).train()


@fault("resume with a fresh, lower rate", GROUP)
def refreshed(lab: Lab) -> None:
    lab.configure(steps=60)
    lab.train(max_steps=30)
    lab.set(training={"lr": 3e-4, "lr_scheduler": "cosine"}, checkpoint={"refresh_lr": True})
    lab.train(resume="auto")


@fault("resumed from an older, numbered checkpoint", GROUP)
def older(lab: Lab) -> None:
    lab.configure(steps=60, checkpoint={"save_interval": 1})
    lab.train()
    lab.train(resume=str(lab.run_dir / store.epoch_name(1)))


@fault("a scan of energies in order", GROUP)
def scanned(lab: Lab) -> None:
    lab.configure(steps=60)
    lab.settings["tasks"]["energy"] = {"enabled": True, "scale": "auto", "shift": "auto"}

    def change(rows: Any, index: int) -> None:
        order = np.argsort(rows["energyTruth"].ravel())
        rows.update({name: values[order] for name, values in rows.items()})

    rewritten(lab, change)
    lab.train()


@fault("truth unknown for a third of the events", GROUP)
def partial(lab: Lab) -> None:
    lab.configure(steps=60)

    def change(rows: Any, index: int) -> None:
        column = rows[TRUTH_BRANCHES[lab.choose(lab.tasks)]]
        column[lab.rng.random(len(column)) < 0.33] = lab.choose([math.nan, DEAD_VALUE])

    rewritten(lab, change)
    lab.train()


@fault("tracked by MLflow", GROUP)
def tracked(lab: Lab) -> None:
    lab.configure(steps=40)
    lab.set(mlflow={"enabled": True, "tracking_uri": f"sqlite:///{lab.directory / 'mlflow.db'}"}).train()
