"""From opinions to an answer: one cause a symptom, roots before what follows from them, likeliest first."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from xectool.diagnosis.cases.plateau import FEWEST_STEPS
from xectool.diagnosis.cause import Cause, Diagnosis, DiagnosisRule, Opinion, RuledOut, in_one_line
from xectool.diagnosis.consequences import may_lead
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.excluded import with_all_left_out
from xectool.diagnosis.rules.averaged import AverageBeyondRun
from xectool.diagnosis.rules.conventional import WorseThanConventional
from xectool.diagnosis.rules.crash import END, CompileKilled, DiskFull, Failed, Hang, WorkerDead
from xectool.diagnosis.rules.cuts import CutTooTight
from xectool.diagnosis.rules.data import (
    NO_TRUTH,
    DuplicateEvents,
    EventsMissing,
    ImplausibleEvents,
    InvalidReadings,
)
from xectool.diagnosis.rules.divergence import Diverged
from xectool.diagnosis.rules.guards_off import GuardsOff
from xectool.diagnosis.rules.heads import UntrainedHead
from xectool.diagnosis.rules.inputs import FilesDiffer, InputScale, SensorOrder
from xectool.diagnosis.rules.killed import Killed
from xectool.diagnosis.rules.learning import (
    ClippingMostSteps,
    Collapsed,
    NoLearning,
)
from xectool.diagnosis.rules.memory import MemoryGrowth, OutOfMemory
from xectool.diagnosis.rules.nan import NanFromData, NanFromLearningRate, NanFromLossDomain, NanFromOverflow
from xectool.diagnosis.rules.nan_state import (
    NanFromGradient,
    NanFromResume,
    NanFromWeights,
    WeightsOutOfReach,
)
from xectool.diagnosis.rules.other_data import OtherData
from xectool.diagnosis.rules.quarantine import Quarantine
from xectool.diagnosis.rules.ranks import RankDied, RankRanOut
from xectool.diagnosis.rules.rate import RateBeyondReason
from xectool.diagnosis.rules.record import RecordDamaged
from xectool.diagnosis.rules.repeated_steps import DuplicateSteps
from xectool.diagnosis.rules.restart import SilentRestart
from xectool.diagnosis.rules.resumed_state import ResumedState
from xectool.diagnosis.rules.spike import SpikeFromEvent, SpikeFromLearningRate, SpikeFromRestart, SpikeFromResume
from xectool.diagnosis.rules.stopped import SavingHung, Stopped
from xectool.diagnosis.rules.surroundings import (
    CompileSuppressed,
    CudagraphSkipped,
    LazyState,
    MemoryNearLimit,
    MetricKeepsGraph,
    Nondeterministic,
    RanksDiffer,
    TrackerStalled,
    ValidationNotFinite,
    ZeroGradient,
)
from xectool.diagnosis.rules.throughput import CheckpointSlow, LoaderSlow, Recompiling
from xectool.diagnosis.rules.truth import ImpossibleTruth, TargetScale
from xectool.diagnosis.rules.truth_elsewhere import TruthElsewhere
from xectool.diagnosis.rules.uneven_ranks import UnevenRanks
from xectool.errors import counted
from xectool.findings import Severity

RULES: Final[tuple[DiagnosisRule, ...]] = (
    NanFromData(), Quarantine(), InvalidReadings(), ImplausibleEvents(), ImpossibleTruth(), ValidationNotFinite(),
    SpikeFromEvent(),
    CutTooTight(), DuplicateEvents(), EventsMissing(), DuplicateSteps(), InputScale(), FilesDiffer(), SensorOrder(),
    TargetScale(), TruthElsewhere(),
    NanFromLossDomain(), NanFromOverflow(), NanFromGradient(), NanFromResume(), SpikeFromResume(), ResumedState(),
    SilentRestart(),
    NanFromWeights(), WeightsOutOfReach(), SpikeFromRestart(),
    NanFromLearningRate(), SpikeFromLearningRate(), RateBeyondReason(), Collapsed(), UntrainedHead(), NoLearning(),
    Diverged(),
    OutOfMemory(), MetricKeepsGraph(), MemoryGrowth(), MemoryNearLimit(), CompileKilled(), WorkerDead(), DiskFull(),
    Stopped(), SavingHung(), Hang(), Killed(), RankDied(), RankRanOut(), RecordDamaged(), RanksDiffer(), UnevenRanks(),
    LoaderSlow(),
    CheckpointSlow(), Recompiling(), TrackerStalled(), LazyState(), Failed(), ClippingMostSteps(), CompileSuppressed(),
    CudagraphSkipped(), Nondeterministic(), ZeroGradient(), AverageBeyondRun(), WorseThanConventional(),
    GuardsOff(), OtherData(),
)  # fmt: skip
"""All rules in the order of suspicion: data, input scale, loss domain, precision, then learning rate; the rest by
how directly it ends a run."""

_COSTS_TIME: Final = frozenset({"XT-LOADER-SLOW", "XT-CKPT-SLOW", "XT-RECOMPILE", "XT-DB-LOCKED", "XT-TRACKER-DOWN"})
"""What makes a run slow and leads to nothing else comes after whatever ended or spoiled it."""

_OF_A_SOUND_RUN: Final = frozenset({WorseThanConventional.code, NoLearning.code, Collapsed.code, GuardsOff.code})
"""Notes that say little, and whose line cures nothing, while anything but the speed of a run is wrong."""

LEADING: Final = {
    OtherData.code: "see the note on its data",
    AverageBeyondRun.code: "see the note on its averaged weights",
    WorseThanConventional.code: "",  # its problem is short enough
}
"""Notes that the verdict of a sound run speaks of: what it has learned is not what is taken, or not enough."""

FAILURES: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a rule fails by on a record that nobody thought of."""


def diagnose(evidence: Evidence, rules: Sequence[DiagnosisRule] = RULES) -> Diagnosis:
    """Return what the rules say about a run, most likely cause first."""
    opinions: list[Opinion] = []
    ran: list[str] = []
    skipped: dict[str, str] = {}
    for rule in rules:
        reason = rule.unseen(evidence)
        if reason:
            skipped[rule.name] = reason
            continue
        ran.append(rule.name)
        opinions += _asked(rule, evidence)
    ranked = rank(opinions, [rule.code for rule in rules])
    causes = with_all_left_out(evidence, [cause for cause in ranked if cause.severity is not Severity.INFO])
    notes = tuple(_beside(cause, causes) for cause in ranked if cause.severity is Severity.INFO)
    return Diagnosis(verdict(causes, evidence, notes), causes, notes, tuple(ran), skipped)


def _beside(note: Cause, causes: Sequence[Cause]) -> Cause:
    """Return a note without its line where a cause explains it: to train on, or at another rate, cures nothing then."""
    faults = [cause for cause in causes if cause.code not in _COSTS_TIME]
    is_explained = bool(note.follows) or (note.code in _OF_A_SOUND_RUN and bool(faults))
    return replace(note, fix="") if is_explained and causes else note


def _asked(rule: DiagnosisRule, evidence: Evidence) -> list[Opinion]:
    """Return the opinions of a rule; one that fails is a fault of its own, and what the others say stands."""
    try:
        return list(rule.look(evidence))
    except FAILURES as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        defect = Cause(
            code="XT-DEFECT",
            confidence=0.3,
            problem=f"the rule {rule.name} failed: {type(error).__name__}: {error}",
            evidence=(f"{Path(place.filename).name} line {place.lineno}; what the other rules say stands",),
            fix="xectool explain XT-DEFECT",
            severity=Severity.WARNING,
            symptom=f"defect of {rule.name}",
        )
        return [defect]


def verdict(causes: Sequence[Cause], evidence: Evidence, notes: Sequence[Cause] = ()) -> str:
    """Return the answer in one line, of a sound run with the note that it leads to."""
    if causes:
        return f"{causes[0].code}: {in_one_line(causes)}"
    steps = evidence.steps.seen
    if not steps:
        return f"nothing to judge: no step is on record ({evidence.status.said})"
    few = f"; fewer than {FEWEST_STEPS} do not tell whether it learns" if steps < FEWEST_STEPS else ""
    leading = [LEADING[note.code] or note.problem.partition(":")[0] for note in notes if note.code in LEADING]
    first = f"; but {' and '.join(leading)}" if leading else ""
    seen = f"{counted(steps, 'step')} ({evidence.status.said})"
    return f"healthy: nothing above a note in {seen}{few}{first}"


def leading_note(notes: Sequence[Cause]) -> Cause | None:
    """Return the note that a sound run leads to, whose line is the next one to run; None where none does."""
    return next((note for note in notes if note.code in LEADING), None)


def rank(opinions: Iterable[Opinion], suspicion: Sequence[str]) -> list[Cause]:
    """Return one cause a code, roots likeliest first, then consequences, each after what it follows from.

    Args:
        opinions: What the rules said.
        suspicion: Codes in the order of suspicion; it decides between equally likely ones.
    """
    order = {code: place for place, code in reversed(list(enumerate(suspicion)))}

    def place(cause: Cause) -> tuple[bool, bool, float, int]:
        info, slow = cause.severity is Severity.INFO, cause.code in _COSTS_TIME
        return info, slow, -cause.confidence, order.get(cause.code, len(order))

    found = sorted(_one_a_code(_one_a_symptom(list(opinions), order)), key=place)
    led_by = _led_by(found)
    return _after_their_roots([_following(cause, led_by.get(cause.code, "")) for cause in found])


