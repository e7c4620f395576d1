"""Which faults lead to which others, and which of two that were found did."""

from __future__ import annotations

from typing import Final

from xectool.diagnosis.cases.nan import NONFINITE
from xectool.diagnosis.cause import Cause
from xectool.diagnosis.rules.data import NO_TRUTH, READINGS, VALIDATED_READINGS
from xectool.diagnosis.rules.divergence import RAN_AWAY
from xectool.diagnosis.rules.quarantine import LEFT_OUT
from xectool.diagnosis.rules.surroundings import ENCODER, ZeroGradient
from xectool.diagnosis.rules.truth import VALIDATED
from xectool.findings import Severity

_NAN: Final = frozenset({
    "XT-NAN-DATA", "XT-NAN-LOSS", "XT-AMP-OVERFLOW", "XT-NAN-GRAD", "XT-NAN-WEIGHTS", "XT-NAN-LR", "XT-NAN-RESUME",
})  # fmt: skip
_SPIKES: Final = frozenset({"XT-SPIKE-EVENT", "XT-SPIKE-LR", "XT-SPIKE-RESTART"})
_ENDS: Final = frozenset({"XT-KILLED", "XT-HANG", "XT-FAILED"})
_STOPS: Final = frozenset({"XT-FAILED", "XT-NAN", "XT-DIVERGED", "XT-QUARANTINE-FULL"})
_MEMORY: Final = frozenset({"XT-OOM-HOST", "XT-OOM-GPU", "XT-MEM-HIGH"})
_FLAT: Final = frozenset({"XT-NO-LEARNING", "XT-COLLAPSED", "XT-CONFIG-LR"})
"""A rate that is too high is no second cause where it has made the loss jump, or where something led to that."""

_SEEN_LATE: Final = frozenset({
    "XT-NAN-LR", "XT-SPIKE-LR", "XT-CONFIG-LR", "XT-INPUT-SCALE", "XT-TARGET-SCALE", "XT-SENSOR-ORDER",
})  # fmt: skip
"""What is there from the first step on, or sets in slowly, and may be seen after a validation that ran away."""
_IN_WEIGHTS: Final = frozenset({"XT-NAN-LR", "XT-NAN-WEIGHTS", "XT-NAN-RESUME"})

