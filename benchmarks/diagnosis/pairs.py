"""Two faults in one run: both have to be named, the one that led to the other first."""

from __future__ import annotations

import math
from typing import Any

from xectool.config.tasks import TRUTH_BRANCHES

from benchmarks.diagnosis import hooks
from benchmarks.diagnosis.catalogue import fault
from benchmarks.diagnosis.flow_faults import slow_reading, slow_saving
from benchmarks.diagnosis.lab import Lab
from benchmarks.diagnosis.machine_faults import leak, no_room, pause
from benchmarks.diagnosis.nan_faults import bent_gradient, corrupt, without_masks
from benchmarks.diagnosis.state_faults import kill_at

BOTH = ("XT-NAN-GRAD", "XT-DISK-FULL")


@fault("NaN in a reading + killed", "two", "XT-NAN-DATA", also=("XT-KILLED",))
def nan_and_killed(lab: Lab) -> None:
    lab.configure(steps=60)
    corrupt(lab, "npho", (math.nan, math.inf), events=2)
    end = lab.num_steps - int(lab.rng.integers(2, 10))

    def sabotage() -> None:
        without_masks()
        kill_at(end)

    lab.train(sabotage)


@fault("a truth a thousand times too large + a slow reader", "two", "XT-SPIKE-EVENT", also=("XT-LOADER-SLOW",))
def spike_and_slow(lab: Lab) -> None:
    lab.configure(steps=70, training={"grad_accum_steps": 1})
    corrupt(lab, TRUTH_BRANCHES[lab.choose(lab.tasks)], (lab.log_uniform(1e3, 1e5),), factor=True)
    lab.train(lambda: slow_reading(0.3))


@fault("a task of weight 0 + slow checkpoints", "two", "XT-UNTRAINED-HEAD", also=("XT-CKPT-SLOW",))
def head_and_disk(lab: Lab) -> None:
    lab.configure(steps=50)
    lab.settings["tasks"][lab.choose(lab.tasks)]["weight"] = 0.0
    lab.train(lambda: slow_saving(6.0))


@fault("lost memory + killed", "two", "XT-MEM-GROWTH", also=("XT-KILLED",))
def growth_and_killed(lab: Lab) -> None:
    lab.configure(steps=80)
    end = lab.num_steps - 3

    def sabotage() -> None:
        leak(6.0)
        pause(0.1)
        kill_at(end)

    lab.train(sabotage)


@fault("npho in another unit + a rate of 0.5", "two", "XT-INPUT-SCALE", also=("XT-SPIKE-LR|XT-NAN-LR|XT-CONFIG-LR",))
def scale_and_rate(lab: Lab) -> None:
    lab.configure(steps=50, guards={"on_input_scale": "warn"}, training={"lr": 0.5, "lr_scheduler": "constant"})
    lab.set(normalization={"npho_scheme": "linear", "npho_scale": 0.05}).train()


@fault("one weight NaN + a task of weight 0", "two", "XT-NAN-WEIGHTS", also=("XT-UNTRAINED-HEAD",))
def weight_and_head(lab: Lab) -> None:
    lab.configure(steps=60)
    lab.settings["tasks"][lab.choose(lab.tasks)]["weight"] = 0.0
    place, step = lab.rng.random(), int(lab.rng.integers(25, 45))

    def poison(stepper: Any) -> None:
        found = [p for name, p in hooks.matrices(stepper) if not name.startswith("heads.")]
        hooks.set_entry(found[int(place * len(found))], 7, math.nan)

    lab.train(lambda: hooks.at_step(step, poison))


@fault("a finite loss with NaN gradients + a full disk", "two", *BOTH, also=BOTH)
def gradient_and_disk(lab: Lab) -> None:
    attach, limit = bent_gradient(lab, latest=0), no_room(lab)  # the first checkpoint ends the run

    def sabotage() -> None:
        hooks.before_fit(lambda trainer: (attach(trainer), limit(trainer)))

    lab.train(sabotage)


@fault("killed and started anew + a truth too large", "two", "XT-RESTART", also=("XT-SPIKE-EVENT",))
def restart_and_event(lab: Lab) -> None:
    lab.configure(steps=50, checkpoint={"save_steps": 10, "overwrite": True})
    corrupt(lab, TRUTH_BRANCHES[lab.choose(lab.tasks)], (lab.log_uniform(1e3, 1e5),), factor=True)
    lab.train(lambda: kill_at(int(lab.num_steps * 0.6)))
    lab.train()
