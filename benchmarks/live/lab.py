"""A place for one scenario: files, trainings started as users start them, and whatever is asked about them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import psutil
import yaml
from xectool.runlog.reader import RunReader
from xectool.runlog.status_page import PageView
from xectool.runlog.storage import attempts

ROOT: Final = Path(__file__).parents[2]
XECTOOL: Final = (sys.executable, "-m", "xectool")
START_S: Final = 300.0
GONE_S: Final = 15.0  # what a run may take to be gone after its trainer
Value = TypeVar("Value")


@dataclass(frozen=True)
class Said:
    """What a command answered.

    Attributes:
        code: Its exit code.
        out: Its output.
        err: What it wrote beside.
        seconds: How long it took.
    """

    code: int
    out: str
    err: str
    seconds: float

    @property
    def document(self) -> dict[str, Any]:
        """The document of ``--json``; empty where there is none."""
        try:
            return dict(json.loads(self.out))
        except ValueError:
            return {}

    @property
    def result(self) -> dict[str, Any]:
        """The result in it."""
        return dict(self.document.get("result") or {})

    @property
    def finding(self) -> dict[str, Any]:
        """Its first finding."""
        return dict((self.document.get("findings") or [{}])[0])


def ask(*argv: object, under: Sequence[str] = (), limit_s: float = 240.0, **environment: str) -> Said:
    """Run a command of xectool to its end, ``under`` another one where that is wanted."""
    began = time.monotonic()
    done = subprocess.run(
        [*under, *XECTOOL, *map(str, argv)], capture_output=True, text=True, check=False, timeout=limit_s,
        env=surroundings(**environment), cwd="/",
    )  # fmt: skip
    return Said(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def surroundings(*paths: Path, **environment: str) -> dict[str, str]:
    """Return the environment of a command: this code, one thread, plain output."""
    known = os.environ.get("PYTHONPATH")
    where = os.pathsep.join([*map(str, paths), str(ROOT), *([known] if known else [])])
    return {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONPATH": where, **environment}


def wait_for(what: Callable[[], Value], limit_s: float = START_S, every_s: float = 0.05) -> Value:
    """Return the first true answer, or the last one where the time is over."""
    until = time.monotonic() + limit_s
    while not (found := what()) and time.monotonic() < until:
        time.sleep(every_s)
    return found


class Run:
    """A training of a user.

    Args:
        lab: Where it was started.
        directory: Its run directory.
        command: What was started.
        environment: Beside the usual one.
    """

    def __init__(self, lab: Lab, directory: Path, command: Sequence[str], **environment: str) -> None:
        self.directory, self.mark = directory, uuid.uuid4().hex
        self.witness = lab.directory / f"{directory.name}.witness"
        self.log = lab.directory / f"{directory.name}-{self.mark[:6]}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=lab.directory, start_new_session=True,
                env=surroundings(lab.hooks, LIVE_RUN=self.mark, LIVE_WITNESS=str(self.witness), **environment),
            )  # fmt: skip

    @property
    def reader(self) -> RunReader:
        """Its record."""
        return RunReader(self.directory)

    @property
    def pages(self) -> dict[int, PageView]:
        """Status pages of the attempt that runs now, by rank."""
        with contextlib.suppress(OSError, ValueError):
            if attempts(self.directory):
                return {page.rank: page for page in self.reader.live() if page.pid in self.pids}
        return {}

    @property
    def step(self) -> int:
        """Last finished step of the rank that is behind; 0 before this attempt has a page."""
        return min((page.step for page in self.pages.values()), default=0)

    @property
    def pids(self) -> list[int]:
        """All its processes that live."""
        return [process.pid for process in psutil.process_iter() if self._is_own(process)]

    def _is_own(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            return process.environ().get("LIVE_RUN") == self.mark and process.status() != psutil.STATUS_ZOMBIE
        return False

    @property
    def ended(self) -> bool:
        """Whether what was started has ended."""
        return self.process.poll() is not None

    def until_step(self, number: int) -> Run:
        """Wait until every rank has taken so many steps.

        Raises:
            RuntimeError: It ended before, or never came so far.
        """
        wait_for(lambda: self.step >= number or self.ended, every_s=0.2)
        if self.step < number:
            raise RuntimeError(f"no step {number}: {self.log.read_text()[-600:]}")
        return self

    def until_end(self, limit_s: float = START_S) -> int | None:
        """Return its exit code, None where it goes on."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(limit_s)
        return None

    def readers(self, rank: int = 0) -> list[int]:
        """Return the reading processes of a rank, without the server that starts them."""
        own = {slot.pid for slot in self.reader.workers() if slot.loader == "training" and slot.state != "exit"}
        return sorted(pid for pid in own & set(self.pids) if _is_below(pid, self.pages[rank].pid))

    def tracker(self) -> int:
        """Return the process that mirrors it."""
        lines = {pid: " ".join(psutil.Process(pid).cmdline()) for pid in self.pids}
        return next((pid for pid, line in lines.items() if "xectool.training.tracking" in line), 0)

    def events(self, kind: str) -> list[Any]:
        """Return its events of a kind."""
        return [event for event in self.reader.events() if event.kind == kind]

    def steps_taken(self) -> list[dict[str, Any]]:
        """Return what the hooks saw of its steps, in all its attempts: rank, epoch, batch, step, pid, events."""
        return [json.loads(line) for line in self.witness.read_text().splitlines()] if self.witness.exists() else []

    def ask(self, *argv: object) -> Said:
        """Ask a command about it, with a document as answer."""
        words = [str(self.directory) if word == "RUN" else word for word in argv]
        return ask(*words, "--json")

    def close(self) -> list[str]:
        """Kill what was started, and return what is left of the run."""
        if not self.ended:
            self.process.kill()
            self.process.wait()
        wait_for(lambda: not self.pids, GONE_S)
        left = self.pids
        lines = []
        for pid in left:
            with contextlib.suppress(psutil.Error, OSError):
                lines.append(f"{pid} {' '.join(psutil.Process(pid).cmdline())[:60]}")
                os.kill(pid, 9)
        return lines


