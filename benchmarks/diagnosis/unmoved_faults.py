"""Settings that keep parts of a network, or all of it, where they are, and files that are wrong in their own way."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from xectool.config.tasks import TRUTH_BRANCHES

from benchmarks.diagnosis.catalogue import fault
from benchmarks.diagnosis.files import EventFiles, Rows, changed
from benchmarks.diagnosis.lab import Lab
from benchmarks.diagnosis.learning_faults import rewritten


@fault("a task of weight 1e-14 to 1e-11, or 1e9 to 1e12", "learning", "XT-UNTRAINED-HEAD")
def outweighed(lab: Lab) -> None:
    lab.configure(steps=50)
    weight = lab.choose([lab.log_uniform(1e-14, 1e-11), lab.log_uniform(1e9, 1e12)])
    lab.settings["tasks"][lab.choose(lab.tasks)]["weight"] = weight
    lab.train()


@fault("an optimizer that takes no step, or none that a weight feels", "learning", "XT-NO-LEARNING")
def unmoved(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=90, training={"lr": 1e-3, "lr_scheduler": "constant", "warmup_epochs": 0})
    eps = lab.choose([None, lab.log_uniform(1e5, 1e8)])

    def sabotage() -> None:
        if eps is None:
            torch.optim.AdamW.step = lambda self, closure=None: None  # type: ignore[method-assign,assignment]
            return
        init = torch.optim.AdamW.__init__
        torch.optim.AdamW.__init__ = lambda self, *a, **k: init(self, *a, **{**k, "eps": eps})  # type: ignore[method-assign]

    lab.train(sabotage)


@fault("an average of weights over 1e6 to 1e8 steps", "learning", "XT-NO-LEARNING")
def averaged(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=90)
    training: dict[str, Any] = {"lr": 1e-3, "lr_scheduler": "constant", "warmup_epochs": 0}
    lab.set(training={**training, "ema_decay": 1 - lab.log_uniform(1e-8, 1e-6)}).train()


@fault("photons of the wrong sign in one file or all", "input", "XT-INPUT-SCALE", "XT-SPIKE-EVENT")
def mirrored(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=40)
    one = lab.choose([True, False])

    def change(rows: Rows, index: int) -> None:
        if index == 0 or not one:
            rows["npho"][np.abs(rows["npho"]) < 9e9] *= -1

    rewritten(lab, change)
    lab.train()


@fault("a gain 2.5 to 12 times off in a part of the entries", "input", "XT-INPUT-SCALE")
def part_of_gain(lab: Lab) -> None:
    lab.configure(steps=60)
    lab.settings["tasks"]["energy"] = {"enabled": True, "scale": "auto", "shift": "auto"}
    factor = lab.choose([lab.log_uniform(2.5, 12), 1 / lab.log_uniform(2.5, 12)])
    drifts, first = lab.choose([True, False]), float(lab.rng.uniform(0.3, 0.6))

    def change(rows: Rows, index: int) -> None:
        place = np.linspace(0, 1, len(rows["npho"]))
        gain = factor ** (2 * place - 1) if drifts else np.where(place > first, factor, 1.0)
        rows["npho"][:] = np.where(rows["npho"] < 9e9, rows["npho"] * gain[:, None], rows["npho"])

    lab.train_files = lab.train_files[:1] if drifts else lab.train_files
    rewritten(lab, change)
    lab.train()


@fault("readings that come again under other numbers", "duplicates", "XT-DUPLICATE-EVENTS")
def renumbered(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=40)

    def change(rows: Rows, index: int) -> None:
        half = len(rows["npho"]) // 2
        for name, values in rows.items():
            if name not in ("run", "event"):
                values[half : 2 * half] = values[:half]

    rewritten(lab, change)
    lab.train()


@fault("validation files in another unit", "input", "XT-INPUT-SCALE")
def other_validation(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=40)
    branch, factor = lab.choose([("npho", lab.log_uniform(1e4, 1e6)), ("relative_time", 1e9)])

    def change(rows: Rows, index: int) -> None:
        rows[branch][np.abs(rows[branch]) < 9e9] *= np.float32(factor)

    place = lab.directory / "changed"
    place.mkdir()
    lab.data = EventFiles(lab.data.train, changed([lab.data.val], place, change)[0], lab.data.num_train)
    lab.train()


@fault("a truth in MeV, ns or mm", "input", "XT-TARGET-SCALE")
def truth_unit(lab: Lab) -> None:
    lab.configure(steps=40)
    factors = {"energy": 1e3, "timing": 1e9, "uvwFI": 10.0}
    lab.settings["tasks"]["energy"] = {"enabled": True, "scale": "auto", "shift": "auto"}
    task = lab.choose([name for name in lab.tasks if name in factors])

    def change(rows: Rows, index: int) -> None:
        rows[TRUTH_BRANCHES[task]] *= np.float32(factors[task])

    rewritten(lab, change)
    lab.train()
