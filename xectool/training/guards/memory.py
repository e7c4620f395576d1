"""Guards on host memory: how full it is, and whether it grows with every step."""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from xectool.config.host_memory import reader_settings
from xectool.config.platform import available_memory
from xectool.config.root import RunConfig
from xectool.data.loader import loader_memory_bytes
from xectool.errors import OutOfMemory
from xectool.runlog.process import resident_bytes, tree_memory
from xectool.training.guards.base import Guard, Notice, StepFacts
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.symptoms.kept_graphs import kept_graphs

LOOK_EVERY_S: Final = 5.0
WINDOW: Final = 30  # steps a slope is taken over
EVERY: Final = 2  # steps; with the cold caches of a step a read costs several times what it does in a loop
LOOK_STEPS: Final = 10
LONG: Final = 120  # steps in which stairs show that are too far apart for the window
FIRST_STEPS: Final = 5  # in which allocators fill their pools
GROWTH_BYTES: Final = 1e6  # a step
START_UP_BYTES: Final = 64e6  # that a sound run takes late, beside its loader: threads, libraries, pools
RISING: Final = 0.97  # share of the pairs of samples of which the later one is not less
_STATUS: Final = "/proc/self/status"
_MOST_STATUS_BYTES: Final = 1 << 16  # of which the groups of a user may be many


class HostMemory(Guard):
    """G14: saves and stops before the kernel kills the process.

    The budget is what the process tree has plus what it may still take: of the machine, its control group, its job. All
    ranks look at the same steps and stop together where one of them has to: by clocks of their own one would stop
    alone, and the others wait for it.
    """

    code = "G14"

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self._looked = time.monotonic()
        self._every, self._steps = 1, 0
        self._warned = False

    def after_step(self, progress: Progress, step: StepFacts) -> Iterator[Notice]:
        """Look about every five seconds.

        Raises:
            OutOfMemory: The share of ``guards.memory_stop`` is reached on some rank.
        """
        self._steps += 1
        if self._steps < self._every:
            return
        now, used = time.monotonic(), tree_memory(os.getpid()).rss_bytes
        budget = used + available_memory()
        looks = self.parts.ranks.gather((used, budget, (now - self._looked) / self._steps))
        slowest = max(seconds for _, _, seconds in looks)
        self._every = max(1, min(2 * self._every, int(LOOK_EVERY_S / max(slowest, 1e-9))))
        self._looked, self._steps = now, 0
        if used / budget >= self.config.memory_warning and not self._warned:
            self._warned = True
            data = {"used_bytes": used, "budget_bytes": budget, "source": "rss of the process tree"}
            yield Notice("memory_warning", data, f"{used / 1e9:.1f} of {budget / 1e9:.1f} GB of host memory are in use")
        rank, (used, budget, _) = max(enumerate(looks), key=lambda look: look[1][0] / look[1][1])
        if used / budget >= self.config.memory_stop:
            whose = f" of rank {rank}" if len(looks) > 1 else ""
            raise OutOfMemory(
                f"{used / 1e9:.1f} of {budget / 1e9:.1f} GB of the host memory{whose} are in use; the run is saved and "
                "stops before the system kills it",
                where=f"step {progress.step}",
                fix=_with_less(self.parts.config),
                code="XT-OOM-HOST",
            )


