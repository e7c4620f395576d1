"""How long each phase of a training may last before somebody should look."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Final

from xectool.config.guards import GuardsConfig
from xectool.config.root import RunConfig

STEP_FACTOR: Final = 10.0  # times the median step
CHECKPOINT_FACTOR: Final = 10.0  # times guards.hang_s: shared file systems take their time
LOOP_PHASES: Final = frozenset(
    {"data_wait", "transfer", "forward", "backward", "optimizer", "collective", "log", "validation"}
)
RANK0_PHASE: Final = "wait_rank0"  # the first rank saves, predicts or plots, and the others wait outside a collective
LONG_PHASES: Final = frozenset({"checkpoint", RANK0_PHASE})
RANK0_WORK: Final = LONG_PHASES | {"data_open", "outputs"}


@dataclass(frozen=True)
class Deadlines:
    """What ends a run by itself, in s: the evidence is to be there in half that time, infinite where nothing does.

    A rank that hangs in a collective, or whom the others wait for in one, is gone when that times out.

    Attributes:
        collective_s: Longest wait in a collective.
        rank0_s: Longest wait for work of the first rank.
        loader_s: Longest wait for a reading process.
    """

    collective_s: float = math.inf
    rank0_s: float = math.inf
    loader_s: float = math.inf

    @classmethod
    def of(cls, config: RunConfig, world_size: int) -> Deadlines:
        """Return those of a run."""
        loader_s = config.data.timeout_s if config.data.num_workers else math.inf
        if world_size == 1:
            return cls(loader_s=loader_s)
        return cls(config.distributed.timeout_s, config.distributed.rank0_timeout_s, loader_s)

    @property
    def first_s(self) -> float:
        """The shortest of them."""
        return min(self.collective_s, self.rank0_s, self.loader_s)

    def in_phase_s(self, phase: str) -> float:
        """Return the one that ends a phase."""
        if phase in RANK0_WORK:
            return self.rank0_s
        return min(self.collective_s, self.loader_s if phase == "data_wait" else math.inf)


NO_DEADLINES: Final = Deadlines()


class PhaseLimits:
    """How long each phase may last, from the pace of the run itself.

    Args:
        config: The guards section.
        deadlines: What ends the run by itself.
    """

    def __init__(self, config: GuardsConfig, deadlines: Deadlines) -> None:
        self.config, self.deadlines = config, deadlines
        self.steps: deque[float] = deque(maxlen=50)

    def limit_s(self, phase: str, stepping: bool) -> float:
        """Return the longest time in seconds.

        Args:
            phase: What the training thread does.
            stepping: Whether this attempt has finished a step; before, everything counts as start-up.
        """
        latest_s = self.deadlines.in_phase_s(phase) / 2
        if not stepping or phase not in LOOP_PHASES | LONG_PHASES:
            return min(self.config.startup_s, latest_s)
        usual = max(STEP_FACTOR * median(self.steps) if self.steps else 0.0, self.config.hang_s)
        return min(usual * CHECKPOINT_FACTOR if phase in LONG_PHASES else usual, latest_s)
