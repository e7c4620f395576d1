"""Runs in which nothing breaks and nothing is learned, and inputs in the wrong unit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from xectool.config.tasks import TRUTH_BRANCHES

from benchmarks.diagnosis import hooks
from benchmarks.diagnosis.catalogue import fault
from benchmarks.diagnosis.files import Rows, changed
from benchmarks.diagnosis.lab import Lab


def rewritten(lab: Lab, change: Any) -> None:
    """Train on changed copies of the files."""
    place = lab.directory / "changed"
    place.mkdir()
    lab.train_files = changed(lab.train_files, place, change)


@fault("learning rate 1e-13 to 1e-9", "learning", "XT-NO-LEARNING")
def frozen(lab: Lab) -> None:
    lab.configure(("regressor", "regressor", "mae"), steps=50)
    lab.set(training={"lr": lab.log_uniform(1e-13, 1e-9), "lr_min": 0.0, "lr_scheduler": "constant"}).train()


@fault("truth of other events", "learning", "XT-TRUTH-ELSEWHERE", "XT-NO-LEARNING", "XT-COLLAPSED")
def permuted(lab: Lab) -> None:
    """All that can be learned is the mean: the loss stays at that of a constant, and the predictions become one."""
    lab.configure(steps=150, training={"lr_scheduler": "cosine", "warmup_epochs": 0})

    def change(rows: Rows, index: int) -> None:
        for task in lab.tasks:
            lab.rng.shuffle(rows[TRUTH_BRANCHES[task]])

    rewritten(lab, change)
    lab.train()


@fault("the encoder gives the same for every event", "learning", "XT-ZERO-GRADIENT", "XT-COLLAPSED")
def collapsed(lab: Lab) -> None:
    lab.configure(steps=130, training={"warmup_epochs": 0})
    how = lab.choose(["zero", "mean"])

    def flatten(module: nn.Module, given: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 0 if how == "zero" else output.mean(0, keepdim=True).expand_as(output).detach() * 1e-9

    def attach(trainer: Any) -> None:
        for model in {trainer.parts.model, trainer.parts.average.best_model}:  # the averaged weights are validated
            for head in model.heads.values():
                head.register_forward_pre_hook(lambda module, given: (flatten(module, None, given[0]),))

    lab.train(lambda: hooks.before_fit(attach))


@fault("a task of weight 0", "learning", "XT-UNTRAINED-HEAD")
def weightless(lab: Lab) -> None:
    lab.configure(steps=50)
    lab.settings["tasks"][lab.choose(lab.tasks)]["weight"] = 0.0
    lab.train()


@fault("a task without any known truth (refused before the run)", "learning", "XT-DATA-NO-TRUTH")
def truthless(lab: Lab) -> None:
    lab.configure(steps=50)
    task = lab.choose(lab.tasks)
    lab.settings["tasks"][task] |= {"scale": 1.0, "shift": 0.0}
    unknown = lab.choose([math.nan, 1e10])
    rewritten(lab, lambda rows, index: rows[TRUTH_BRANCHES[task]].fill(unknown))
    lab.train()


@fault("a head that is detached", "learning", "XT-UNTRAINED-HEAD")
def detached(lab: Lab) -> None:
    lab.configure(steps=50)
    task = lab.choose(lab.tasks)

    def attach(trainer: Any) -> None:
        trainer.parts.model.heads[task].register_forward_hook(lambda module, given, output: output.detach())

    lab.train(lambda: hooks.before_fit(attach))


@fault("npho without a logarithm, in a unit of its own", "input", "XT-INPUT-SCALE")
def linear(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=40, guards={"on_input_scale": lab.choose(["warn", "stop"])})
    lab.set(normalization={"npho_scheme": "linear", "npho_scale": lab.log_uniform(0.01, 3)}).train()


@fault("files with npho 1e4 to 1e6 times too large", "input", "XT-INPUT-SCALE")
def other_unit(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=40, guards={"on_input_scale": lab.choose(["warn", "stop"])})
    factor = np.float32(lab.log_uniform(1e4, 1e6))

    def change(rows: Rows, index: int) -> None:
        known = rows["npho"] < 9e9
        rows["npho"][known] *= factor

    rewritten(lab, change)
    lab.train()


@fault("times in nanoseconds", "input", "XT-INPUT-SCALE")
def nanoseconds(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=40, guards={"on_input_scale": lab.choose(["warn", "stop"])})

    def change(rows: Rows, index: int) -> None:
        known = np.abs(rows["relative_time"]) < 9e9
        rows["relative_time"][known] *= np.float32(1e9)

    rewritten(lab, change)
    lab.train()
