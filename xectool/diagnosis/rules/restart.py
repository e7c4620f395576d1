"""Runs that went back to the beginning without saying so."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from xectool.diagnosis import fixes
from xectool.diagnosis.cases.growth import HIGH_LR
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Attempt, Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.statistics import Series, median, spread
from xectool.diagnosis.rules.signs import COPY, same_signs

_AROUND: Final = 10  # steps before and after a resume that are compared
_WORTH_STEPS: Final = 1  # a checkpoint that was left behind holds at least so many
_BACK_SHARE: Final = 0.5  # of the way back to where the run began
_MEANT: Final = ("finished", "interrupted")
_BATCH_SIGNALS: Final = ("SIGTERM", "SIGUSR1", "SIGHUP")
_SAVE_SIGNAL: Final = "SIGUSR2"
_WINDOW: Final = 20  # steps before and after a loss of all weights in mid-run
_LEARNED: Final = 0.8  # of the first losses, below which there was something to lose
_FAR: Final = 3.0  # times the first losses of the run, beyond which nothing that only forgot can be
_BEYOND: Final = "beyond the first losses: it did not only forget"
_LOST_SHARE: Final = 0.6  # of the way back to where the run began
_AT_MOST: Final = 1.5  # of the first losses: what goes beyond is a jump, which has rules of its own
_RISE: Final = 1.1
_MOST_PAIRS: Final = 0.85  # of a step before and one after the loss of all weights, of which the later is higher
_CLEAR: Final = 5.0  # robust deviations by which the jump must exceed the noise of single batches


class SilentRestart(DiagnosisRule):
    """An attempt begins again, or with another state than the one before left."""

    code = "XT-RESTART"
    title = "the run began again from nothing without being told to"

    def unseen(self, evidence: Evidence) -> str:
        """Return that one attempt was too short."""
        long = len(evidence.attempts) > 1 or len(evidence.steps) >= 3 * _WINDOW
        told = evidence.of("weights_lost") or evidence.of("weights_moved")
        return "" if long or told else "there is one attempt of a few steps only"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Look for attempts without a resume after saved progress, and for losses back at where they began."""
        for attempt in evidence.attempts[1:]:
            forgotten = self._forgotten(evidence, attempt)
            lines = forgotten or self._untrained(evidence, attempt)
            if lines and lines[-1] == _BEYOND:
                yield _brought_back(evidence, attempt, lines)
                return
            if lines:
                # What was saved after the weights were lost holds the loss.
                before = (attempt.resumed_after or 0) + 1
                yield Cause(
                    code=self.code,
                    confidence=0.94,
                    problem=f"attempt {attempt.number} began again: {lines[0]}",
                    evidence=tuple(lines),
                    fix=fixes.resume(evidence) if forgotten else fixes.continue_from_best(evidence, step=before),
                    step=max(1, attempt.first_step),
                    symptom=f"restart@{attempt.number}",
                )
                return
        replaced = list(self._replaced(evidence))
        yield from replaced
        if replaced:
            return
        if evidence.of("weights_lost"):
            yield from self._drawn_anew(evidence)
        elif (moves := evidence.of("weights_moved")) and not any(event.data.get("often") for event in moves):
            yield from self._set_back(evidence)
        else:
            yield from self._lost_weights(evidence)

    def _replaced(self, evidence: Evidence) -> Iterator[Cause]:
        """Report a resume whose weights are not those that were saved at its step."""
        ever = [event for event in (*evidence.events, *evidence.given_up) if event.kind == "checkpoint"]
        for event in evidence.of("resume"):
            saved = [item for item in ever if item.step == event.step and item.time <= event.time]
            share = same_signs(saved[-1].data.get("signs"), event.data.get("signs")) if saved else 1.0
            if share < COPY:
                yield Cause(
                    code=self.code,
                    confidence=0.95,
                    problem=f"the resume at step {event.step} goes on with other weights than were saved at that step: "
                    f"{share:.0%} of their signs are the same",
                    evidence=("a copy shares all of them, weights drawn anew half",),
                    fix=fixes.continue_from_best(evidence, step=event.step),
                    step=event.step + 1,
                    symptom="lost weights",
                )
                return

    def _drawn_anew(self, evidence: Evidence) -> Iterator[Cause]:
        """Report matrices that became other ones between two looks."""
        event = evidence.of("weights_lost")[0]
        step, matrices = int(number(event.data.get("since"))) + 1, list(event.data.get("matrices") or ())
        yield Cause(
            code=self.code,
            confidence=0.96,
            problem=f"between steps {step} and {event.step} weights were drawn anew, or loaded from elsewhere: "
            f"{event.message}",
            evidence=(f"a third of their signs changed or more: {', '.join(map(str, matrices))}",),
            fix=fixes.continue_from_best(evidence, step=step),
            step=step,
            symptom="lost weights",
        )

    def _set_back(self, evidence: Evidence) -> Iterator[Cause]:
        """Report weights that became other ones of the same size within a step, as those of an earlier step are."""
        event = evidence.of("weights_moved")[0]
        matrices = ", ".join(map(str, event.data.get("matrices") or ()))
        yield Cause(
            code=self.code,
            confidence=0.93,
            problem=f"at step {event.step} other weights were put in place, without a resume or a rewind",
            evidence=(event.message, f"moved: {matrices}", "their size is as before: those of another state"),
            fix=fixes.continue_from_best(evidence, step=event.step),
            step=event.step,
            symptom="lost weights",
        )

    def _lost_weights(self, evidence: Evidence) -> Iterator[Cause]:
        """Look for a step from which on the loss is that of the first steps, though the rate is as before."""
        rows = evidence.steps.good_rows
        losses, rates, numbers = (evidence.steps[name][rows] for name in ("loss", "lr", "step"))
        other_objective = any(event.data.get("objective") for event in evidence.of("resume"))
        if other_objective or rows.size < 3 * _WINDOW or float(np.nanmax(rates)) > HIGH_LR or evidence.of("rewind"):
            return
        if evidence.setting("data.shuffle", True) is False:
            return  # the loss goes with the order of the events, back and forth in every epoch
        jumps = {
            row: jump
            for row in range(_WINDOW, rows.size - _WINDOW)
            if (jump := _fall_back(losses, row)) > 0
            and float(np.nanmax(rates[row : row + _WINDOW])) <= _RISE * float(np.nanmax(rates[: row - _WINDOW + 1]))
        }
        if not jumps:
            return
        row = max(jumps, key=jumps.__getitem__)
        was, now, step = median(losses[row - _WINDOW : row]), median(losses[row : row + _WINDOW]), int(numbers[row])
        yield Cause(
            code=self.code,
            confidence=0.88,
            problem=f"about step {step} the weights were lost: the loss rose from {was:.4g} to {now:.4g}, and stayed",
            evidence=(
                f"the first {_WINDOW} steps of the run had {median(losses[:_WINDOW]):.4g}",
                "the learning rate did not rise",
            ),
            fix=fixes.continue_from_best(evidence, step=step),
            step=step,
            symptom="lost weights",
        )

    def _forgotten(self, evidence: Evidence, attempt: Attempt) -> list[str]:
        """Return how an attempt began at step 1 though one that was killed or failed had saved its progress.

        After a last word that is no failure, a start from nothing is meant: it has to be asked for. What a batch system
        ends is submitted again as it is: the same configuration was not meant to begin again.
        """
        earlier = [item for item in evidence.attempts if item.number < attempt.number and item.reached]
        if not earlier or attempt.resumed_after is not None or attempt.first_step != 1:
            return []
        if earlier[-1].end in _MEANT and not _put_off(evidence, earlier[-1], attempt):
            return []
        begun = max((item.started for item in earlier if item.resumed_after is None), default=0.0)
        ever = (event for event in (*evidence.events, *evidence.given_up) if event.kind == "checkpoint")
        saved = [event.step for event in ever if begun <= event.time <= attempt.started]
        reached = max(saved, default=0)
        if reached < _WORTH_STEPS:
            return []
        text = f"it starts at step 1 although attempt {earlier[-1].number} had saved step {reached}"
        return [text, "no resume is recorded between them"]

    def _untrained(self, evidence: Evidence, attempt: Attempt) -> list[str]:
        """Return how the losses after a resume are back at those of the first steps, though the rate did not rise."""
        if attempt.resumed_after is None or attempt.resumed_after < 2 * _AROUND:
            return []
        if any(event.data.get("objective") for event in evidence.of("resume") if event.step == attempt.resumed_after):
            return []  # its losses do not compare
        steps = evidence.steps
        rows = steps.good_rows
        numbers = steps["step"][rows]
        after = rows[numbers > attempt.resumed_after][:_AROUND]
        before = rows[numbers <= attempt.resumed_after][-_AROUND:]
        begin = rows[numbers <= attempt.resumed_after][: after.size]  # what falls fast falls as fast again
        if min(after.size, before.size, begin.size) < 3:
            return []
        losses = steps["loss"]
        was, now, first = median(losses[before]), median(losses[after]), median(losses[begin])
        told = [event for event in evidence.of("resume") if event.step == attempt.resumed_after]
        recorded = number(told[-1].data.get("loss_before")) if told else math.nan
        noise = max(spread(losses[before]), 0.02 * abs(was))
        risen = now - was > _CLEAR * noise
        beyond = risen and now > _FAR * max(abs(first), abs(was))
        back = beyond or (risen and now - was > _BACK_SHARE * (first - was) > 0)
        if not back or float(np.nanmax(steps["lr"][after])) > 3 * float(np.nanmax(steps["lr"][before])):
            return []
        text = f"after the resume at step {attempt.resumed_after} the loss is {now:.4g}, before it {was:.4g}"
        lines = [text, f"the first steps of the run had {first:.4g}"]
        if beyond:
            return [*lines, _BEYOND]
        return [*lines, f"loss before, as the resume recorded it: {recorded:.4g}"] if recorded == recorded else lines


