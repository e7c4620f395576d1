"""The last good states of a run, to go back to; in memory, and beside a checkpoint so that a resume has them too."""

from __future__ import annotations

import copy
import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.errors import CheckpointError
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import load_optimizer, load_task, load_weights

DIRECTORY: Final = "ring"


@dataclass(frozen=True)
class GoodState:
    """Everything the updates change, on the host.

    Attributes:
        step: Last optimizer step that is in it.
        checkpoint: Weights, their average, optimizer, loss and gradient scaler.
    """

    step: int
    checkpoint: Checkpoint

    @property
    def lr_scale(self) -> float:
        """Factor of every rate at the time; infinite where an older state does not say."""
        return float(self.checkpoint.meta.get("schedule", {}).get("scale", math.inf))

    @classmethod
    def of(cls, parts: RunParts, step: int) -> GoodState:
        """Return a copy of a run as it stands after ``step``."""
        training = {
            "optimizer": _copied(parts.stepper.optimizer.state_dict()),
            "scaler": dict(parts.stepper.scaler.state_dict()),
            "task": _copied(dict(parts.task.state_dict())),
        }
        meta: dict[str, Any] = {
            "kind": parts.config.kind,
            "config": {},
            "step": step,
            "num_averaged": parts.average.num_averaged,
            "schedule": parts.schedule.state_dict(),
        }
        return cls(
            step, Checkpoint(meta, _copied(dict(parts.model.state_dict())), _copied(parts.average.weights()), training)
        )

    def reinstate(self, parts: RunParts) -> None:
        """Give a run back what it was; place in the data, schedule and counters stay."""
        saved = self.checkpoint
        load_weights(parts.model, saved.model)
        load_task(parts.task, saved)
        load_optimizer(parts.stepper.optimizer, copy.deepcopy(saved.training["optimizer"]))
        if saved.training["scaler"]:
            parts.stepper.scaler.load_state_dict(saved.training["scaler"])
        if saved.ema:
            parts.average.load(saved.ema, int(saved.meta["num_averaged"]))


class GoodStates:
    """The newest few good states.

    Args:
        most: How many are kept.
        every: Steps between them.
    """

    def __init__(self, most: int, every: int) -> None:
        self.every = every
        self.states: deque[GoodState] = deque(maxlen=most)
        self._on_disk: set[Path] = set()  # files known to hold the state of this run and not of one given up

    def __len__(self) -> int:
        return len(self.states)

    def is_due(self, step: int) -> bool:
        """Return whether the state after ``step`` is to be kept."""
        return not self.states or step % self.every == 0

    def keep_if_due(self, parts: RunParts, step: int) -> None:
        """Keep the state after ``step`` if so many steps have passed; the caller vouches that it is good."""
        if self.is_due(step):
            self.states.append(GoodState.of(parts, step))

    def newest_first(self) -> list[GoodState]:
        """Return the states, the newest first."""
        return list(reversed(self.states))

    def drop_after(self, step: int) -> None:
        """Forget states later than ``step``."""
        while self.states and self.states[-1].step > step:
            self.states.pop()

    def write(self, run_dir: Path) -> list[int]:
        """Write the states that are not yet on the disk, remove those that are gone, and return their steps.

        A file of the same step that neither was written nor read here is of a continuation that was given up.

        Raises:
            DiskError: The disk refuses.
        """
        wanted = {run_dir / DIRECTORY / f"state_{state.step}.pt": state for state in self.states}
        for path, state in wanted.items():
            if path not in self._on_disk or not path.is_file():
                store.save(path, state.checkpoint)
                self._on_disk.add(path)
        for path in (run_dir / DIRECTORY).glob("state_*.pt"):
            if path not in wanted:
                path.unlink()
                self._on_disk.discard(path)
        return [state.step for state in self.states]

    def read(self, run_dir: Path, steps: list[int]) -> None:
        """Take over the states of these steps, as far as they are on the disk and sound."""
        for step in steps:
            path = run_dir / DIRECTORY / f"state_{step}.pt"
            try:
                checkpoint = store.load(path)
            except CheckpointError:
                continue  # an older state than this one remains, or the resumed state itself
            self.states.append(GoodState(step, checkpoint))
            self._on_disk.add(path)


def _copied(value: Any) -> Any:
    """Return nested containers with every tensor copied to the host."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True) if value.device.type != "cpu" else value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(item) for item in value)
    return value


def weights_of(state: GoodState, device: torch.device) -> dict[str, Tensor]:
    """Return the weights of a state on a device."""
    return {key: value.to(device) for key, value in state.checkpoint.model.items()}
