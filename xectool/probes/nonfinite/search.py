"""Search a data set for what makes a training non-finite: weights, then all numbers, then the network on suspects."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice

from xectool.data.batch import EventBatch
from xectool.data.in_reading_order import in_reading_order
from xectool.data.loader import EventLoader
from xectool.errors import counted
from xectool.probes.instruments.bench import Bench
from xectool.probes.instruments.trial import GRADIENT, try_step
from xectool.probes.nonfinite.culprit import INPUT, Culprit, find_culprit
from xectool.probes.nonfinite.locate import Place, broken_weights
from xectool.probes.nonfinite.scan import ScanReport, at_their_step, scan
from xectool.probes.nonfinite.singles import as_steps, join, place_of

EPOCH = 1  # its events are searched
TRIED_TOGETHER = 4  # extreme events in one try
MOST_NAMED = 16  # events that fail by themselves; more are no single events
NUM_ORDINARY_TRIED = 2  # in any case
BUDGET_SHARE = 0.05  # of the time of the pass, for trying extreme events on the network
LEAST_BUDGET_S = 0.3  # the same for a small data set


@dataclass(frozen=True)
class NanSearch:
    """What a search found.

    Attributes:
        weights: Weights and moments that are not finite before any event is looked at.
        culprit: Why a step is not finite, or None.
        source: The batch the culprit was found in; its epoch and step say which.
        report: What the pass over the numbers found; None where no data were read.
        tried: Events tried on the network.
        others: Further events, one a batch, that fail by themselves as the culprit does.
        more: Why there may be further ones; empty where all events as extreme were tried.
        notes: What was looked at and what was not, one sentence each.
    """

    weights: tuple[Place, ...] = ()
    culprit: Culprit | None = None
    source: EventBatch | None = None
    report: ScanReport | None = None
    tried: int = 0
    others: tuple[EventBatch, ...] = ()
    more: str = ""
    notes: tuple[str, ...] = field(default=())


def search_window(bench: Bench, window: Sequence[EventBatch]) -> NanSearch:
    """Search the events of one step."""
    tried = sum(batch.num_events for batch in window)
    notes = (f"one step of {counted(tried, 'event')} was tried, forward, loss, gradient and update",)
    weights = tuple(broken_weights(bench))
    report = scan(at_their_step(window), bench.config, bench.model, bench.task)
    if weights:
        return NanSearch(weights, report=report, notes=notes)
    culprit = find_culprit(bench, window) or _in_evaluation(bench, window)
    return NanSearch((), culprit, next(iter(window), None), report, tried, notes=notes)


def search_data(
    bench: Bench, loader: EventLoader, *, full: bool = False, accumulate: int = 1, before: NanSearch | None = None
) -> NanSearch:
    """Search a data set.

    Args:
        bench: What is trained.
        loader: Serves the events.
        full: Whether every batch is tried on the network, not only suspicious and extreme events.
        accumulate: Batches of one optimizer step.
        before: Search of other data with the same network that found nothing: only what is more extreme than its
            events is tried.
    """
    weights = tuple(broken_weights(bench))
    tried_before = before.report if before else None
    beyond = tried_before.highest if tried_before else None
    with closing(in_reading_order(loader, EPOCH)) as windows:
        report = scan(windows, bench.config, bench.model, bench.task, beyond)
    notes = [f"all numbers of {counted(report.events, 'event')} were looked at"]
    if weights:
        return NanSearch(weights, report=report, notes=(*notes, "the network was not tried: its weights are broken"))
    groups = _chosen(report, ordinary=before is None)
    if full:
        (culprit, tried), group = _first_of_all(bench, _every(loader, accumulate), report), list[EventBatch]()
    else:
        culprit, group, tried = _first_of_chosen(bench, groups, report)
    others, tried_after = _also_bad(bench, [group, *groups], culprit, report) if culprit else ((), 0)
    tried += tried_after
    source = culprit.window[0] if culprit is not None else None
    tried_on = "every batch" if full else "the most extreme events and those with illegal numbers"
    notes.append(f"tried on the network: {counted(tried, 'event')}, {tried_on}")
    if not full and culprit is None and tried < report.events:
        notes.append("other events were not tried on the network; --full tries every batch")
    return NanSearch((), culprit, source, report, tried, others, _more(report, culprit, others), tuple(notes))


def _first_of_all(bench: Bench, windows: Iterable[list[EventBatch]], report: ScanReport) -> tuple[Culprit | None, int]:
    """Return what fails first of all steps, and how many events were tried."""
    controls, tried, first = _controls(report), 0, list[EventBatch]()
    for window in windows:
        tried += sum(batch.num_events for batch in window)
        if first and not try_step(bench, window, GRADIENT).bad:
            continue
        first = first or window
        culprit = find_culprit(bench, window, controls)
        if culprit is not None:
            return culprit, tried
    return _in_evaluation(bench, first, controls), tried


def _first_of_chosen(
    bench: Bench, groups: Iterable[list[EventBatch]], report: ScanReport
) -> tuple[Culprit | None, list[EventBatch], int]:
    """Return what fails first of single events, the group it is of, and how many were tried."""
    began, tried, first = time.perf_counter(), 0, list[EventBatch]()
    budget_s = max(LEAST_BUDGET_S, BUDGET_SHARE * report.seconds)
    # Extreme events are tried for as long as the budget lasts, some in any case.
    promised = 2 if report.suspects else 1
    for number, group in enumerate(groups):
        if number >= promised and time.perf_counter() - began > budget_s:
            break
        tried += len(group)
        first = first or group
        culprit = _culprit_among(bench, group, report)
        if culprit is not None:
            return culprit, group, tried
    return _culprit_among(replace(bench, evaluating=True), first, report) if first else None, [], tried


def _also_bad(
    bench: Bench, groups: Sequence[list[EventBatch]], culprit: Culprit, report: ScanReport
) -> tuple[tuple[EventBatch, ...], int]:
    """Return the events beside a culprit that fails alone, which do so as well, and how many more were tried.

    Of the group of the culprit all are tried; of those after it, while the highest of any ranking fail. Where events
    fail whatever they read, others say nothing about events.
    """
    if not culprit.alone or culprit.facts.get("in_evaluation_only"):
        return (), 0
    own, found, tried, sound = place_of(culprit.window[0]), list[EventBatch](), 0, 0
    for number, group in enumerate(groups if _is_of_events(culprit) else groups[:1]):
        events = [event for event in group if place_of(event) != own]
        bad = _bad_among(bench, events)
        found += bad
        tried += len(events) if number else 0
        sound = 0 if bad or not number else sound + len(events)
        if len(found) + 1 >= MOST_NAMED or sound >= max(TRIED_TOGETHER, len(report.highest)):
            break
    return tuple(found), tried


def _bad_among(bench: Bench, events: list[EventBatch]) -> list[EventBatch]:
    if not events or not try_step(bench, as_steps(events, bench.config.data.batch_size)).bad:
        return []
    return [event for event in events if try_step(bench, [event]).bad]


def _is_of_events(culprit: Culprit) -> bool:
    """Return whether it is certain events that fail, and not the network with any."""
    facts = culprit.facts
    return culprit.cause == INPUT or not (facts.get("every_event_fails") or facts["fails_with_any_readings"])


def _more(report: ScanReport, culprit: Culprit | None, others: Sequence[EventBatch]) -> str:
    """Return why there may be further events that fail by themselves; empty where all as extreme were tried."""
    if culprit is None or not culprit.alone:
        return ""
    if len(others) + 1 >= MOST_NAMED:
        return f"there may be more: no further event was tried once {len(others) + 1} failed by themselves"
    tried = {place_of(event) for event in report.suspects}
    listed = {(one.file_index, one.entry) for one in report.anomalies if (one.branch, one.sensor) not in report.dead}
    if place_of(culprit.window[0]) in tried and listed - tried - {place_of(event) for event in others}:
        return "there may be more: other events with illegal numbers were not tried by themselves"
    return ""


def _culprit_among(bench: Bench, group: list[EventBatch], report: ScanReport) -> Culprit | None:
    """Return why one of a few single events fails, else why they fail together.

    They are tried together first, for most of a try is the gradients of the weights and the update. What is hidden of
    an event does not depend on its batch.
    """
    together = as_steps(group, bench.config.data.batch_size)
    if not try_step(bench, together).bad:
        return None
    alone = (find_culprit(bench, [event], _controls(report, event)) for event in group)
    first = next((culprit for culprit in alone if culprit is not None), None)
    return first or find_culprit(bench, together, _controls(report))


def _controls(report: ScanReport, but: EventBatch | None = None) -> EventBatch | None:
    others = [event for event in report.ordinary if but is None or place_of(event) != place_of(but)]
    return join(others) if others else None


def _in_evaluation(bench: Bench, window: Sequence[EventBatch], controls: EventBatch | None = None) -> Culprit | None:
    """Return why the network is not finite with a window that it is trained on well, but as validation uses it."""
    return find_culprit(replace(bench, evaluating=True), window, controls)


def _chosen(report: ScanReport, ordinary: bool) -> Iterator[list[EventBatch]]:
    """Yield events with illegal numbers, ordinary events if asked, and extreme events, the most extreme first."""
    if report.suspects:
        yield report.suspects
    usual = report.ordinary[:NUM_ORDINARY_TRIED] if ordinary else []
    known = {place_of(event) for event in (*report.suspects, *usual)}
    extremes = (event for event in report.extremes if place_of(event) not in known)
    if usual:
        yield [*usual, *islice(extremes, TRIED_TOGETHER)]
    while group := list(islice(extremes, TRIED_TOGETHER)):
        yield group


def _every(loader: EventLoader, size: int) -> Iterator[list[EventBatch]]:
    stream = loader.epoch(EPOCH)
    while window := list(islice(stream, size)):
        yield window
