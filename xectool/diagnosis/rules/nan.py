"""Why a step was not finite; each rule weighs one cause, and the likeliest of them is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cases.growth import HIGH_LR, LARGEST_INPUT, ruined_since
from xectool.diagnosis.cases.nan import NanCase, nan_cases, unsettled_overflows
from xectool.diagnosis.cases.step import CaseRule, Weight
from xectool.diagnosis.cause import Cause, Opinion
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.excluded import blamed, told_mended
from xectool.errors import counted
from xectool.findings import Severity

MAX_OVERFLOW_SHARE: Final = 0.05  # F008
CERTAIN: Final = 0.95  # of a rule that saw the fault itself, and not its pattern only
FLOAT16_MAX: Final = 65504.0
_FEW_STEPS: Final = 8


class NanRule(CaseRule[NanCase]):
    """Abstract: one cause of non-finite steps."""

    def look(self, evidence: Evidence) -> Iterator[Opinion]:
        """Weigh this cause for each group of non-finite steps."""
        for case in nan_cases(evidence):
            yield self.opinion(case, self.severity(case))

    def severity(self, case: NanCase) -> Severity:
        """Return a note for what ended an attempt, where a later one goes on without it."""
        return Severity.INFO if case.over else Severity.ERROR

    def describe(self, case: NanCase) -> str:
        """Return the problem with its step."""
        return f"step {case.step}: {self.problem}"

    def facts(self, case: NanCase) -> tuple[str, ...]:
        """Return what is known whatever the cause."""
        what = "gradient" if case.loss_finite else "loss"
        lines = [f"step {case.step} (epoch {int(case.evidence.steps['epoch'][case.row])}): non-finite {what}"]
        if case.bad_terms:
            lines.append(f"terms: {', '.join(case.bad_terms)}")
        if case.few_suspects:
            lines.append(
                f"bad by themselves: {fixes.events_named(case.evidence, case.suspects, attempt=case.last_attempt)}"
            )
        if case.incident is not None:
            lines.append(f"incidents/{case.incident.name} holds the batch")
        if case.over:
            lines.append(f"it ended that attempt; the run was resumed, and {case.over} steps since are finite")
        return tuple(lines)

    def mended(self, case: NanCase) -> str:
        """Return that all events that are bad by themselves are left out by now."""
        return told_mended(case.evidence, case.named, case.last_attempt)

    def fix(self, case: NanCase) -> str:
        """Return the line that cures it."""
        return fixes.nan_batch(case.evidence)

    def trusts_triage(self, case: NanCase) -> bool:
        """Return whether the look at the batch, where it settled on this cause, may be believed."""
        return True

    def with_triage(self, case: NanCase, own: float) -> float:
        """Join the own weight with what the automatic look at the batch settled on.

        One signal alone decides nothing: a look that is sure limits what only patterns speak for, a rule that saw the
        fault itself keeps its say.
        """
        triage = case.triage
        sure = triage.confidence if math.isfinite(triage.confidence) else 0.5
        if not triage.cause or own >= CERTAIN:
            return own
        if triage.cause == self.code:
            return max(own, 0.6 + 0.35 * sure) if self.trusts_triage(case) else own
        return min(own, 1.0 - 0.35 * sure)


class NanFromData(NanRule):
    """Some events are bad by themselves."""

    code = "XT-NAN-DATA"
    title = "a non-finite step comes from single events"
    problem = "the batch holds events that are not finite by themselves"

    def severity(self, case: NanCase) -> Severity:
        """Return that events which are known to be bad stay so, whatever attempts leave out."""
        known = bool(case.few_suspects or case.shared_events) or case.stage == "input"
        return Severity.ERROR if known else super().severity(case)

    def blamed(self, case: NanCase) -> tuple[tuple[str, int], ...]:
        """Return the events that are bad by themselves."""
        return blamed(case.evidence, case.named, case.last_attempt)

    def weigh(self, case: NanCase) -> Weight:
        """Look for bad inputs, bad events, and the same events in every bad batch."""
        if case.few_suspects:
            text = f"{len(case.suspects)} of {case.num_events} events fail alone, the others do not"
            return (0.97 if case.outliers or case.stage == "input" else 0.8), [text, *case.outliers]
        if case.stage == "input":
            return 0.9, ["a value of the input is not finite"]
        if case.shared_events and not case.before.grew:
            named = fixes.events_named(case.evidence, case.shared_events, attempt=case.last_attempt)
            # The look at a batch tries its events one by one: those that only came again may have met by chance.
            looked = bool(case.triage.cause) and not case.suspects
            return (0.6 if looked else 0.88), [f"the same events were in the skipped batches of every epoch: {named}"]
        return self._by_pattern(case)

    def _by_pattern(self, case: NanCase) -> Weight:
        if case.triage.finite_with_saved_weights:
            return 0.15, ["the same batch is finite with earlier weights"]
        if case.before.grew:
            return 0.2, ["the gradient norm grew before, which no single event makes it do"]
        if case.never_again:
            return 0.3, ["the bad batches of different epochs have no event in common, so none is bad by itself"]
        factor = 0.8 if case.loss_finite else 1.0
        if case.recovered:
            count = "this batch" if case.rows.size == 1 else f"these {case.rows.size} batches"
            return 0.65 * factor, [f"only {count} failed: the steps before and after are finite"]
        if not case.lasting:
            return 0.5 * factor, ["the run ended with this batch, so nothing shows whether others are finite"]
        return 0.3 * factor, [f"all {case.rows.size} batches from here on fail, which single events do not explain"]


class NanFromLossDomain(NanRule):
    """The outputs are finite and the loss is not."""

    code = "XT-NAN-LOSS"
    title = "a loss leaves its domain: logarithm, root or division of what it is given"
    problem = "the loss is evaluated outside its domain"

    def trusts_triage(self, case: NanCase) -> bool:
        """Return False where the events at fault are far from all others: then the data are to blame."""
        return not case.outliers

    def weigh(self, case: NanCase) -> Weight:
        """Look for finite inputs and modules with a loss that is not, or one bad term among sound ones."""
        if case.loss_finite:
            return 0.05, ["the loss itself is finite"]
        triage = case.triage
        if triage.module or case.stage == "input":
            return 0.05, [f"it starts before the loss, in {triage.module or 'the input'}"]
        if case.outliers:
            return 0.3, [f"the events themselves are far off: {case.outliers[0]}"]
        if case.outside_domain:
            return CERTAIN, [*case.outside_domain, _logarithm(case)]
        if triage.in_loss:
            of = counted(max(triage.events_nonfinite, 1), "event")
            lines = [f"inputs and outputs are finite, the loss of {of} is not"]
            return 0.9, lines
        if case.before.grew:
            return 0.2, ["the gradient norm grew before"]
        terms, bad = case.evidence.steps.terms, case.bad_terms
        named = f"only {', '.join(bad)} of {len(terms)} loss terms is not finite"
        if not bad or len(bad) == len(terms):
            return 0.15, ["all loss terms fail together"]
        if case.logarithms:
            return 0.75, [named, _logarithm(case)]
        if case.first_of_run and case.lasting:
            return 0.7, [named, "from the first step on"]
        return (0.6 if case.num_cases > 2 and not case.shared_events else 0.45), [named]


class NanFromOverflow(NanRule):
    """A value left the range of float16."""

    code = "XT-AMP-OVERFLOW"
    title = "reduced precision overflows"
    problem = f"a value left the range of float16 ({FLOAT16_MAX:.0f})"

    def look(self, evidence: Evidence) -> Iterator[Opinion]:
        """Weigh single steps, and count how often the gradient scale had to give way."""
        if not evidence.uses_fp16:
            # A module may round to float16 by itself, whatever the precision of the run is.
            cases = (case for case in nan_cases(evidence) if case.triage.finite_in_float32)
            yield from (self.opinion(case, self.severity(case)) for case in cases)
            return
        yield from super().look(evidence)
        if any(case.driven for case in nan_cases(evidence)):
            return
        skipped, total = unsettled_overflows(evidence)
        scale = evidence.steps["amp_scale"]
        low = float(scale.min()) if scale.size else 1.0
        counted = evidence.last("amp_scale")
        if skipped > MAX_OVERFLOW_SHARE * max(total, 1) or low < 1.0 or counted is not None:
            yield Cause(
                code=self.code,
                confidence=0.92,
                problem=f"{skipped} of {total} steps were skipped because gradients left the range of float16 (65504)",
                evidence=(f"the loss scale fell to {low:g}", *([counted.message] if counted else [])),
                fix=self._precision(evidence),
                step=counted.step if counted else 0,
                symptom="overflow",
            )

    def trusts_triage(self, case: NanCase) -> bool:
        """Return False where a rate beyond all reason had driven the weights to where float16 ends."""
        return not case.driven

    def weigh(self, case: NanCase) -> Weight:
        """Look whether the batch is finite in float32."""
        triage = case.triage
        if case.driven:
            return 0.4, [f"steps beyond lr {HIGH_LR:g} had raised the loss before: any precision is left in time"]
        if triage.finite_in_float32 is False:
            return 0.05, ["the batch is not finite in float32 either"]
        if triage.finite_in_float32:
            module = triage.module if triage.module_input_absmax < FLOAT16_MAX else ""
            return CERTAIN, ["the same batch is finite in float32", *([f"it begins in {module}"] if module else [])]
        if triage.module_input_absmax > FLOAT16_MAX / 10:
            return 0.85, [f"{triage.module} is given values up to {triage.module_input_absmax:.4g}"]
        return 0.55, ["the run computes in float16; whether the batch is finite in float32 was not tried"]

    def fix(self, case: NanCase) -> str:
        """Return the wider precision, or what names the module that rounds by itself."""
        return self._precision(case.evidence) if case.evidence.uses_fp16 else fixes.nan_batch(case.evidence)

    def _precision(self, evidence: Evidence) -> str:
        return fixes.resume(evidence, "training.amp=bf16")


class NanFromLearningRate(NanRule):
    """The weights ran away; said only where F033 allows it."""

    code = "XT-NAN-LR"
    title = "the learning rate drives the weights out of range"
    problem = "the weights ran away: the learning rate is too high"

    def weigh(self, case: NanCase) -> Weight:
        """Ask for finite and small inputs, a gradient norm that grew, and a batch that earlier weights can take."""
        before = case.before
        refusal = self._refusal(case)
        if refusal:
            return refusal
        lines = [before.text()]
        confidence = 0.0
        if before.grew:
            confidence = 0.9 if before.loss_growth >= 10 else 0.8
        elif case.driven:
            confidence = 0.8
            lines.append(f"the loss had risen at rates beyond {HIGH_LR:g}, the largest AdamW takes")
        elif before.lr > HIGH_LR and (before.total < _FEW_STEPS or before.norm_growth >= 3):
            confidence = 0.75
            lines.append(f"lr {before.lr:g} is beyond {HIGH_LR:g}, the largest AdamW takes")
        if not confidence:
            return 0.1, [f"the gradient norm did not grow before it (factor {before.norm_growth:.2g})"]
        if case.triage.finite_with_saved_weights:
            return min(0.97, confidence + 0.07), [*lines, "the same batch is finite with earlier weights"]
        if math.isnan(case.largest_input):
            return confidence * 0.93, [*lines, "the scale of the inputs was not recorded"]
        return confidence, [*lines, f"inputs are finite and reach |z| = {case.largest_input:.3g}"]

    def with_triage(self, case: NanCase, own: float) -> float:
        """Return the joint weight; what a rate beyond all reason did before is no matter of this batch."""
        return own if case.driven else super().with_triage(case, own)

    def _refusal(self, case: NanCase) -> Weight | None:
        if case.first_of_run:
            return 0.0, ["no update had been made yet"]
        if case.few_suspects:
            return 0.1, ["events of the batch are bad by themselves"]
        if case.largest_input > LARGEST_INPUT:
            return 0.15, [f"inputs reach |z| = {case.largest_input:.3g}: their scale comes before the learning rate"]
        if case.triage.finite_with_saved_weights is False:
            return 0.15, ["the batch is not finite with earlier weights either"]
        if case.after_resume:
            return 0.2, ["it began right after a resume"]
        if case.triage.weights_finite is False and not case.before.ran_away:
            return 0.3, ["the weights are not finite, and the loss had not grown, as it does where they run away"]
        return None

    def fix(self, case: NanCase) -> str:
        """Return the run with a tenth of the rate and half the clip, as after a jump for the same cause."""
        lr = fixes.lower_lr(case.evidence, case.before.lr)
        clip = f"training.grad_clip={fixes.lower_clip(case.evidence):g}"
        since = ruined_since(case.evidence, case.row)
        return fixes.continue_from_best(case.evidence, *lr, clip, step=since, name="lower-lr")


def _logarithm(case: NanCase) -> str:
    return f"tasks.{case.logarithms[0]}.log_transform takes the logarithm of the target"
