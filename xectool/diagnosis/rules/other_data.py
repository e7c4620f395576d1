"""Files that were replaced between two attempts: what was learned, left out and measured is of the earlier ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.findings import Severity
from xectool.runlog.manifest import replaced_files

_MOST_FILES: Final = 4


class OtherData(DiagnosisRule):
    """A run goes on with the data it has learned from; a note, for files may be made again on purpose."""

    code = "XT-RESUME-DATA"
    title = "a resume went on with other data"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the run was never resumed."""
        return "" if evidence.of("resume") else "the run was not resumed"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the files of each attempt with those of the one before it, by size and entries."""
        for before, now in pairwise(evidence.manifest.get("attempts") or ()):
            found = replaced_files(_files(before), _files(now))
            if not found:
                continue
            yield Cause(
                code=self.code,
                confidence=0.5,
                problem=f"attempt {now.get('attempt')} went on with other data than before: {found[0]}",
                evidence=tuple(found[1 : 1 + _MOST_FILES]),
                fix=fixes.train_again(evidence, name="new-data"),
                severity=Severity.INFO,
                symptom="other data",
            )


def _files(attempt: dict[str, Any]) -> list[dict[str, Any]]:
    return [file for file in attempt.get("data_files") or () if isinstance(file, dict)]
