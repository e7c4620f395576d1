"""Steps that are not finite: from the data, the rate, the precision, the loss, the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from xectool.config.tasks import TRUTH_BRANCHES
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.models.heads import TargetTransform
from xectool.models.normalize import Normalizer
from xectool.simulation.dataset import BRANCHES
from xectool.tasks import regression
from xectool.training.events import targets

from benchmarks.diagnosis import hooks
from benchmarks.diagnosis.catalogue import fault
from benchmarks.diagnosis.files import Rows, changed
from benchmarks.diagnosis.lab import Lab

NOT_NUMBERS = (math.nan, math.inf, -math.inf)
SENSOR_KINDS = ("regressor", "regressor", "regressor", "mae", "inpainter")


def corrupt(lab: Lab, branch: str, values: tuple[float, ...], events: int = 1, factor: bool = False) -> None:
    """Write copies of the files in which random events have other values in one branch.

    Args:
        lab: Chooses events, sensors and values, and trains on the copies.
        branch: Branch that is changed.
        values: What the numbers become.
        events: How many events at most.
        factor: Whether the values are factors of what was there.
    """
    chosen = lab.rng.choice(lab.data.num_train, size=int(lab.rng.integers(1, events + 1)), replace=False)
    width = int(np.prod(BRANCHES[branch][1], initial=1))
    cells = lab.rng.choice(width, size=int(lab.rng.integers(1, min(6, width) + 1)), replace=False)
    first = 0

    def change(rows: Rows, index: int) -> None:
        nonlocal first
        column = rows[branch].reshape(len(rows[branch]), -1)
        for entry in sorted(int(event) - first for event in chosen if 0 <= event - first < len(column)):
            lab.planted.append((index, entry))
            for cell in _places(rows, branch, entry, cells) if width > 1 else [0]:
                value = lab.choose(values)
                column[entry, cell] = column[entry, cell] * value if factor else value
        first += len(column)

    place = lab.directory / "changed"
    place.mkdir()
    lab.train_files = changed(lab.train_files, place, change)


def _places(rows: Rows, branch: str, entry: int, cells: Any) -> Any:
    """Return the cells; of sensor times, as many of sensors that were alive: a dead one's time is never used."""
    if branch != "relative_time":
        return cells
    alive = np.flatnonzero(rows["npho"][entry] < UNKNOWN_ABOVE)
    return alive[cells % len(alive)]


