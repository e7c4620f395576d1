"""Run two ways of doing one thing in turn and keep the ratio of each pair; shared machines drift, ratios hold."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """What one run took: wall seconds, and CPU seconds of this process and the children it waited for."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Comparison:
    """Pairs of runs of the same work.

    Attributes:
        name: What is done.
        baseline: Costs of the ordinary way, one a round.
        ours: Costs of ours, one a round.
        amount: Things done in a run, e.g. events.
    """

    name: str
    baseline: list[Cost]
    ours: list[Cost]
    amount: int = 1

    def ratio(self, kind: str) -> float:
        """Median over the pairs of baseline / ours; above 1 means ours is cheaper. ``kind``: wall_s or cpu_s."""
        pairs = zip(self.baseline, self.ours, strict=True)
        return statistics.median(getattr(b, kind) / getattr(o, kind) for b, o in pairs)

    def row(self) -> str:
        """Return one line of the results table."""
        ours = statistics.median(cost.cpu_s for cost in self.ours)
        each = f"{1e3 * ours / self.amount:.3g} ms CPU each" if self.amount > 1 else f"{ours:.3g} s CPU"
        return f"| {self.name} | {self.ratio('wall_s'):.2f} | {self.ratio('cpu_s'):.2f} | {each} |"


def measure(work: Callable[[], object]) -> Cost:
    """Return what one call costs."""
    before, began = _cpu_s(), time.perf_counter()
    work()
    return Cost(time.perf_counter() - began, max(_cpu_s() - before, 1e-6))


def _cpu_s() -> float:
    """CPU seconds of this process and the children it waited for, to the microsecond."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def compare(
    name: str, baseline: Callable[[], object], ours: Callable[[], object], rounds: int = 5, amount: int = 1
) -> Comparison:
    """Run both once to warm up, then in turn."""
    baseline()
    ours()
    costs = [(measure(baseline), measure(ours)) for _ in range(rounds)]
    return Comparison(name, [b for b, _ in costs], [o for _, o in costs], amount)