LEADS_TO: Final[dict[str, frozenset[str]]] = {
    "XT-INPUT-SCALE": _NAN | _SPIKES | _FLAT | {"XT-UNTRAINED-HEAD", "XT-DATA-UNUSABLE"} | _STOPS,
    "XT-SENSOR-ORDER": _FLAT | {"XT-TRUTH-ELSEWHERE", "XT-DIVERGED"},
    "XT-TRUTH-ELSEWHERE": _FLAT,
    "XT-DATA-NO-EVENTS": _FLAT | _SPIKES,
    "XT-TARGET-SCALE": _SPIKES | _FLAT | _STOPS | {"XT-NAN-LR", "XT-NAN-GRAD", "XT-NAN-LOSS", "XT-AMP-OVERFLOW"},
    "XT-NAN-RESUME": _SPIKES | _STOPS | (_NAN - {"XT-NAN-RESUME"}) | {"XT-RESTART"} | _FLAT,
    "XT-NAN-LR": _SPIKES | _STOPS | {"XT-NAN-GRAD", "XT-NAN-WEIGHTS", "XT-AMP-OVERFLOW"} | _FLAT,
    "XT-SPIKE-LR": _STOPS | frozenset({"XT-NAN-GRAD", "XT-NAN-WEIGHTS", "XT-AMP-OVERFLOW", "XT-SPIKE-EVENT"}) | _FLAT,
    "XT-CONFIG-LR": frozenset({"XT-NO-LEARNING", "XT-COLLAPSED", "XT-DIVERGED"}),
    "XT-SPIKE-RESTART": _STOPS | _FLAT | {"XT-NAN-LR", "XT-NAN-GRAD", "XT-NAN-WEIGHTS", "XT-SPIKE-LR"},
    "XT-SPIKE-EVENT": _STOPS | frozenset({"XT-NAN-LR", "XT-NAN-GRAD", "XT-NAN-WEIGHTS"}),
    "XT-NAN-DATA": _STOPS,
    "XT-NAN-LOSS": _STOPS,
    "XT-NAN-GRAD": _STOPS,
    "XT-NAN-WEIGHTS": _STOPS | _SPIKES | _FLAT | {"XT-NAN-GRAD", "XT-NAN-LR"},
    "XT-AMP-OVERFLOW": _STOPS | {"XT-NAN-GRAD"},
    "XT-RESTART": frozenset({"XT-DUPLICATE-STEPS", "XT-NAN-RESUME", "XT-NAN-WEIGHTS"}) | _SPIKES | _FLAT,
    "XT-COLLAPSED": frozenset({"XT-NO-LEARNING"}),
    "XT-NO-LEARNING": frozenset({"XT-COLLAPSED"}),  # where a setting lets no weight move, or none stay
    "XT-ZERO-GRADIENT": frozenset({"XT-COLLAPSED", "XT-NO-LEARNING"}),
    "XT-UNTRAINED-HEAD": _FLAT,
    "XT-METRIC-GRAPH": _MEMORY | {"XT-MEM-GROWTH"},
    "XT-MEM-GROWTH": _MEMORY | {"XT-OOM-FRAGMENTATION", "XT-WORKER-DEAD"},  # to a kill by way of these alone
    "XT-OOM-HOST": _ENDS | {"XT-MEM-HIGH", "XT-WORKER-DEAD"},
    "XT-OOM-GPU": _ENDS,
    "XT-OOM-FRAGMENTATION": _ENDS,
    "XT-OOM-FOREIGN": _ENDS,
    "XT-COMPILE-KILLED": _ENDS | _MEMORY,
    "XT-WORKER-DEAD": _ENDS,
    "XT-DISK-FULL": _ENDS | {"XT-CKPT-SLOW"},
    "XT-HANG": frozenset({"XT-KILLED"}),
    "XT-RANK-MISMATCH": frozenset({"XT-UNEVEN-RANKS", "XT-HANG", "XT-KILLED"}),
    "XT-UNEVEN-RANKS": frozenset({"XT-HANG", "XT-KILLED"}),
    "XT-DUPLICATE-STEPS": frozenset({"XT-DUPLICATE-EVENTS"}),
}
"""Which faults lead to which others; a consequence is listed after its root and says so."""


def may_lead(root: Cause, cause: Cause) -> bool:
    """Return whether one cause is known to lead to the other, and came before it."""
    if cause.code not in LEADS_TO.get(root.code, ()) or _explains_nothing(root, cause):
        return False
    return (cause.symptom == RAN_AWAY and root.code in _SEEN_LATE) or _not_after(root, cause)


def _explains_nothing(root: Cause, cause: Cause) -> bool:
    """Return whether a cause did no harm that could have led to another one."""
    if root.symptom.startswith(LEFT_OUT):
        return cause.symptom == RAN_AWAY or cause.code not in _STOPS
    if cause.symptom == RAN_AWAY and (root.severity is Severity.INFO or root.symptom in (READINGS, VALIDATED_READINGS)):
        return True  # the network takes such readings for dead sensors
    if cause.symptom == RAN_AWAY and root.symptom.startswith(NONFINITE) and root.code not in _IN_WEIGHTS:
        return True  # such a step was left out: it moved no weight
    if root.symptom == VALIDATED:
        return cause.symptom != RAN_AWAY  # the loss of the validation is all it explains
    # Truth that nothing is trained on, a token that nobody uses.
    return root.symptom == NO_TRUTH or (root.code == ZeroGradient.code and root.symptom != ENCODER)


def _not_after(root: Cause, cause: Cause) -> bool:
    if (root.code, cause.code) == ("XT-NAN-LR", "XT-SPIKE-LR"):
        return True  # one rate: what it ended in says more than what it began with
    # What ends a run or sets in slowly is seen late; step 0 says that no step belongs to it.
    return not root.step or not cause.step or root.step <= cause.step or root.symptom in ("out of memory", "overflow")