def without_masks() -> None:
    """Take the mask of unusable readings and of unknown truth away, so that such numbers reach the network."""

    def normalize(self: Normalizer, npho: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        usable = torch.where(npho.abs() > 9e9, torch.zeros_like(npho), npho)
        usable = torch.where(npho.isfinite(), usable, npho)
        value = torch.where(usable < self.scheme.lowest, torch.zeros_like(usable), self.scheme(usable))
        value = torch.where(npho.isfinite(), value, npho)
        dead = (npho.abs() > 9e9) & npho.isfinite() | (time.abs() > 9e9) & time.isfinite()
        times = torch.where(dead, self.sentinel_time, time / self.time_scale - self.time_shift)
        return torch.stack((value, times), dim=-1), torch.stack((~dead, ~dead), dim=-1)

    Normalizer.normalize = normalize  # type: ignore[method-assign]
    regression.valid_truth = lambda truth: torch.ones(len(truth), dtype=torch.bool)  # type: ignore[attr-defined]


def guards(lab: Lab) -> dict[str, Any]:
    """Return a choice of what the guards do about bad steps; the input is let through."""
    return {
        "on_nonfinite": lab.choose(["skip", "skip", "stop"]),
        "quarantine": bool(lab.rng.integers(2)),
        "on_spike": lab.choose(["record", "skip"]),
        "on_input_scale": "warn",
    }


@fault("NaN or Inf in npho, masks on", "not finite", "XT-NAN-DATA", bisect=True)
def masked_reading(lab: Lab) -> None:
    lab.configure(SENSOR_KINDS, steps=40)
    corrupt(lab, "npho", NOT_NUMBERS, events=3)
    lab.train()


@fault("one sensor NaN in every event of a file, masks on", "not finite", "XT-NAN-DATA")
def sensor(lab: Lab) -> None:
    lab.configure(steps=40)
    cell, place = int(lab.rng.integers(4760)), lab.directory / "changed"
    broken = int(lab.rng.integers(len(lab.train_files)))

    def change(rows: Rows, index: int) -> None:
        if index == broken:
            rows["npho"][:, cell] = math.nan

    place.mkdir()
    lab.train_files = changed(lab.train_files, place, change)
    lab.train()


@fault("NaN or Inf in a truth, masks on", "not finite", "XT-NAN-DATA", bisect=True)
def masked_truth(lab: Lab) -> None:
    lab.configure(steps=40)
    corrupt(lab, TRUTH_BRANCHES[lab.choose(lab.tasks)], NOT_NUMBERS, events=3)  # many NaN are a mark, and sound
    lab.train()


@fault("NaN or Inf in npho, masks off", "not finite", "XT-NAN-DATA", bisect=True)
def reading(lab: Lab) -> None:
    lab.configure(steps=40, guards=guards(lab))
    corrupt(lab, "npho", NOT_NUMBERS, events=2)
    lab.train(without_masks)


@fault("NaN or Inf in the time, masks off", "not finite", "XT-NAN-DATA", bisect=True)
def time_reading(lab: Lab) -> None:
    lab.configure(steps=40, guards=guards(lab))
    corrupt(lab, "relative_time", NOT_NUMBERS, events=2)
    lab.train(without_masks)


@fault("NaN or Inf in a truth, masks off", "not finite", "XT-NAN-DATA", bisect=True)
def truth(lab: Lab) -> None:
    lab.configure(steps=40, guards=guards(lab))
    corrupt(lab, TRUTH_BRANCHES[lab.choose(lab.tasks)], NOT_NUMBERS, events=2)
    lab.train(without_masks)


@fault("learning rate 1 to 10", "not finite", "XT-NAN-LR", "XT-SPIKE-LR", "XT-CONFIG-LR")
def rate(lab: Lab) -> None:
    lab.configure(("regressor", "regressor", "mae"), steps=40)
    lab.set(training={"lr": lab.log_uniform(1, 10), "lr_scheduler": "constant", "grad_clip": lab.choose([0.0, 1.0])})
    lab.train()


@fault("weights run away until they overflow", "not finite", "XT-NAN-LR", "XT-SPIKE-LR", "XT-NAN-WEIGHTS")
def runaway(lab: Lab) -> None:
    """Every step multiplies the weights of a head, by more than any rate would: both are true to say."""
    lab.configure(steps=60)
    begin, growth = int(lab.rng.integers(8, 25)), float(lab.rng.uniform(1.5, 6))

    def grow(step: int, stepper: Any) -> None:
        if step >= begin:
            with torch.no_grad():
                for name, parameter in stepper.model.named_parameters():
                    if name.startswith("heads."):
                        parameter.mul_(growth)

    lab.train(lambda: hooks.before_step(grow))


@fault("a product beyond float16 inside a module", "not finite", "XT-AMP-OVERFLOW")
def overflow(lab: Lab) -> None:
    lab.configure(steps=50, training={"amp": "fp16"})
    begin, scale, place = int(lab.rng.integers(2, 30)), lab.log_uniform(1e6, 1e8), lab.rng.random()

    def widen(trainer: Any) -> None:
        chosen, plain = hooks.Chosen(trainer.parts, place), nn.functional.linear

        def widened(linear: Any) -> Any:
            def forward(x: Tensor) -> Tensor:
                factor = scale if chosen.is_it(linear) and chosen.step >= begin else 1.0
                bias = linear.bias * factor if linear.bias is not None else None
                return plain(x, linear.weight * factor, bias) / factor

            return forward

        for linear in chosen.modules:
            linear.forward = widened(linear)  # type: ignore[method-assign]

    lab.train(lambda: hooks.before_fit(widen))


@fault("logarithm of a truth that is not positive", "not finite", "XT-NAN-LOSS")
def logarithm(lab: Lab) -> None:
    lab.configure(steps=40, guards={**guards(lab), "on_spike": "record"})
    task = {"enabled": True, "log_transform": True, "scale": 0.5, "shift": -3.5}
    lab.settings["tasks"]["energy"] = task
    corrupt(lab, "energyTruth", (0.0, -0.01, -1.0), events=3)

    def undo() -> None:
        regression._require_positive = lambda *_: None  # type: ignore[assignment]
        targets.require_logarithms = lambda *_: None  # type: ignore[assignment]
        targets.resolve_target_scaling.__globals__["known_truth"] = _positive(targets.known_truth)
        TargetTransform.encode = lambda self, target: (
            (  # type: ignore[method-assign]
                (target.log() if self.log_transform else target) - self.shift
            )
            / self.scale
        )

    lab.train(undo)


def _positive(known: Any) -> Any:
    least = {"energy": 1e-3}
    return lambda name, source: [np.abs(part) + least.get(name, 0.0) for part in known(name, source)]


@fault("a loss term outside its domain", "not finite", "XT-NAN-LOSS")
def domain(lab: Lab) -> None:
    lab.configure(steps=40, guards=guards(lab))
    task, how, begin = lab.choose(lab.tasks), lab.choose(["log", "sqrt"]), int(lab.rng.integers(1, 25))
    step = [0]

    def narrow(trainer: Any) -> None:
        loss = trainer.parts.task.losses[task]
        function = {"log": torch.log, "sqrt": torch.sqrt}[how]

        def pointwise(prediction: Tensor, target: Tensor, beta: float) -> Tensor:
            values = loss.pointwise(prediction, target, beta)
            if step[0] < begin:
                return values
            spread = prediction[..., : values.shape[-1]]
            return values + 0.01 * function(spread - spread.mean() - 0.05)

        trainer.parts.task.losses[task] = replace(loss, pointwise=pointwise)

    def sabotage() -> None:
        hooks.before_fit(narrow)
        hooks.before_step(lambda number, _: step.__setitem__(0, number))

    lab.train(sabotage)


@fault("one weight becomes NaN", "not finite", "XT-NAN-WEIGHTS")
def weight(lab: Lab) -> None:
    lab.configure(("regressor", "regressor", "mae"), steps=40)
    step, place, index = int(lab.rng.integers(2, 35)), lab.rng.random(), int(lab.rng.integers(10**6))
    value = lab.choose([math.nan, math.inf])

    def poison(stepper: Any) -> None:
        found = hooks.matrices(stepper)
        hooks.set_entry(found[int(place * len(found))][1], index, value)

    lab.train(lambda: hooks.at_step(step, poison))


def bent_gradient(lab: Lab, latest: int = 30) -> Callable[[Any], None]:
    """Return what gives one layer of a trainer's network a derivative that is not finite, now and then.

    Args:
        lab: Is configured.
        latest: Step by which it has happened, or the end of the first epoch where that is 0.
    """
    lab.configure(steps=40)
    latest = latest or max(3, lab.steps_per_epoch)
    step, share, place = int(lab.rng.integers(2, latest)), float(lab.rng.uniform(0, 0.3)), lab.rng.random()

    class Root(torch.autograd.Function):
        """Hands on what it is given; its derivative is that of a root at zero."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad / 0.0 * 0.0

    generator = torch.Generator().manual_seed(int(lab.rng.integers(2**31)))

    def attach(trainer: Any) -> None:
        chosen = hooks.Chosen(trainer.parts, place)

        def bend(module: nn.Module, output: Tensor) -> Any:
            rare = float(torch.rand((), generator=generator)) < share
            return Root.apply(output) if chosen.step == step or (chosen.step > step and rare) else output

        chosen.hook(bend)

    return attach


@fault("a finite loss with a gradient that is not", "not finite", "XT-NAN-GRAD")
def gradient(lab: Lab) -> None:
    attach = bent_gradient(lab)
    lab.train(lambda: hooks.before_fit(attach))
