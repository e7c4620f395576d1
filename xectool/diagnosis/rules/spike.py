"""Why the loss jumped: one event, the learning rate, a restart of its schedule, or a resume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cases.growth import HIGH_LR, LARGEST_INPUT, LOOK_BACK, LR_JUMP
from xectool.diagnosis.cases.spike import SpikeCase, spike_cases
from xectool.diagnosis.cases.start import SPIKE_FACTOR
from xectool.diagnosis.cases.step import CaseRule, Weight
from xectool.diagnosis.cause import Opinion
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import identities, number
from xectool.diagnosis.excluded import blamed, told_left_out_since, told_mended
from xectool.diagnosis.rules.nan_state import moment_limit, state_damage
from xectool.errors import counted
from xectool.findings import Severity
from xectool.runlog.records import EventRecord

_AFTER_RESUME: Final = 10  # steps in which damaged moments show: their memory is 1 / (1 - beta1)
_NARROW: Final = 3  # steps; a batch is one, the moments carry it on into a few
_SURE_LOOK: Final = 0.8
_LASTING: Final = 10  # steps far above the level that one event cannot make
_AFTER_RISE: Final = 10  # steps after a rise of the rate in which it is to blame before any event
MANY: Final = "many events are far from the others, as a file in another unit makes them"
_ONCE_AN_EPOCH: Final = 3  # epochs with one spike each, as an event that comes back gives


class SpikeRule(CaseRule[SpikeCase]):
    """Abstract: one cause of a jump of the loss."""

    def look(self, evidence: Evidence) -> Iterator[Opinion]:
        """Weigh this cause for each jump of the loss."""
        for case in spike_cases(evidence):
            usual = Severity.WARNING if case.recovered else Severity.ERROR
            yield self.opinion(case, Severity.INFO if case.tail else usual)

    def describe(self, case: SpikeCase) -> str:
        """Return the problem with the height of the jump."""
        return f"step {case.step}: the loss rose {case.height}: {self.problem}"

    def facts(self, case: SpikeCase) -> tuple[str, ...]:
        """Return the jump in numbers."""
        return (case.text(),)

    def with_triage(self, case: SpikeCase, own: float) -> float:
        """Join the own weight with what the automatic look at the events found, as far as that was sure of it."""
        triage = case.triage
        if not triage.cause or not triage.confidence >= _SURE_LOOK:
            return own
        return max(own, 0.9 * triage.confidence) if triage.cause == self.code else min(own, 0.7)


class SpikeFromEvent(SpikeRule):
    """One batch is far from all others."""

    code = "XT-SPIKE-EVENT"
    title = "a jump of the loss comes from single events"
    problem = "single events are far from all others"

    def weigh(self, case: SpikeCase) -> Weight:
        """Look for suspects, for one narrow jump without growth before it, and for one jump an epoch."""
        lasts = case.duration > _LASTING
        if case.suspects and not case.grew:
            if doubt := _doubt(case):
                return 0.6, [doubt]
            since, _ = _left_out(case)
            gone = [f"left out of the run since step {since}"] if since else []
            named = fixes.events_named(case.evidence, case.suspects, attempt=case.last_attempt)
            return 0.92, [f"largest losses: {named}", *gone]
        return self._by_its_course(case, lasts)

    def _by_its_course(self, case: SpikeCase, lasts: bool) -> Weight:
        """Weigh a jump in which no event is known to be bad by itself."""
        if case.at_start:
            return 0.1, ["the loss rose among the first steps"]
        if case.grew:
            return 0.25, ["the gradient norm grew before, which no single event makes it do"]
        triage = case.triage
        if triage.top_share >= 0.5 and triage.top_ratio >= SPIKE_FACTOR and not lasts:
            return 0.9, [f"one event makes {triage.top_share:.0%} of the loss of its batch"]
        if case.before.lr_jump >= LR_JUMP and case.before.lr > HIGH_LR:
            return 0.5, [f"the rate had risen by a factor {case.before.lr_jump:.3g} just before, beyond {HIGH_LR:g}"]
        if case.epochs_with_one >= _ONCE_AN_EPOCH:
            return 0.85, [f"once in each of {case.epochs_with_one} epochs in a row, as an event comes back"]
        if case.duration <= _NARROW:
            return (0.78 if case.recovered else 0.65), ["the steps just before were calm, and it came in one step"]
        return 0.45, [f"it lasted {counted(case.duration, 'step')}"]

    def with_triage(self, case: SpikeCase, own: float) -> float:
        """Return the joint weight; what is high for long is no single event, whatever the look at one batch said."""
        return own if case.duration > _LASTING or case.rate_too_high else super().with_triage(case, own)

    def describe(self, case: SpikeCase) -> str:
        """Return the problem; a loss that stays high for long does so by many events, such as those of one file."""
        return super().describe(case).replace(self.problem, MANY) if _stays(case) else super().describe(case)

    def mended(self, case: SpikeCase) -> str:
        """Return that all events that are to blame are left out by now, and the loss is what it was."""
        if not case.recovered or case.tail or case.grew:
            return ""
        if case.suspects:
            return told_mended(case.evidence, _at_fault(case), case.last_attempt)
        last_step = int(case.evidence.steps["step"][case.rows[-1]])
        return told_left_out_since(case.evidence, last_step, case.last_attempt)

    def fix(self, case: SpikeCase) -> str:
        """Return the replay that names the events, or the look at the files of many or of those left out since."""
        if _stays(case):
            return fixes.check_named_files(case.evidence, "train")
        since, files = _left_out(case)
        if since and files:
            return fixes.check_files(case.evidence.run_dir, files)
        return f"xectool diagnose replay {fixes.quoted(case.evidence)} --step {case.step} --counterfactuals"

    def blamed(self, case: SpikeCase) -> tuple[tuple[str, int], ...]:
        """Return the events that are to blame for a jump that passes."""
        return () if _stays(case) else blamed(case.evidence, _at_fault(case), case.last_attempt)


class SpikeFromLearningRate(SpikeRule):
    """The steps are too long."""

    code = "XT-SPIKE-LR"
    title = "a jump of the loss comes from the learning rate"
    problem = "the learning rate is too high"

    def weigh(self, case: SpikeCase) -> Weight:
        """Ask for small inputs and for growth before it, a start that explodes, or a rate beyond what AdamW takes."""
        if case.largest_input > LARGEST_INPUT:
            return 0.15, [f"inputs reach |z| = {case.largest_input:.3g}: their scale comes before the learning rate"]
        before = case.before
        raised = case.raised is not None and case.step - case.raised.step <= _AFTER_RISE
        if case.rate_too_high:
            return 0.86, [f"no single event does it: lr {before.lr:g} is beyond {HIGH_LR:g}, the largest AdamW takes"]
        if case.suspects and not case.grew and not raised:
            return 0.15, ["events of the batch are bad by themselves"]
        if case.at_start:
            return (0.9 if before.lr > HIGH_LR else 0.72), [f"it came with the first updates, lr {before.lr:g}"]
        if case.grew:
            return 0.86, [before.text()]
        if case.raised is not None:
            return 0.88, [f"{_rise(case.raised)} just before"]
        if before.lr > HIGH_LR and (case.width > _NARROW or case.num_cases >= 3):
            return 0.72, [f"lr {before.lr:g} is beyond {HIGH_LR:g}, the largest AdamW takes"]
        if before.lr_jump >= LR_JUMP:
            return 0.6, [f"lr rose by a factor {before.lr_jump:.3g} within a step"]
        if case.width > _NARROW and not case.recovered:
            return 0.5, [f"the loss stays high for {counted(case.width, 'step')}"]
        return 0.1, [f"the gradient norm did not grow before it (factor {before.norm_growth:.2g})"]

    def fix(self, case: SpikeCase) -> str:
        """Return the run from the best checkpoint with a tenth of the rate and half the clip."""
        lr = fixes.lower_lr(case.evidence, case.before.lr)
        clip = f"training.grad_clip={fixes.lower_clip(case.evidence):g}"
        return fixes.continue_from_best(case.evidence, *lr, clip, step=case.step, name="lower-lr")


class SpikeFromRestart(SpikeRule):
    """The schedule went back to its peak."""

    code = "XT-SPIKE-RESTART"
    title = "a jump of the loss comes from a restart of the schedule"
    problem = "the schedule had just gone back to a high rate"

    def weigh(self, case: SpikeCase) -> Weight:
        """Look for a restart of the schedule or a jump back to a rate the run had before."""
        restarts = [
            event
            for event in case.evidence.of("schedule_restart", "lr_change")
            if (event.kind == "schedule_restart" or (event.data.get("reason") == "schedule" and case.had_rate(event)))
            and number(event.data.get("lr_after")) > number(event.data.get("lr_before"))
            and case.step - LOOK_BACK <= event.step <= case.step + 1
        ]
        scheduled = case.evidence.setting("training.lr_scheduler") == "cosine_restarts"
        jump = case.before.lr_jump
        if restarts:
            last = restarts[-1]
            return 0.95, [f"restart at step {last.step}: {_rise(last)}"]
        if jump < LR_JUMP or case.at_start or case.raised is not None:
            return 0.0, [f"the rate did not jump in the {LOOK_BACK} steps before"]
        if case.rate_known_before or scheduled:
            return (0.92 if scheduled else 0.85), [f"the rate rose by a factor {jump:.3g} to where it had been before"]
        return 0.4, [f"the rate rose by a factor {jump:.3g}, to where it had never been"]

    def with_triage(self, case: SpikeCase, own: float) -> float:
        """Return the joint weight; a look that blames the rate does not know that a restart has raised it."""
        triage = case.incident.triage if case.incident is not None else None
        return (
            own if triage is not None and triage.cause == SpikeFromLearningRate.code else super().with_triage(case, own)
        )

    def fix(self, case: SpikeCase) -> str:
        """Return a schedule without restarts."""
        return fixes.continue_from_best(
            case.evidence, "training.lr_scheduler=cosine", step=case.step, name="no-restarts"
        )


class SpikeFromResume(SpikeRule):
    """What a resume loaded is damaged, though finite."""

    code = "XT-NAN-RESUME"
    title = "a jump of the loss comes from a damaged state after a resume"
    problem = "the state that the resume brought back is damaged"

    def weigh(self, case: SpikeCase) -> Weight:
        """Look for a jump right after a resume, and at the state that was loaded."""
        since = case.steps_since_resume
        if since is None or since > _AFTER_RESUME:
            return 0.0, ["no resume came just before"]
        if case.before.lr_jump >= LR_JUMP:
            return 0.3, ["the rate rose at the resume as well"]
        damage = self._damage(case)
        if damage:
            return 0.97, [f"the resume loaded {damage}"]
        if case.width <= _NARROW and case.recovered:
            return 0.35, [f"{counted(since, 'step')} after a resume, but over at once"]
        return 0.87, [f"it began {counted(since, 'step')} after a resume; the steps before the resume were calm"]

    def _damage(self, case: SpikeCase) -> str:
        resume = case.resume
        if resume is None:
            return ""
        return state_damage(resume.data, moment_limit(case.evidence, resume.step), case.weight_norm_before)

    def with_triage(self, case: SpikeCase, own: float) -> float:
        """Return the own weight: the look at the events knows nothing of resumes, and sees what the state has done."""
        return own

    def fix(self, case: SpikeCase) -> str:
        """Return the continuation from the best checkpoint, another file than the one that was resumed."""
        return fixes.continue_from_best(case.evidence, step=max(1, case.resume.step if case.resume else case.step))


def _doubt(case: SpikeCase) -> str:
    """Return what else makes events stand out, or the loss high without them; empty for nothing."""
    if case.raised is not None and case.step - case.raised.step <= _AFTER_RISE:
        return "the rate had been raised just before, which makes any event stand out"
    if case.rate_too_high:
        return "at this rate other events stand out each time, or the loss stays high without them"
    lasts = case.duration > _LASTING
    return f"the loss stayed high for {counted(case.duration, 'step')}, without these events" if lasts else ""


def _at_fault(case: SpikeCase) -> tuple[tuple[int, ...], ...]:
    """Return the events that are to blame; none where they are how the data are distributed."""
    return () if case.tail or case.grew or (case.suspects and _doubt(case)) else case.suspects


def _left_out(case: SpikeCase) -> tuple[int, list[str]]:
    """Return since which step all events that are to blame are left out, at once or one by one, and their files."""
    left, files = set(case.suspects), dict[str, None]()
    for event in case.evidence.of("quarantine"):
        gone = left & set(identities(event.data.get("events")))
        if not gone:
            continue
        left -= gone
        files |= dict.fromkeys(map(str, event.data.get("files") or ()))
        if not left:
            return event.step, list(files)
    return 0, []


def _stays(case: SpikeCase) -> bool:
    return case.width > _LASTING and not case.recovered


def _rise(event: EventRecord) -> str:
    return f"lr {number(event.data.get('lr_before')):.3g} -> {number(event.data.get('lr_after')):.3g}"
