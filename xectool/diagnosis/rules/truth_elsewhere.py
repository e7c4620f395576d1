"""Truth that does not follow the light: it is of other events, or something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xectool.config.tasks import TRUTH_BRANCHES
from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.rules.inputs import check_beside
from xectool.findings import Severity
from xectool.runlog.records import EventRecord


class TruthElsewhere(DiagnosisRule):
    """The true position is where the light is, and the true energy is as much as the light."""

    code = "XT-TRUTH-ELSEWHERE"
    title = "the truth does not follow the light"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report a truth of other events, or of something else."""
        told = {(_task(event), event.data.get("meaning")): event for event in reversed(evidence.of("truth_elsewhere"))}
        if not told:
            return
        tasks = dict.fromkeys(task for task, _ in told)
        branches = {task: evidence.setting(f"data.truth_branches.{task}", TRUTH_BRANCHES[task]) for task in tasks}
        other = [
            f"data.truth_branches.{task}={usual}" for task in tasks if branches[task] != (usual := TRUTH_BRANCHES[task])
        ]
        problems = (
            f"{task}: {event.message}: {meaning or 'it is of other events, or something else'}"
            for (task, meaning), event in told.items()
        )
        yield Cause(
            code=self.code,
            confidence=0.85,
            problem="; ".join(problems),
            evidence=tuple(f"data.truth_branches.{task}: {branch}" for task, branch in branches.items()),
            fix=fixes.train_again(evidence, *other, name="truth")
            if other
            else _check_files_of(evidence, list(told.values())),
            severity=Severity.WARNING,
            step=1,
            symptom="truth elsewhere",
        )


def elsewhere(evidence: Evidence, sample: str) -> set[str]:
    """Return the tasks whose truth in a sample follows the light in no unit."""
    told = (event for event in evidence.of("truth_elsewhere") if event.data.get("sample", "train") == sample)
    return {_task(event) for event in told if not event.data.get("meaning")}


def _task(event: EventRecord) -> str:
    return str(event.data.get("task", "uvwFI"))


def _check_files_of(evidence: Evidence, told: Sequence[EventRecord]) -> str:
    """Return the command that judges the files of some events, each beside the others; all of a sample if none has."""
    if all(event.data.get("files") for event in told):
        return check_beside(evidence, [str(path) for event in told for path in event.data["files"]])
    samples = {event.data.get("sample", "train") for event in told}
    return fixes.check_named_files(evidence, "train" if "train" in samples else "val")
