"""Guards that the user has turned off: what they would have named is in no record."""

from __future__ import annotations

from collections.abc import Iterator

from xectool.config.guard_catalogue import GUARDS
from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.errors import in_shell
from xectool.findings import Severity


class GuardsOff(DiagnosisRule):
    """All guards look; a note, for each may be turned off on purpose."""

    code = "XT-GUARDS-OFF"
    title = "guards were off"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Name the guards that did not look, with what each would have watched."""
        disabled = evidence.setting("guards.disable")
        codes = set(map(str, disabled)) if isinstance(disabled, list | tuple) else set()
        spikes = ["guards.on_spike=record"] if evidence.setting("guards.on_spike") in ("off", False) else []
        off = [guard for guard in GUARDS if guard.code in codes or (spikes and guard.code == "G06")]
        if not off:
            return
        settings = [*([in_shell("guards.disable=[]")] if codes else []), *spikes]
        named = ", ".join(f"{guard.code} {guard.name}" for guard in off)
        yield Cause(
            code=self.code,
            confidence=0.5,
            problem=f"guards were off, so what they watch was not looked at: {named}",
            evidence=tuple(f"{guard.code}: {guard.title}" for guard in off),
            fix=fixes.train_again(evidence, *settings, name="guarded"),
            severity=Severity.INFO,
            symptom="guards off",
        )
