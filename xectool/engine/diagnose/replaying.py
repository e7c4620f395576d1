"""``diagnose replay``: a recorded step once more, bit for bit, with the numbers of every module."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from xectool.config.left_out import leaving_out
from xectool.data.batch import EventBatch
from xectool.diagnosis import fixes
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.fixes import check_files
from xectool.engine.diagnose.replayed_step import MOST_NAMED, ReplayResult, identities, named, told_of
from xectool.errors import counted, in_shell
from xectool.findings import Finding, Severity
from xectool.probes.instruments.module_stats import ModuleStats, step_stats
from xectool.probes.repetition.circumstances import differences, recorded_threads
from xectool.probes.repetition.counterfactuals import (
    LOWER_RATE,
    LOWER_RATE_STEPS,
    NO_AMP,
    WITHOUT_SUSPECTS,
    Counterfactual,
    Judge,
    Situation,
    counterfactuals,
)
from xectool.probes.repetition.history import RunHistory, loss_median
from xectool.probes.repetition.replay import Moment, Replay, is_reproduced
from xectool.runlog.records import StepRecord
from xectool.training.process.progress import NullObserver, Observer
from xectool.training.stepping.step import StepResult
from xectool.training.triage import Reference, Trial, triage_window
from xectool.training.triage.window import without_rows

FAR_STEPS = 200  # steps to run again beyond which the cost is said first
MEDIAN_STEPS = 200  # steps before a step that say what its loss should be


def replay(
    run: str | Path,
    step: int,
    *,
    with_counterfactuals: bool = False,
    with_left_out: bool = False,
    device: str | None = None,
    observer: Observer | None = None,
) -> ReplayResult:
    """Run a recorded step again from the nearest state on disk.

    Args:
        run: Run directory.
        step: Optimizer step of the run, from 1.
        with_counterfactuals: Whether to try what would have cured it.
        with_left_out: Whether it is served the events that the run left out of this step.
        device: Device; that of the run without.
        observer: Told the cost before it is paid.

    Raises:
        XecError: The step is not recorded, or the run cannot be put together again.
    """
    watching = observer or NullObserver()
    history = RunHistory(run)
    record = history.require_step(step)
    entry = history.entry_of(step)
    threads = torch.get_num_threads()
    try:
        again = Replay(history, step, device, serves_left_out=with_left_out)
        torch.set_num_threads(recorded_threads(entry) or threads)
        if again.cost > FAR_STEPS:
            watching.message(f"{counted(again.cost, 'step')} are run again from {again.state.path or 'the seed'}")
        try:
            return _Session(history, again, record, with_left_out).result(entry, with_counterfactuals)
        finally:
            again.close()
    finally:
        torch.set_num_threads(threads)


@dataclass
class _Session:
    """One replay, from the nearest state to the answer."""

    history: RunHistory
    again: Replay
    record: StepRecord
    with_left_out: bool = False

    def result(self, entry: dict[str, Any], with_counterfactuals: bool) -> ReplayResult:
        again, step = self.again, self.record.step
        cost = again.cost
        again.run_until(max(again.step, step - 1 - LOWER_RATE_STEPS))
        early = again.moment() if again.step < step - 1 or again.step else None
        again.run_until(step - 1)
        here = again.moment()
        window = again.next_window()
        result = again.run_until(step)
        assert result is not None
        again.go_to(here)
        same, served = is_reproduced(result, self.record), self._served
        judge = self._judge()
        healthy = result.finite and result.loss <= judge.limit
        rows = [] if healthy else self._suspects(window, result, judge)
        stats = step_stats(again.bench(), window)
        found: list[Counterfactual] = []
        if with_counterfactuals:
            situation = self._situation(window, rows, early)
            found = counterfactuals(again, situation, judge)
        ranks = self.history.ranks_at(step)
        changed = () if same or served else (*differences(entry, again.parts, ranks), *self._lost_states())
        return self._answer(result, (same, healthy, cost), (rows, window), (stats.modules, found, changed))

    def _judge(self) -> Judge:
        step = self.record.step
        before = self.history.steps(step - MEDIAN_STEPS, step - 1)
        median = loss_median(iter(before.values()))
        factor = self.again.parts.config.guards.spike_factor
        return Judge(factor * median if math.isfinite(median) and median > 0 else math.inf)

    def _suspects(self, window: list[EventBatch], result: StepResult, judge: Judge) -> list[int]:
        """Return the rows of the window that are bad by themselves."""
        self.again.parts.model.train()
        kind = "spike" if result.finite else "nonfinite"
        found = triage_window(Trial.of(self.again.parts), window, kind, Reference(limit=judge.limit))
        return list(found.suspects)

    def _situation(self, window: list[EventBatch], rows: list[int], early: Moment | None) -> Situation:
        rest = without_rows(window, rows) if rows else None
        left = sum(batch.num_events for batch in rest) if rest else 0
        names = f"{counted(len(rows), 'event')} left out" if rows else ""
        return Situation(self.again.bench(), window, rest if left else None, names, early)

    def _answer(
        self,
        result: StepResult,
        how: tuple[bool, bool, int],
        events: tuple[list[int], list[EventBatch]],
        inside: tuple[tuple[ModuleStats, ...], list[Counterfactual], tuple[str, ...]],
    ) -> ReplayResult:
        (same, healthy, cost), (rows, window), (modules, found, changed) = how, events, inside
        record, cures = self.record, tuple(item.change for item in found if item.cures)
        first = next((own.module for own in modules if own.nonfinite), None)
        suspects = identities(window, rows, self.again)
        verdict, why = self._words(result, same, healthy)
        why += [
            *named("served again" if self._served else "left out of it", self.again.left_out),
            *named("bad by itself", suspects),
            *([f"cured by: {', '.join(cures)}"] if cures else []),
            *changed,
        ]
        good = healthy and (same or self._served)
        next_line = self._next(good, changed) if healthy else self._cure(result, suspects, found)
        findings = () if good else (self._finding(result, healthy, verdict, why, next_line),)
        return ReplayResult(
            step=record.step,
            epoch=record.epoch,
            reproduced=same,
            loss=result.loss,
            recorded_loss=record.loss,
            grad_norm=result.grad_norm,
            recorded_grad_norm=record.grad_norm,
            finite=result.finite,
            healthy=healthy,
            left_out=self.again.left_out,
            with_left_out=self._served,
            differences=changed,
            state=str(self.again.state.path or ""),
            replayed_steps=cost,
            events=sum(batch.num_events for batch in window),
            modules=modules,
            first_nonfinite=first,
            suspects=suspects,
            counterfactuals=tuple(found),
            cures=cures,
            verdict=verdict,
            why=tuple(why),
            next=next_line,
            findings=findings,
        )

    def _words(self, result: StepResult, same: bool, healthy: bool) -> tuple[str, list[str]]:
        record = self.record
        how = "reproduced bit for bit" if same else "not reproduced"
        state = "healthy" if healthy else result.fault or f"a spike: loss {result.loss:.6g}"
        if left_out := self.again.left_out:
            how = f"with {told_of(left_out)} served again" if self._served else how
            state += "" if self._served else f" without {told_of(left_out)}, which the run leaves out"
        why = [
            f"loss {result.loss!r} now, {record.loss!r} recorded",
            f"gradient norm {result.grad_norm!r} now, {record.grad_norm!r} recorded",
        ]
        if self.with_left_out and not left_out:
            why.append("the run left no event out of this step: --with-left-out changes nothing")
        execution, is_fixed = self.again.parts.execution, self.again.parts.config.training.deterministic
        if not (same or self._served or is_fixed) and execution.device.type == "cuda":
            why.append("without training.deterministic a GPU adds in another order each time, and weights drift apart")
        return f"step {record.step} {how}; it is {state}", why

    def _finding(self, result: StepResult, healthy: bool, verdict: str, why: list[str], following: str) -> Finding:
        code = "XT-REPLAY-DIFFERS" if healthy else "XT-NAN" if not result.finite else "XT-SPIKE"
        return Finding(code, Severity.ERROR, verdict, str(self.history.run_dir), tuple(why), following)

    def _lost_states(self) -> list[str]:
        """Return what is not on disk any more: states that resumes up to the step read, the list of events left out."""
        between = [
            event.step
            for event in self.history.events
            if event.kind == "resume" and self.again.state.step < event.step < self.record.step
        ]
        lost = [f"the resume at step {step} used a state that is no longer on disk" for step in between]
        return [*lost, *filter(None, [self.history.not_listed])]

    @property
    def _served(self) -> bool:
        """Whether the step has events that the run left out of it."""
        return self.with_left_out and bool(self.again.left_out)

    def _next(self, good: bool, changed: tuple[str, ...]) -> str:
        """Return the command for a step that is healthy: what was left out of it, or why it is another one now."""
        run = in_shell(self.history.run_dir)
        if changed:
            return "xectool explain XT-REPLAY-DIFFERS"
        if self.again.left_out and not self._served:
            return f"xectool diagnose replay {run} --step {self.record.step} --with-left-out"
        return "" if good else f"xectool diagnose reproducibility {run}"

    def _cure(self, result: StepResult, suspects: tuple[dict[str, Any], ...], found: list[Counterfactual]) -> str:
        """Return the command for a step that is bad: data, precision, rate, else what a run does by itself."""
        run, cures = in_shell(self.history.run_dir), {item.change for item in found if item.cures}
        if not result.finite:
            return f"xectool diagnose nan-batch --run {run}"
        if suspects and (not found or WITHOUT_SUSPECTS in cures):
            events = [(str(event["file"]), int(event["entry"])) for event in suspects[:MOST_NAMED]]
            without = in_shell(leaving_out(self.history.config.data, *events))
            return f"{check_files(self.history.run_dir, dict(events))}   # then train with --set {without}"
        if not found:
            return f"xectool diagnose replay {run} --step {self.record.step} --counterfactuals"
        evidence, since = gather(self.history.run_dir), self.record.step
        if NO_AMP in cures:
            return fixes.continue_from_best(evidence, "training.amp=off", step=since, name="float32")
        if LOWER_RATE not in cures:
            return fixes.train_again(evidence, "guards.on_spike=rewind", name="rewind")
        lower = (*fixes.lower_lr(evidence, self.record.lr), f"training.grad_clip={fixes.lower_clip(evidence):g}")
        return fixes.continue_from_best(evidence, *lower, step=since, name="lower-lr")