def _with_less(config: RunConfig) -> str:
    """Return options with which the same command goes on where it stopped, and takes less of the host's memory.

    Windows and batches are none of them: inside an epoch a resume keeps which events a batch holds.
    """
    workers = config.data.num_workers
    fewer = reader_settings(config.data.model_dump(), workers // 2) if workers else ()
    recomputed = "training.activation_checkpointing=stages"
    free = config.training.activation_checkpointing == "none"
    settings = " ".join(f"--set {item}" for item in (*fewer, *([recomputed] if free else [])))
    end = f"from the end of an epoch on also --set data.chunksize={max(1, config.data.chunksize // 2)}"
    return f"--resume auto {settings}   # {end}" if settings else f"--resume auto   # with more memory; {end}"


class MemoryGrowth(Guard):
    """G15: resident memory that grows with every step.

    In the first epoch the buffers of the loader fill and libraries start, so only what goes beyond that counts. Pages
    of files never do: a cache of events read through its map becomes resident once, and the kernel takes it back.
    """

    code = "G15"

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        loader = parts.train_loader
        self._allowance = loader_memory_bytes(loader.plan, loader.options, loader.source.widths)
        self._first_epoch = -1
        self._start = 0
        self._steps = 0
        self._said = False
        self._samples: deque[int] = deque(maxlen=WINDOW // EVERY)
        self._looks: deque[int] = deque(maxlen=1 + LONG // LOOK_STEPS)
        self._status = os.open(_STATUS, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._status)

    def after_step(self, progress: Progress, step: StepFacts) -> Iterator[Notice]:
        """Take a sample every second step; look at the slope every tenth one."""
        self._steps += 1
        if self._said or self._steps % EVERY:
            return
        resident = resident_bytes(os.pread(self._status, _MOST_STATUS_BYTES, 0))
        if self._first_epoch < 0:
            self._first_epoch, self._start = progress.epoch, resident
        if self._steps <= FIRST_STEPS:
            return
        self._samples.append(resident)
        filling = progress.epoch == self._first_epoch and resident < self._start + self._allowance + START_UP_BYTES
        if self._steps % LOOK_STEPS or len(self._samples) < WINDOW // EVERY or filling:
            return
        self._looks.append(resident)
        slope, seen, steps = growth(np.array(self._samples)), self._samples, WINDOW
        if slope is None:
            slope, seen, steps = growth_in_stairs(self._looks), self._looks, LONG
        if slope is not None:
            self._said = True
            first, last, kept = seen[0], seen[-1], kept_graphs()
            by = f"; graphs of {kept.steps} steps are alive, held by {kept.holder or '?'}" if kept.steps else ""
            yield Notice(
                "memory_growth",
                {
                    "bytes_per_step": slope,
                    "rss_from": first,
                    "rss_to": last,
                    "steps": steps,
                    "kept_graphs": kept.steps,
                    "holder": kept.holder,
                },
                f"memory grows by {slope / 1e6:.1f} MB a step: {first / 1e6:.0f} to {last / 1e6:.0f} MB{by}",
            )


def growth(samples: np.ndarray) -> float | None:
    """Return the slope in bytes a step of samples taken every second step, where it is steady and above 1 MB.

    Source: the median of all pairwise slopes, Theil 1950 and Sen 1968, doi:10.1080/01621459.1968.10480934.

    Args:
        samples: Resident memory, one in ``EVERY`` steps, shape (n,).

    Returns:
        The slope, None where there is none.
    """
    # Both halves must grow: what fills up and stops is no leak, nor what an epoch takes at its start in a stair or two.
    # Nearly every look ends at its second half.
    half = len(samples) // 2
    if samples[-1] - samples[half] <= GROWTH_BYTES / 2 * EVERY * (len(samples) - 1 - half):
        return None
    if min(_slope(part)[0] for part in (samples[: half + 1], samples[half:])) <= GROWTH_BYTES / 2:
        return None
    slope, rising = _slope(samples)
    # Of pairs, not of neighbours: what a collector gives back every tenth step hides no leak.
    return slope if slope > GROWTH_BYTES and rising >= RISING else None


def growth_in_stairs(looks: Sequence[int]) -> float | None:
    """Return the slope in bytes a step of looks at every tenth step, where all four parts of the time rise.

    What is kept at every 20th or 30th step rises in each of them; an epoch that begins does so in one.

    Args:
        looks: Resident memory, shape (13,) once there are enough.
    """
    if len(looks) <= LONG // LOOK_STEPS:
        return None
    rises = np.diff(np.array(looks, dtype=np.float64)[:: LONG // LOOK_STEPS // 4])
    slope = float(rises.sum()) / LONG
    return slope if slope > GROWTH_BYTES and rises.min() > GROWTH_BYTES / 2 * LONG / 4 else None


def _slope(samples: np.ndarray) -> tuple[float, float]:
    """Return the median slope of all pairs in bytes a step, and the share of pairs that do not fall."""
    first, second = np.triu_indices(len(samples), 1)
    rises = samples[second] - samples[first]
    return float(np.median(rises / (second - first))) / EVERY, float((rises >= 0).mean())
