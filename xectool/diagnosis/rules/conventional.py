"""A network that is worse than the conventional estimators, over the same validation events."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from xectool.config.tasks import HEADLINE_METRICS
from xectool.diagnosis import fixes
from xectool.diagnosis.cases.falling import still_falling
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import mapping, number
from xectool.diagnosis.rules.learning import other_lr
from xectool.findings import Severity
from xectool.runlog.conventional import CONSTANT, conventional
from xectool.runlog.metrics import with_unit

COMPARED: Final = (*HEADLINE_METRICS.values(), "mae_npho", "rmse_npho", "rmse_time")  # smaller is better
SIGMAS: Final = 3.0  # the 68th percentile of N errors is known to about 1 / sqrt(N) of itself
LEAST_SLOPE: Final = 0.1  # of a metric that falls as a power of the epochs; at less ten times as many gain a fifth
TRY_EPOCHS, TRY_STEPS = 5, 1000  # of fewer no curve tells where it ends; the quickstart is better after 1504
LEAST_LONGER, MOST_LONGER, UNKNOWN_LONGER = 2.0, 10.0, 5.0  # times the epochs of the run


@dataclass(frozen=True)
class Compared:
    """One metric of the network, beside that of the best conventional estimator, or of a constant."""

    metric: str
    network: float
    estimate: float
    of: str

    def is_worse(self, num_events: float) -> bool:
        """Return whether the network is worse by more than so many events scatter by."""
        return self.network - self.estimate > SIGMAS * math.hypot(self.network, self.estimate) / math.sqrt(num_events)

    def text(self) -> str:
        """Return both numbers."""
        return f"{with_unit(self.metric)} {self.network:.3g} against {self.estimate:.3g}"


class WorseThanConventional(DiagnosisRule):
    """The network is better than what is known without one; a note, for a short training is not."""

    code: ClassVar[str] = "XT-CONVENTIONAL"
    title: ClassVar[str] = "the network is not better than the conventional estimate"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the run was not scored beside a conventional estimate."""
        return "" if _compared(evidence) else "no conventional estimate was scored at its end"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the best weights with the conventional estimates of the same events."""
        started = evidence.last("run_start")
        num_events = number(started.data.get("num_val")) if started else math.nan
        worse = [one for one in _compared(evidence) if num_events > 0 and one.is_worse(num_events)]
        if not worse:
            return
        last = max(worse, key=lambda one: one.network / one.estimate)
        slope, end = _slope(evidence, last.metric), evidence.last("finished")
        over = end is not None and end.data.get("status") == "early_stopped"
        young = not over and (not fixes.has_finished(evidence) or _is_a_try(evidence))
        falls = not over and (still_falling(evidence) or slope >= LEAST_SLOPE)
        others = ("a constant" if one.of == CONSTANT else "the conventional estimate" for one in worse)
        beside = " or ".join(dict.fromkeys(others))
        yield Cause(
            code=self.code,
            confidence=0.8,
            problem=f"{'not yet better' if young or falls else 'worse'} than {beside}"
            f"{', and still falling' if falls else ''}: {', '.join(one.text() for one in worse)}",
            evidence=(f"over the same {num_events:g} validation events, by more than so many scatter by",),
            fix=_longer(evidence, last, slope) if young or falls else other_lr(evidence),
            severity=Severity.INFO,
            symptom="conventional",
        )


def _compared(evidence: Evidence) -> list[Compared]:
    """Return what was scored on both sides at the end of a run, or else in its last epoch; nothing while it runs."""
    end = evidence.last("finished")
    if evidence.status.state != "finished" or end is None:
        return []
    scored = {**(evidence.epochs[-1].metrics if evidence.epochs else {}), **mapping(end.data.get("metrics"))}
    found = []
    for metric in (name for name in COMPARED if name in scored):
        answers = [(number(scored[name]), of) for of, name in conventional(metric, scored).items()]
        estimate, of = min((answer for answer in answers if answer[0] > 0), default=(math.nan, ""))
        network = number(scored[metric])
        if math.isfinite(estimate) and math.isfinite(network):
            found.append(Compared(metric, network, estimate, of))
    return found


def _is_a_try(evidence: Evidence) -> bool:
    return len(evidence.epochs) < TRY_EPOCHS or evidence.steps.seen < TRY_STEPS


def _slope(evidence: Evidence, metric: str) -> float:
    """Return the power of the number of epochs with which a metric fell over the later half of them; NaN for one."""
    known = [(epoch.epoch, number(epoch.metrics.get(metric))) for epoch in evidence.epochs]
    known = [(epoch, value) for epoch, value in known if value > 0 and math.isfinite(value)]
    if len(known) < 2:
        return math.nan
    (since, before), (epoch, now) = known[(len(known) - 1) // 2], known[-1]
    return math.log(before / now) / math.log(epoch / since)


def _longer(evidence: Evidence, worst: Compared, slope: float) -> str:
    """Return the line that trains on, or anew for as many epochs as the learning curve tells to be enough."""
    if not fixes.has_finished(evidence):
        return fixes.resume(evidence)
    ratio = min(worst.network / worst.estimate, 1e3)  # the tenth power of more may be no float
    longer = ratio ** (1 / slope) if slope >= LEAST_SLOPE else UNKNOWN_LONGER
    done = evidence.epochs[-1].epoch if evidence.epochs else 1
    epochs = math.ceil(done * min(max(longer, LEAST_LONGER), MOST_LONGER))
    return fixes.train_again(evidence, f"training.epochs={epochs}", name="longer")
