"""A place for one case: what its seed chooses, its files, and trainings in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from xectool import engine
from xectool.errors import XecError

from benchmarks.diagnosis.files import EventFiles, generator

LONGEST_S = 1500.0
TASKS = ("energy", "uvwFI", "angle", "timing", "angleVec")
POOLS = ([5, 3], [3, 4], [9, 6])
Sabotage = Callable[[], object]


class Lab:
    """Chooses model, data, schedule and tasks by the seed, and trains with or without a fault.

    Args:
        directory: Where everything of the case goes; made by the caller.
        seed: Decides everything random, with the name of the case.
        name: Name of the case.
        data: Data sets to choose from.

    Attributes:
        rng: For whatever else the case has to choose.
        settings: Configuration of the run.
        planted: ``(file index, entry)`` of the events that were corrupted.
    """

    def __init__(self, directory: Path, seed: int, name: str, data: Sequence[EventFiles]) -> None:
        self.directory = directory
        self.rng = generator(seed, name)
        self.data = data[int(self.rng.integers(len(data)))]
        self.train_files: list[Path] = list(self.data.train)
        self.planted: list[tuple[int, int]] = []
        self.settings: dict[str, Any] = {}
        self.kind = "regressor"

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.directory / "runs" / "run"

    @property
    def refusal(self) -> Path:
        """File with the code of the error that ended the last training."""
        return self.directory / "error.txt"

    @property
    def tasks(self) -> list[str]:
        """Tasks that are learned."""
        return list(self.settings["tasks"])

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        batches = -(-self.data.num_train // self.settings["data"]["batch_size"])
        return int(-(-batches // self.settings["training"]["grad_accum_steps"]))

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.steps_per_epoch * int(self.settings["training"]["epochs"])

    def choose(self, values: Sequence[Any]) -> Any:
        """Return one of some values."""
        return values[int(self.rng.integers(len(values)))]

    def log_uniform(self, low: float, high: float) -> float:
        """Return a number whose logarithm is flat."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def configure(self, kinds: Sequence[str] = ("regressor",), steps: int = 60, **sections: Any) -> Lab:
        """Choose a configuration of at least ``steps`` steps; ``sections`` go before what is chosen."""
        self.kind = self.choose(kinds)
        batch = int(self.rng.integers(3, 7)) if self.kind == "regressor" else int(self.rng.integers(2, 4))
        accum = int(self.rng.choice([1, 1, 1, 2]))
        self.settings = {
            "kind": self.kind,
            "data": {"batch_size": batch, "chunksize": int(self.choose([64, 256, 8192]))},
            "model": {
                "encoder_dim": int(self.choose([32, 32, 32, 64])),
                "outer_fine_pool": self.choose(POOLS),
                "num_fusion_layers": int(self.choose([1, 1, 2])),
            },
            "training": {
                "lr": self.log_uniform(2e-4, 1e-3),
                "warmup_epochs": int(self.choose([0, 0, 1])),
                "lr_scheduler": self.choose(["constant", "cosine", "onecycle"]),
                "grad_accum_steps": accum,
                "ema_decay": self.choose([None, 0.99]),
                "seed": int(self.rng.integers(2**31)),
            },
            "checkpoint": {"save_dir": str(self.directory / "runs"), "save_artifacts": False, "save_minutes": None},
            "mlflow": {"enabled": False, "run_name": "run"},
        }
        if self.kind == "regressor":
            self._choose_tasks()
        epochs = max(2, -(-steps * batch * accum // self.data.num_train))
        self.settings["training"]["epochs"] = int(epochs)
        return self.set(**sections)

    def set(self, **sections: Any) -> Lab:
        """Change settings by section."""
        for name, values in sections.items():
            known = self.settings.get(name)
            self.settings[name] = {**known, **values} if isinstance(known, dict) else values
        return self

    def _choose_tasks(self) -> None:
        chosen = [TASKS[i] for i in self.rng.permutation(len(TASKS))[: int(self.rng.integers(2, 4))]]
        loss = self.choose(["smooth_l1", "mse", "l1"])
        self.settings["tasks"] = {
            name: {"enabled": True, "scale": "auto", "shift": "auto", "loss_fn": loss} for name in sorted(chosen)
        }
        self.settings["model"] |= {"hidden_dim": int(self.choose([8, 16, 32]))}

    def train(
        self, sabotage: Sabotage | None = None, *, resume: str | None = None, max_steps: int | None = None
    ) -> int:
        """Train in a process of its own; return its exit status, negative for a signal.

        Args:
            sabotage: Called in that process before the training.
            resume: As on the command line.
            max_steps: Steps after which the training stops.
        """
        config = self.directory / "config.yaml"
        paths = {"train_path": [str(path) for path in self.train_files], "val_path": str(self.data.val)}
        config.write_text(yaml.safe_dump({**self.settings, "data": {**paths, **self.settings["data"]}}))
        child = os.fork()
        if child == 0:
            self._be_the_child(config, sabotage, resume, max_steps)
        return _wait(child)

    def _be_the_child(self, config: Path, sabotage: Sabotage | None, resume: str | None, max_steps: int | None) -> None:
        code = 70
        try:
            with (self.directory / "output.txt").open("a") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            torch.set_num_threads(1)
            if sabotage is not None:
                sabotage()
            engine.train(config, resume=resume, max_steps=max_steps)
            code = 0
        except XecError as error:
            code = error.exit_code
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            self.refusal.write_text(error.code)
        except BaseException:  # noqa: BLE001  the child must never return into the benchmark
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stderr.flush()
            os._exit(code)


def _wait(child: int) -> int:
    """Return the exit status of a child that is given so many seconds."""
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL
