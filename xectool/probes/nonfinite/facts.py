"""The facts of a search as plain values: event, numbers, place, batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np

from xectool.data.batch import EventBatch
from xectool.data.plan import DataPlan
from xectool.findings import Finding, Severity
from xectool.probes.nonfinite.culprit import INPUT, WEIGHTS
from xectool.probes.nonfinite.raw import Anomaly
from xectool.probes.nonfinite.search import NanSearch
from xectool.probes.nonfinite.singles import place_of

MAX_LISTED = 100


@dataclass(frozen=True)
class NanFacts:
    """What a search found.

    Attributes:
        search: The search.
        files: Paths that the file indices of its events mean.
        plan: Order of the events; None where only a window was searched.
    """

    search: NanSearch
    files: Sequence[str]
    plan: DataPlan | None = None

    @cached_property
    def anomaly(self) -> Anomaly | None:
        """The first illegal number, where nothing worse was found."""
        search = self.search
        if search.weights or search.culprit is not None or search.report is None:
            return None
        return next(iter(search.report.anomalies), None)

    @property
    def cause(self) -> str:
        """``input``, ``weight``, ``combination``, ``module``, or empty."""
        if self.search.weights:
            return WEIGHTS
        if self.search.culprit is not None:
            return self.search.culprit.cause
        return INPUT if self.anomaly is not None else ""

    @cached_property
    def window(self) -> tuple[EventBatch, ...]:
        """The fewest events that show the fault; none where the weights alone are at fault."""
        if self.search.culprit is not None:
            return self.search.culprit.window
        report = self.search.report
        if self.anomaly is None or report is None:
            return ()
        place = (self.anomaly.file_index, self.anomaly.entry)
        named = (event for event in report.suspects if place_of(event) == place)
        return tuple(islice(chain(named, report.suspects), 1))

    @property
    def event(self) -> dict[str, Any] | None:
        """``file, entry, run, event`` of the first event at fault; None where weights or network are."""
        if self.cause in ("", WEIGHTS) or not self.window:
            return None
        culprit = self.search.culprit
        if culprit is not None and culprit.facts["fails_with_any_readings"] and culprit.trial.refused is None:
            return None
        number = next((r.batch for r in culprit.readings), 0) if culprit is not None else 0
        row = next((r.row for r in culprit.readings), 0) if culprit is not None else 0
        return self._identity(self.window[number], row)

    @cached_property
    def readings(self) -> tuple[dict[str, Any], ...]:
        """The numbers at fault."""
        culprit, first, report = self.search.culprit, self.anomaly, self.search.report
        if culprit is not None:
            return tuple(
                _reading(r.name or r.channel, r.sensor, r.value) | self._identity(culprit.window[r.batch], r.row)
                for r in culprit.readings
            )
        if first is None or report is None:
            return ()
        place = (first.file_index, first.entry)
        same = [a for a in report.anomalies if (a.file_index, a.entry) == place][:MAX_LISTED]
        return tuple(_reading(a.branch, a.sensor, a.value) | self._identity(self.window[0], 0) for a in same)

    @property
    def place(self) -> dict[str, Any] | None:
        """``stage, module, op`` and what else is known of the first number that is not finite."""
        culprit = self.search.culprit
        found = self.search.weights[0] if self.search.weights else culprit.place if culprit else None
        if found is not None:
            return vars(found) | {"terms": list(found.terms)}
        if self.anomaly is None:
            return None
        kind = self.anomaly.reason
        return {"stage": "input", "module": None, "op": None, "kind": kind, "branch": self.anomaly.branch}

    @property
    def batch(self) -> dict[str, Any] | None:
        """``epoch, index`` of the batch the fault came in, and the ranges of entries, by file, of its events."""
        source = self.search.source
        if source is None and self.window:
            source = self.window[0]
        if source is None:
            return None
        files, entries = source.file_index, source.entry
        if self.plan is not None:  # an event may have been tried without the others of its batch
            files, entries = self.plan.batch_events(source.epoch, source.step, 0)
        blocks = [
            {"file": self._file(int(index)), "entries": _ranges(np.sort(entries[files == index]))}
            for index in np.unique(files)
        ]
        return {"epoch": source.epoch, "index": source.step, "blocks": blocks}

    def findings(self, code: str, problem: str, evidence: Sequence[str], fix: str) -> tuple[Finding, ...]:
        """Return the verdict as a finding, and illegal numbers beside a worse fault as another."""
        if not code:
            return ()
        event = self.event
        where = f"{event['file']} entry {event['entry']}" if event else ""
        found = [Finding(code, Severity.ERROR, problem, where, tuple(evidence), fix)]
        report = self.search.report
        if self.anomaly is None and report is not None and report.num_anomalies:
            first = report.anomalies[0]
            found.append(
                Finding(
                    "XT-NAN-DATA",
                    Severity.WARNING,
                    f"{report.num_anomalies} illegal numbers in the data, first {first.branch} = {first.value:g}",
                    f"{self._file(first.file_index)} entry {first.entry}",
                )
            )
        return tuple(found)

    def _identity(self, batch: EventBatch, row: int) -> dict[str, Any]:
        return {
            "file": self._file(int(batch.file_index[row])),
            "entry": int(batch.entry[row]),
            "run": int(batch.run[row]),
            "event": int(batch.event[row]),
        }

    def _file(self, index: int) -> str:
        return self.files[index] if index < len(self.files) else f"file {index}"


def _reading(branch: str, sensor: int, value: float) -> dict[str, Any]:
    return {"branch": branch, "sensor": sensor, "value": plain_number(value)}


def plain_number(value: float) -> float | str:
    """Return a number as JSON has it: NaN and infinities as the words that ``float`` takes."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _ranges(entries: np.ndarray) -> list[list[int]]:
    """Return ascending entries as half-open ranges."""
    cuts = np.flatnonzero(np.diff(entries) != 1) + 1
    return [[int(part[0]), int(part[-1]) + 1] for part in np.split(entries, cuts) if len(part)]
