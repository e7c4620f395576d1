"""Faults that leave the loss nearly as it is: gains, pedestals, cuts, single truths, weights of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from xectool.detector import constants

from benchmarks.diagnosis import hooks
from benchmarks.diagnosis.catalogue import fault
from benchmarks.diagnosis.files import Rows
from benchmarks.diagnosis.lab import Lab
from benchmarks.diagnosis.learning_faults import rewritten

WITHOUT_ENERGY = ("uvwFI", "angle", "timing", "angleVec")


def known(rows: Rows) -> Any:
    """Return which readings are of live sensors."""
    return np.abs(rows["npho"]) < constants.UNKNOWN_ABOVE


@fault("a gain 2.5 to 15 times off in a part of the entries, no energy learnt", "input", "XT-INPUT-SCALE")
def gain(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=60)
    chosen = lab.rng.permutation(WITHOUT_ENERGY)[:2]
    if lab.kind == "regressor":
        lab.settings["tasks"] = {str(name): {"enabled": True, "scale": "auto", "shift": "auto"} for name in chosen}
    factor = lab.choose([lab.log_uniform(2.5, 15), 1 / lab.log_uniform(2.5, 15)])
    first = float(lab.rng.uniform(0.3, 0.6))

    def change(rows: Rows, index: int) -> None:
        part = np.where(np.linspace(0, 1, len(rows["npho"])) > first, np.float32(factor), np.float32(1))
        rows["npho"][:] = np.where(known(rows), rows["npho"] * part[:, None], rows["npho"])

    rewritten(lab, change)
    lab.train()


@fault("a pedestal of 400 to 40 000 photons a sensor in one file or all", "input", "XT-INPUT-SCALE")
def pedestal(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=60, guards={"on_input_scale": lab.choose(["warn", "stop"])})
    photons, one = np.float32(lab.log_uniform(400, 40_000)), lab.choose([True, False])

    def change(rows: Rows, index: int) -> None:
        if index == 0 or not one:
            rows["npho"][known(rows)] += photons

    rewritten(lab, change)
    lab.train()


@fault("a true position 250 to 3000 cm away in one event", "spike", "XT-SPIKE-EVENT")
def displaced(lab: Lab) -> None:
    lab.configure(steps=60)
    lab.settings["tasks"]["uvwFI"] = {"enabled": True, "scale": "auto", "shift": "auto", "loss_fn": "mse"}
    event, axis, shift = int(lab.rng.integers(lab.data.num_train)), int(lab.rng.integers(3)), lab.log_uniform(250, 3000)
    first = 0

    def change(rows: Rows, index: int) -> None:
        nonlocal first
        if 0 <= event - first < len(rows["uvwTruth"]):
            rows["uvwTruth"][event - first, axis] += lab.choose([-1, 1]) * shift
        first += len(rows["uvwTruth"])

    rewritten(lab, change)
    lab.train()


@fault("photons or times that weigh nothing", "learning", "XT-UNTRAINED-HEAD")
def weightless_channel(lab: Lab) -> None:
    lab.configure(("mae",), steps=40)
    weight = lab.choose([0.0, lab.log_uniform(1e-14, 1e-11)])
    lab.set(training=lab.choose([{"npho_weight": weight}, {"time": {"weight": weight}}])).train()


@fault("a cut that leaves 2 to 8 events", "input", "XT-DATA-NO-EVENTS")
def cut(lab: Lab) -> None:
    lab.configure(steps=40)
    distances: list[float] = []
    rewritten(lab, lambda rows, index: distances.extend(np.abs(rows["uvwTruth"][:, 0]).tolist()))
    left = int(lab.rng.integers(2, 9))
    limit = float(np.mean(sorted(distances)[left - 1 : left + 1]))
    # The few events of a validation file would not pass such a cut, so some of training are validated.
    lab.set(
        data={"val_path": str(lab.train_files[0]), "allow_overlap": True, "fiducial": {"enabled": True, "u_max": limit}}
    )
    lab.set(training={"epochs": 25}).train()


@fault("a module that rounds to float16 by itself", "not finite", "XT-AMP-OVERFLOW")
def own_half(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=50, training={"amp": lab.choose(["off", "fp16"])})
    begin, often, place = int(lab.rng.integers(2, 30)), int(lab.rng.integers(1, 6)), lab.rng.random()

    def attach(trainer: Any) -> None:
        chosen = hooks.Chosen(trainer.parts, place)

        def rounded(module: nn.Module, output: Tensor) -> Any:
            if chosen.step < begin or (chosen.step - begin) % often:
                return output
            return output + 0 * (output.to(torch.float16) * 1e7).float().nan_to_num(nan=0.0, posinf=torch.inf)

        chosen.hook(rounded)

    lab.train(lambda: hooks.before_fit(attach))