def _led_by(likeliest_first: Sequence[Cause]) -> dict[str, str]:
    """Return which code led to which: of a circle the likeliest one is a root."""
    led_by = {cause.code: root.code for cause in likeliest_first if (root := _root_of(cause, likeliest_first))}
    for cause in likeliest_first:
        above, seen = led_by.get(cause.code), set[str]()
        while above is not None and above not in seen and above != cause.code:
            seen.add(above)
            above = led_by.get(above)
        if above == cause.code:
            del led_by[cause.code]
    return led_by


def _following(cause: Cause, root: str) -> Cause:
    return replace(cause, follows=root, evidence=(*cause.evidence, f"follows from {root}")) if root else cause


def _after_their_roots(likeliest_first: Sequence[Cause]) -> list[Cause]:
    """Return the roots, and then the others, each after the one that it follows from."""
    listed = [cause for cause in likeliest_first if not cause.follows]
    left = [cause for cause in likeliest_first if cause.follows]
    while left:
        waiting = {cause.code for cause in left}
        listed.append(left.pop(next(at for at, cause in enumerate(left) if cause.follows not in waiting)))
    return listed


def _one_a_symptom(opinions: Sequence[Opinion], order: dict[str, int]) -> list[Cause]:
    """Keep the causes of the likeliest code of each symptom, and say of the others what speaks against them."""
    symptoms: dict[str, list[Opinion]] = {}
    for number, opinion in enumerate(opinions):
        symptoms.setdefault(opinion.symptom or f"own {number}", []).append(opinion)
    kept = []
    for spoken in symptoms.values():
        causes = [opinion for opinion in spoken if isinstance(opinion, Cause)]
        if not causes:
            continue
        best = min(causes, key=lambda cause: (-cause.confidence, order.get(cause.code, len(order))))
        others = [f"{cause.code} ({cause.confidence:g}): less likely" for cause in causes if cause.code != best.code]
        against = [f"{out.code}: {out.reason}" for out in spoken if isinstance(out, RuledOut) and out.code != best.code]
        ruled_out = tuple(dict.fromkeys([*against, *others]))
        kept += [replace(cause, ruled_out=ruled_out) for cause in causes if cause.code == best.code]
    return kept


def _one_a_code(causes: Sequence[Cause]) -> list[Cause]:
    """Join causes of one code to the likeliest, which says where it came again and what else of that code there is."""
    by_code: dict[str, list[Cause]] = {}
    for cause in causes:
        by_code.setdefault(cause.code, []).append(cause)
    joined = []
    for same in by_code.values():
        best = max(same, key=_likelihood)
        alike = [cause for cause in same if cause.problem == best.problem or _comes_again(cause, best)]
        steps = sorted({cause.step for cause in alike if cause.step} - {best.step})
        shown = ", ".join(map(str, steps[:8])) + (" …" if len(steps) > 8 else "")
        again = [f"again at step{'s' * (len(steps) > 1)} {shown}"] * bool(steps)
        also = _also(best, same)
        blamed = tuple(dict.fromkeys(event for cause in (best, *same) for event in cause.blamed))
        joined.append(replace(best, evidence=(*best.evidence, *again, *also), blamed=blamed))
    return joined


def _also(best: Cause, same: Sequence[Cause]) -> list[str]:
    """Return what else of its code is wrong, such as another file or another task, and the line that cures that.

    Of jumps of the loss and the like, which come at many steps, only what is told of the likeliest one.
    """
    cures: dict[str, str] = {}
    for cause in same:
        alike = [other for other in same if _comes_again(other, cause)]
        told = best if _comes_again(cause, best) else max(alike, key=_likelihood, default=cause)
        if cause.problem != best.problem and (not alike or cause.step == told.step):
            is_end = cause.symptom == END  # of a run that its cause has ended: to go on as before ends the same way
            cures[cause.problem] = "" if is_end or cause.fix == best.fix else f" ({cause.fix})"
    return [f"also: {problem}{cure}" for problem, cure in cures.items()]


def _likelihood(cause: Cause) -> tuple[bool, bool, float, int]:
    """Return the order of causes of one code: a note hides no fault, and neither does truth that takes no part."""
    return cause.severity is not Severity.INFO, cause.symptom != NO_TRUTH, cause.confidence, -cause.step


def _comes_again(cause: Cause, other: Cause) -> bool:
    """Return whether two causes explain the same at two steps: jumps of the loss, numbers that are not finite."""
    kind, at, _ = cause.symptom.partition("@")
    return bool(at) and kind == other.symptom.partition("@")[0]


def _root_of(cause: Cause, causes: Sequence[Cause]) -> Cause | None:
    """Return the cause that led to this one: known to lead there, and not after it."""
    leading = [
        other
        for other in causes
        if may_lead(other, cause)
        and other.confidence >= 0.5
        # Of two that may each be the root of the other it is the likelier.
        and not (may_lead(cause, other) and other.confidence <= cause.confidence)
    ]
    return min(leading, key=lambda other: other.step, default=None)
