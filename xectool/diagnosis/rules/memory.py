"""Memory that grows, runs out, or is taken by somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cases.memory_fault import MemoryFault, memory_faults
from xectool.diagnosis.cases.memory_growth import Growth, memory_growth
from xectool.diagnosis.cause import Cause, DiagnosisRule, Opinion
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.memory_ladder import ladder
from xectool.findings import Severity

NEARLY_FULL: Final = 0.9  # F011: of the memory a process may use; what kills it comes between two looks
_OTHER_PROCESS: Final = {
    "XT-OOM-FOREIGN": ("nvidia-smi names the other process: end it, or add --set training.device=cuda:1",)
}


class MemoryGrowth(DiagnosisRule):
    """Memory rises with every step."""

    code = "XT-MEM-GROWTH"
    title = "memory grows with every step"

    def unseen(self, evidence: Evidence) -> str:
        """Return that there are too few samples."""
        if evidence.of("memory_growth") or memory_growth(evidence).samples:
            return ""
        return "too few samples of memory for a slope"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report a slope that neither start-up nor caches explain."""
        growth = memory_growth(evidence)
        told = evidence.last("memory_growth")
        if not growth.alarming and (told is None or growth.refutes):
            return
        yield Cause(
            code=self.code,
            confidence=0.93 if growth.alarming else 0.85,
            problem=growth.text() if growth.alarming else (told.message if told else "") or "memory grows",
            evidence=_growth_lines(evidence, growth),
            fix=f"xectool diagnose memory {fixes.quoted(evidence)}",
            severity=Severity.WARNING,
            step=told.step if told else growth.from_step,
            symptom="memory growth",
        )


def _growth_lines(evidence: Evidence, growth: Growth) -> tuple[str, ...]:
    lines = [growth.text()] if growth.samples else []
    told = evidence.last("memory_growth")
    if told is not None and told.message:
        lines.append(told.message)
    lines += [f"{event.message or event.data.get('metric')}" for event in evidence.of("metric_graph")[:2]]
    return tuple(lines)


class OutOfMemory(DiagnosisRule):
    """Device or host memory ran out."""

    code = "XT-OOM-GPU"
    title = "memory ran out: device or host; capacity, fragmentation or another process"

    def look(self, evidence: Evidence) -> Iterator[Opinion]:
        """Classify the first recorded failure after which nothing went on, and a kill close to the limit."""
        for fault in memory_faults(evidence):
            yield Cause(
                code=fault.code,
                confidence=fault.confidence,
                problem=fault.text(),
                evidence=(*fault.lines(), *_OTHER_PROCESS.get(fault.code, ())),
                fix=memory_fix(evidence, fault),
                severity=Severity.INFO if fault.over else Severity.ERROR,
                step=fault.step,
                symptom="out of memory",
            )
            return


def memory_fix(evidence: Evidence, fault: MemoryFault) -> str:
    """Return the first step of the ladder that fits the kind of failure."""
    if fault.code == "XT-OOM-FRAGMENTATION":
        return f"export PYTORCH_ALLOC_CONF=expandable_segments:True; {fixes.resume(evidence)}"
    if fault.code == "XT-OOM-FOREIGN":
        return f"nvidia-smi; {fixes.resume(evidence)}"
    if fault.code == "XT-OOM-HOST":
        workers = int(evidence.setting("data.num_workers", 0) or 0)
        if workers:  # a run may go on inside an epoch with fewer of them, not with other windows
            return fixes.resume(evidence, *fixes.workers(evidence, workers // 2))
        half = max(1, int(evidence.setting("data.chunksize", 8192) or 8192) // 2)
        return fixes.resume(evidence, f"data.chunksize={half}")
    first = ladder(evidence.config)[0]
    return fixes.resume(evidence, *first.settings)
