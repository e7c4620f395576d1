"""Damaged states, attempts that forget, steps and events that come twice."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from xectool.checkpoint import store
from xectool.runlog.writer import RunWriter
from xectool.training.stepping import state

from benchmarks.diagnosis import hooks
from benchmarks.diagnosis.catalogue import fault
from benchmarks.diagnosis.lab import Lab


def kill_at(step: int) -> None:
    """Kill this process before a step."""
    hooks.at_step(step, lambda _: os.kill(os.getpid(), signal.SIGKILL))


def resumed(
    lab: Lab, damage: Callable[[Any], None] | None, *, kinds: tuple[str, ...] = ("regressor",), by_name: bool = False
) -> None:
    """Train half of a run, change what was saved, and resume it, or that very file: ``auto`` passes over NaN."""
    lab.configure(kinds, steps=70, training={"lr_scheduler": lab.choose(["constant", "cosine"])})
    lab.train(max_steps=int(lab.num_steps * lab.rng.uniform(0.4, 0.7)))
    if damage is not None:
        edited(lab, damage)
    lab.train(resume=str(lab.run_dir / store.LAST_NAME) if by_name else "auto")


def edited(lab: Lab, damage: Callable[[Any], object]) -> None:
    """Change what was saved last."""
    path = lab.run_dir / store.LAST_NAME
    saved = store.load(path)
    damage(saved)
    store.save(path, saved)  # the digest is that of the damaged numbers


def _moments(saved: Any) -> list[torch.Tensor]:
    entries = saved.training["optimizer"]["state"].values()
    return [v for entry in entries for v in entry.values() if isinstance(v, torch.Tensor) and v.ndim]


@fault("moments times 1e6 to 1e12 in the checkpoint", "resume", "XT-NAN-RESUME")
def moments(lab: Lab) -> None:
    factor, which = lab.log_uniform(1e6, 1e12), lab.choose(["exp_avg", "exp_avg_sq"])
    if which == "exp_avg_sq":
        factor *= 1e6  # a second moment that is too large only slows down

    def damage(saved: Any) -> None:
        for entry in saved.training["optimizer"]["state"].values():
            entry["exp_avg"].mul_(factor)
            if which == "exp_avg_sq":
                entry["exp_avg_sq"].mul_(factor)

    resumed(lab, damage, kinds=("regressor", "regressor", "mae"))


@fault("NaN among the moments of a checkpoint", "resume", "XT-NAN-RESUME")
def nan_moments(lab: Lab) -> None:
    place, index = lab.rng.random(), int(lab.rng.integers(10**6))

    def damage(saved: Any) -> None:
        found = _moments(saved)
        hooks.set_entry(found[int(place * len(found))], index, math.nan)

    resumed(lab, damage, by_name=True)


@fault("Inf among the moments in mid-run", "not finite", "XT-NAN-WEIGHTS")
def inf_moments(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=40)
    step, place, index = int(lab.rng.integers(3, 35)), lab.rng.random(), int(lab.rng.integers(10**6))

    def poison(stepper: Any) -> None:
        found = [name for name, _ in hooks.matrices(stepper)]
        parameter = dict(hooks.matrices(stepper))[found[int(place * len(found))]]
        hooks.set_entry(stepper.optimizer.state[parameter]["exp_avg"], index, math.inf)

    lab.train(lambda: hooks.at_step(step, poison))


@fault("NaN among the weights of a checkpoint", "resume", "XT-NAN-RESUME")
def nan_weights(lab: Lab) -> None:
    place, index, value = lab.rng.random(), int(lab.rng.integers(10**6)), lab.choose([math.nan, math.inf])

    def damage(saved: Any) -> None:
        found = [tensor for tensor in saved.model.values() if tensor.is_floating_point() and tensor.numel() > 64]
        hooks.set_entry(found[int(place * len(found))], index, value)

    resumed(lab, damage, by_name=True)


@fault("weights of the checkpoint times 20 to 1000", "resume", "XT-NAN-RESUME")
def large_weights(lab: Lab) -> None:
    factor = lab.log_uniform(20, 1000)

    def damage(saved: Any) -> None:
        for tensor in saved.model.values():
            if tensor.is_floating_point():
                tensor.mul_(factor)

    resumed(lab, damage)


@fault("killed, and started anew in the same directory", "restart", "XT-RESTART")
def forgotten(lab: Lab) -> None:
    lab.configure(("regressor", "regressor", "mae"), steps=50)
    lab.set(checkpoint={"save_steps": int(lab.rng.integers(5, 15)), "overwrite": True})
    lab.train(lambda: kill_at(int(lab.num_steps * 0.7)))
    lab.train()


@fault("a resume that keeps the first weights", "restart", "XT-RESTART")
def unloaded(lab: Lab) -> None:
    lab.configure(("mae",), steps=60, training={"lr_scheduler": "constant", "warmup_epochs": 0})
    lab.set(training={"lr": lab.log_uniform(5e-4, 1.5e-3), "grad_accum_steps": 1, "ema_decay": None})
    lab.train(max_steps=int(lab.num_steps * 0.7))
    lab.train(lambda: setattr(state, "load_weights", lambda *_: None), resume="auto")


@fault("both moments begin again at a resume", "restart", "XT-RESTART")
def moments_anew(lab: Lab) -> None:
    def damage(saved: Any) -> None:
        for entry in saved.training["optimizer"]["state"].values():
            for value in entry.values():
                value.zero_()

    resumed(lab, damage, kinds=("regressor", "mae"))


@fault("the average begins again at a resume", "restart", "XT-RESTART")
def average_anew(lab: Lab) -> None:
    def damage(saved: Any) -> None:
        saved.meta["num_averaged"] = 0
        for key, weight in saved.model.items():
            saved.ema[key].copy_(weight)

    lab.configure(steps=70, training={"ema_decay": 0.99})
    lab.train(max_steps=int(lab.num_steps * lab.rng.uniform(0.4, 0.7)))
    edited(lab, damage)
    lab.train(resume="auto")


@fault("the schedule begins again at a resume", "restart", "XT-RESTART")
def schedule_anew(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=70)
    lab.set(training={"lr_scheduler": lab.choose(["cosine", "onecycle"]), "warmup_epochs": 0})
    lab.train(max_steps=int(lab.num_steps * lab.rng.uniform(0.4, 0.7)))
    edited(lab, lambda saved: saved.meta["schedule"].update(start_step=saved.meta["progress"]["step"]))
    lab.train(resume="auto")


@fault("an older file in the place of the last checkpoint", "restart", "XT-RESTART")
def set_back(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=60)
    lab.train(max_steps=int(lab.rng.integers(3, 12)))
    older = (lab.run_dir / store.LAST_NAME).read_bytes()
    lab.train(resume="auto", max_steps=int(lab.num_steps * 0.7))
    (lab.run_dir / store.LAST_NAME).write_bytes(older)
    lab.train(resume="auto")


@fault("ended by a batch system, and begun anew as it was", "restart", "XT-RESTART")
def put_off(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=50, checkpoint={"overwrite": True})
    step, number = int(lab.num_steps * lab.rng.uniform(0.4, 0.8)), lab.choose([signal.SIGTERM, signal.SIGUSR1])
    lab.train(lambda: hooks.at_step(step, lambda _: os.kill(os.getpid(), number)))
    lab.train()


@fault("steps recorded and taken twice", "duplicates", "XT-DUPLICATE-STEPS")
def twice(lab: Lab) -> None:
    lab.configure(steps=40)
    often, step = int(lab.rng.integers(2, 9)), RunWriter.step

    def again(self: RunWriter, record: Any) -> None:
        step(self, record)
        if record.step % often == 0:
            step(self, replace(record, time=record.time + 1e-3))

    lab.train(lambda: setattr(RunWriter, "step", again))


@fault("batches trained on twice", "duplicates", "XT-DUPLICATE-STEPS", "XT-DUPLICATE-EVENTS")
def batches_twice(lab: Lab) -> None:
    lab.configure(steps=40, training={"grad_accum_steps": 1})
    often = int(lab.rng.integers(3, 10))
    lab.train(lambda: hooks.each_batch(lambda batch: [batch, batch] if batch.step % often == 1 else [batch]))