def _brought_back(evidence: Evidence, attempt: Attempt, lines: list[str]) -> Cause:
    """Return that a resume brought back a state that is worse than none: the loss is beyond that of the first steps."""
    return Cause(
        code="XT-NAN-RESUME",
        confidence=0.85,
        problem=f"the state that the resume brought back is damaged: {lines[0]}",
        evidence=tuple(lines[1:]),
        fix=fixes.continue_from_best(evidence, step=attempt.resumed_after or 1),
        step=max(1, attempt.first_step),
        symptom=f"restart@{attempt.number}",
    )


def _put_off(evidence: Evidence, earlier: Attempt, attempt: Attempt) -> bool:
    """Return whether an attempt was ended by a signal that nobody types, and the next has its configuration."""
    signals = [
        event
        for event in (*evidence.events, *evidence.given_up)
        if event.kind == "signal"
        and event.data.get("name") != _SAVE_SIGNAL
        and earlier.started <= event.time <= attempt.started
    ]
    asked = bool(signals) and str(signals[-1].data.get("name")) in _BATCH_SIGNALS
    known = {item.get("attempt"): item.get("config_sha256") for item in evidence.manifest.get("attempts") or ()}
    digests = known.get(earlier.number), known.get(attempt.number)
    return earlier.end == "interrupted" and asked and bool(digests[0]) and digests[0] == digests[1]


def _fall_back(losses: Series, row: int) -> float:
    """Return by how much the loss of all good steps rose at one, to what the first steps had; 0 where it did not.

    What fell fast at the beginning falls as fast again, so windows of one length are compared.
    """
    before, after = losses[row - _WINDOW : row], losses[row : row + _WINDOW]
    was, now, first = median(before), median(after), median(losses[:_WINDOW])
    noise = 1.25 * math.hypot(spread(before), spread(after)) / math.sqrt(_WINDOW)  # of medians, 1.25 that of means
    soon, begun = median(after[:_AROUND]), median(losses[:_AROUND])
    back = now - was > _LOST_SHARE * (first - was) and soon - was > _LOST_SHARE * (begun - was)
    calm = now <= _AT_MOST * first and soon <= _AT_MOST * begun
    lost = was < _LEARNED * first and back and calm and now - was > _CLEAR * noise
    # Where half of the batches hold a wild event, medians go from one half to the other by chance.
    return now - was if lost and float(np.mean(before[:, None] < after)) > _MOST_PAIRS else 0.0
