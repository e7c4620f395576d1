"""Ranks that do not do the same: another number of steps, or one that keeps the others waiting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.statistics import Series, finite
from xectool.errors import duration
from xectool.findings import Severity
from xectool.runlog.reader import RunReader

# What a rank does by itself; ranks wait for each other in the transfer, and at the end of the backward pass.
BEFORE_BACKWARD: Final = ("data_wait_s", "forward_s")
OWN: Final = {"until its backward": BEFORE_BACKWARD, "until its gradients are there": (*BEFORE_BACKWARD, "backward_s")}
LAST_STEPS: Final = (5000, 60)  # of each rank that are compared: all, and what the end shows that all of them hide
BEHIND_STEPS: Final = 20
BEHIND_SHARE: Final = 0.1  # of the time: a third of a step is before its backward, which waits as long again
BEHIND_TIMES: Final = 1.5
_ACCIDENTS: Final = 3  # longest steps of each rank, which a stall or two of the machine may have made


class UnevenRanks(DiagnosisRule):
    """All ranks take the same number of steps, and as long for each."""

    code = "XT-UNEVEN-RANKS"
    title = "ranks took different numbers of steps, or one keeps the others waiting"

    def unseen(self, evidence: Evidence) -> str:
        """Return that there was only one rank."""
        several = evidence.of("ranks") or len(RunReader(evidence.run_dir).live()) > 1
        return "" if several else "steps of several ranks were not recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the steps of the ranks, then what each of them takes before they meet."""
        for event in evidence.of("ranks"):
            steps = {str(rank): number(count) for rank, count in (event.data.get("steps") or {}).items()}
            if len(set(steps.values())) < 2:
                continue
            least, most = min(steps, key=lambda rank: steps[rank]), max(steps, key=lambda rank: steps[rank])
            yield Cause(
                code=self.code,
                confidence=0.96,
                problem=f"rank {least} took {steps[least]:.0f} steps, rank {most} {steps[most]:.0f}",
                evidence=tuple(f"rank {rank}: {count:.0f} steps" for rank, count in sorted(steps.items())[:16]),
                fix=f"xectool diagnose distributed --nproc {len(steps)}",
                step=event.step,
                symptom="ranks",
            )
            return
        yield from self._behind(evidence)

    def _behind(self, evidence: Evidence) -> Iterator[Cause]:
        """Name the rank whose gradients come last: the time of the others shows up in their backward."""
        looks = ((until, *_alone(evidence, OWN[until], count)) for count in LAST_STEPS for until in OWN)
        found = next((look for look in looks if _is_behind(*look[1:])), None)
        if found is None:
            return
        until, seconds, step_s = found
        last, usual_s = _last_and_usual(seconds)
        yield Cause(
            code=self.code,
            confidence=0.85,
            problem=f"rank {last} keeps the others waiting: {duration(seconds[last])} a step {until}, "
            f"the others {duration(usual_s)}",
            evidence=(
                f"that is {(seconds[last] - usual_s) / step_s:.0%} of the step of {duration(step_s)}; stopped, on a "
                "busy core, or slower at reading",
                *(f"rank {rank}: {duration(value)}" for rank, value in sorted(seconds.items())[:16]),
            ),
            fix=f"xectool diagnose distributed --nproc {len(seconds)}",
            severity=Severity.WARNING,
            symptom="ranks",
        )


def _last_and_usual(seconds: dict[int, float]) -> tuple[int, float]:
    """Return the rank that takes longest, and the median of the others."""
    last = max(seconds, key=lambda rank: seconds[rank])
    return last, float(np.median([value for rank, value in seconds.items() if rank != last]))


def _is_behind(seconds: dict[int, float], step_s: float) -> bool:
    """Return whether one rank takes so much longer than the others that they wait for it."""
    if len(seconds) < 2:
        return False
    last, usual_s = _last_and_usual(seconds)
    return seconds[last] > BEHIND_TIMES * usual_s and seconds[last] - usual_s > BEHIND_SHARE * step_s


def _alone(evidence: Evidence, phases: Sequence[str], count: int) -> tuple[dict[int, float], float]:
    """Return the mean time of each rank in these phases, without waiting, and of a whole step, in s; empty for too few.

    The first two steps are left out: of a whole run they are those in which ranks start, and read ahead. In the
    transfer all add up their counts: there a rank waits for one that comes late to its step, and what the others take
    longer for it is that one's.
    """
    seconds, transfer_s, step_s = dict[int, float](), dict[int, float](), 0.0
    for rank, blocks in RunReader(evidence.run_dir).last_blocks_by_rank(count).items():
        if sum(len(block.rows) for block in blocks) < BEHIND_STEPS:
            return {}, 0.0
        means = {
            name: _without_accidents(np.concatenate([block.column(name) for block in blocks])[2:][-count:])
            for name in (*phases, "gradient_wait_s", "transfer_s", "step_s")
        }
        waited_s = means["gradient_wait_s"] if "backward_s" in phases else 0.0
        seconds[rank] = sum(means[name] for name in phases) - waited_s
        transfer_s[rank], step_s = means["transfer_s"], max(step_s, means["step_s"])
    longest_s = max(transfer_s.values(), default=0.0)
    return {rank: value + longest_s - transfer_s[rank] for rank, value in seconds.items()}, step_s


def _without_accidents(values: Series) -> float:
    known = np.sort(finite(values))
    return float(np.mean(known[:-_ACCIDENTS])) if known.size > _ACCIDENTS else 0.0