def _is_below(pid: int, ancestor: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(parent.pid == ancestor for parent in psutil.Process(pid).parents())
    return False


class Lab:
    """Makes files and configurations, and starts trainings.

    Args:
        directory: Where everything goes; made by the caller.
        seed: Decides everything random, with the name of the scenario.
        name: Name of the scenario.
        options: What the command line says besides.
    """

    def __init__(self, directory: Path, seed: int, name: str, **options: int) -> None:
        self.directory, self.options = directory, options
        self.rng = np.random.default_rng([seed, *name.encode()])
        self.go, self.pipe = directory / "go", directory / "pipe"
        self.hooks = directory / "hooks"
        self.hooks.mkdir(parents=True)
        (self.hooks / "sitecustomize.py").write_text("from benchmarks.live.hooks import install\n\ninstall()\n")
        os.mkfifo(self.pipe)
        self.runs: list[Run] = []

    def simulated(self, name: str, events: int, seed: int) -> Path:
        """Return a file of so many events."""
        path = self.directory / f"{name}.root"
        if not path.exists():
            done = ask("simulate", path, "--events", events, "--seed", seed)
            if done.code:
                raise RuntimeError(done.err)
        return path

    def config(self, name: str = "config", train: str | list[str] = "", val: str = "", **sections: Any) -> Path:
        """Write the configuration of a small network; ``sections`` go before what it has by itself."""
        shared = self.directory.parent / "data"
        content: dict[str, Any] = {
            "kind": "regressor",
            "data": {
                "train_path": train or str(shared / "train.root"), "val_path": val or str(shared / "val.root"),
                "batch_size": 2, "chunksize": 8, "num_shards": 2, "num_threads": 1, "cache": "off",
            },
            "model": {
                "encoder_dim": 32, "hidden_dim": 8, "outer_fine_pool": [5, 3], "num_fusion_layers": 1, "dropout": 0.0,
                "head_dropout": 0.0,
            },
            "tasks": {"energy": {"enabled": True, "scale": "auto", "shift": "auto"}},
            "training": {"epochs": 100_000, "device": "cpu", "warmup_epochs": 0, "lr": 1e-5},
            "validation": {"interval": 1000},
            "checkpoint": {"save_dir": str(self.directory / "runs"), "save_artifacts": False, "save_steps": 5},
            "mlflow": {"enabled": False},
        }  # fmt: skip
        for section, values in sections.items():
            content[section] = {**content.get(section, {}), **values}
        if content["data"].get("num_workers"):
            content["data"].setdefault("prefetch_factor", 1)
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    def train(
        self, config: Path, *argv: object, nproc: int = 1, name: str = "run", torchrun: bool = False, **surrounding: str
    ) -> Run:
        """Start a training; ``surrounding`` goes to its environment, with ``LIVE_`` before each name."""
        words = ["train", config, "--run-name", name, *argv]
        command = [*XECTOOL, *words, *(["--nproc", nproc] if nproc > 1 else [])]
        if torchrun:
            launcher = ("-m", "torch.distributed.run", "--nproc-per-node", nproc)
            command = [sys.executable, *launcher, "-m", "xectool", *words]
        live = {f"LIVE_{key}": value for key, value in surrounding.items()}
        live |= {"LIVE_GO": str(self.go), "LIVE_PIPE": str(self.pipe)}
        live |= {"TORCHINDUCTOR_CACHE_DIR": str(self.directory / "inductor")}
        run = Run(self, self.directory / "runs" / name, [*map(str, command)], **live)
        self.runs.append(run)
        return run

    def release(self) -> None:
        """Let go whoever waits at the pipe."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK))

    def close(self) -> list[str]:
        """End all its runs and return what is left of them."""
        return [line for run in self.runs for line in run.close()]
