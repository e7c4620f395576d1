"""Rules on sensor readings: numbers, domains, ranges after normalisation, sentinels, and the state of the sensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from xectool.checks.cells import CellCounts
from xectool.checks.data_facts import EXPLAIN_UNITS, DataFacts, event_place, places_of_values, sensor_place
from xectool.checks.file_rules import MOST, impossible_counts, impossible_share, times_in_other_unit
from xectool.checks.light import SCALE
from xectool.checks.marked import marker_findings
from xectool.checks.sample import Sample
from xectool.checks.sensor_rules import SensorsAreAlive
from xectool.checks.spread import LARGEST_STD, SMALLEST_STD, NormalizedRow
from xectool.checks.unit_mends import time_mends
from xectool.config.input_limits import LARGEST_ABS
from xectool.detector import faces
from xectool.detector.constants import NUM_SENSORS
from xectool.detector.truth_ranges import likely_unit
from xectool.findings import Finding, Severity
from xectool.rules import Rule

_MANY_INVALID, _MOST_INVALID = 0.5, 0.95
_SHOWN: Final = 10


class ReadingsAreNumbers(Rule[DataFacts]):
    """NaN and infinities are masked before the network sees them; many of them mean that something is broken."""

    code = "DAT-07"
    title = "Values are finite"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield markers of no reading, odd numbers with their places, and a share of invalid ones that is too large."""
        data = facts.settings.data
        yield from marker_findings(self.code, facts)
        for npho, time in facts.sample.counts.values():
            yield from self._kinds(npho, data.npho_branch)
            yield from self._kinds(time, data.time_branch)
        yield from self._share(facts)
        if facts.sample.num_dark:
            yield self._dark(facts.sample, data.npho_branch)

    def _dark(self, sample: Sample, branch: str) -> Finding:
        """Return the warning of events that show a network nothing, an error where they are nearly all."""
        problem = (
            f"{sample.num_dark} of {sample.scanned} events hold no light: branch '{branch}' has no valid number there, "
            "or the same one in every sensor"
        )
        shown = tuple(event_place(cell, branch) for cell in sample.dark)
        severity = Severity.ERROR if sample.num_dark > _MOST_INVALID * sample.scanned else Severity.WARNING
        fix = "leave these events out when the file is made, or name the branch of photons with data.npho_branch"
        return Finding(self.code, severity, problem, shown[0], shown, fix)

    def _kinds(self, counts: CellCounts, branch: str) -> Iterator[Finding]:
        if not counts.nonfinite:
            return
        first = [cell for kind in ("nan", "posinf", "neginf") for cell in counts.first.get(kind, [])]
        if counts.nan_marks_no_reading:
            problem = f"branch '{branch}' of '{first[0].path}' marks {counts.nan} readings that are none with NaN"
            yield self.info(sensor_place(first[0], branch), f"{problem}; the network sees the sentinel in their place")
            return
        yield Finding(
            self.code,
            Severity.WARNING,
            f"branch '{branch}' of '{first[0].path}' holds {counts.nan} NaN, {counts.posinf} +Inf and {counts.neginf} "
            "-Inf; the network sees the sentinel in their place",
            sensor_place(first[0], branch),
            tuple(f"{sensor_place(cell, branch)}: {cell.value}" for cell in first[:_SHOWN]),
            "find out what wrote them; what is meant as 'no reading' may stay: 1e10, NaN and infinity are read so",
        )

    def _share(self, facts: DataFacts) -> Iterator[Finding]:
        cells, data = facts.sample.cells, facts.settings.data
        total = cells.npho.events * NUM_SENSORS
        if not total or facts.exchanged:
            return
        invalid = 1 - int(cells.npho.valid.sum()) / total
        lit = cells.timed_sensors
        untimed = 1 - cells.timed_readings / lit if lit else 0.0
        for share, branch, what in (
            (invalid, data.npho_branch, "of all readings are invalid"),
            (untimed, data.time_branch, "of the sensors with light have no valid time"),
        ):
            if share > _MANY_INVALID:
                report = self.error if share > _MOST_INVALID else self.warning
                yield report(
                    f"{facts.whole} branch {branch}",
                    f"branch '{branch}': {100 * share:.1f} % {what}",
                    "compare with a file that is known to be good: --against OTHER",
                )


class PhotonsLieInTheDomain(Rule[DataFacts]):
    """A root of a negative number is no number."""

    code = "DAT-08"
    title = "Photon numbers lie in the scheme's domain"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning for readings below the domain, an error where they are many."""
        cells, settings = facts.sample.cells, facts.settings.normalization
        total = max(cells.npho.events * NUM_SENSORS, 1)
        share = cells.below_domain / total
        if not cells.below_domain:
            return
        report, branch = self.error if share > 0.05 else self.warning, facts.settings.data.npho_branch
        found = report(
            sensor_place(cells.below_first[0], branch),
            f"{cells.below_domain} readings ({100 * share:.3g} %) lie below the domain of normalization.npho_scheme: "
            f"{settings.npho_scheme}; each becomes the {settings.below_domain}",
            "--set normalization.npho_scheme=log1p" if settings.npho_scheme != "log1p" else EXPLAIN_UNITS,
        )
        yield replace(found, evidence=places_of_values(cells.below_first, branch))


class NormalizedPhotonsFit(Rule[DataFacts]):
    """The scale has to bring photons to a few units."""

    code = "DAT-09"
    title = "Normalised photon numbers have the expected range"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning outside of -0.1 to 10 or for light that fluctuates as no counts do, an error beyond 50."""
        yield from (*self._range(facts), *self._scale(facts))

    def _range(self, facts: DataFacts) -> Iterator[Finding]:
        row = next((row for row in facts.normalized if row.channel == "npho" and row.face == "all"), None)
        if row is None or (row.min >= -0.1 and row.max <= 10):
            return
        largest = max(abs(row.min), abs(row.max))
        report = self.error if largest > LARGEST_ABS else self.warning
        settings, branch = facts.settings.normalization, facts.settings.data.npho_branch
        cell = facts.sample.cells.extremes[0][row.max > 10]
        yield report(
            f"{facts.whole} branch {branch}" if cell is None else sensor_place(cell, branch),
            f"normalised photon numbers run from {row.min:.3g} to {row.max:.3g} with normalization.npho_scale="
            f"{settings.npho_scale:g}, npho_scheme={settings.npho_scheme}",
            facts.cure("npho"),
        )

    def _scale(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning of files whose light has another gain, unit or pedestal, by its own fluctuation."""
        judged = facts.sample.light
        odd = {path: found[SCALE] for path, found in judged.items() if SCALE in found}
        if facts.exchanged or not odd:
            return
        path, many = next(iter(odd)), f", in {len(odd)} of {len(judged)} files" if len(judged) > 1 else ""
        shown = tuple(f"{path}: {message}" for path, message in list(odd.items())[:_SHOWN])
        found = self.warning(
            f"{path} branch {facts.settings.data.npho_branch}",
            f"{odd[path]}{many}",
            "make the file again in photons, with the gain and the pedestal of its run",
        )
        yield replace(found, evidence=(*shown, "xectool explain XT-INPUT-SCALE"))


class NormalizedTimesFit(Rule[DataFacts]):
    """Times are seconds; the scale brings them to about one."""

    code = "DAT-10"
    title = "Normalised times have the expected range"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for another unit, a warning outside of -10 to 10, a note outside of -2 to 2."""
        data, counts = facts.settings.data, [pair[1] for pair in facts.sample.counts.values()]
        where = f"{facts.whole} branch {data.time_branch}"
        if odd := times_in_other_unit(facts):
            first = [item.first["impossible"][0] for item in odd]
            impossible, total = sum(item.impossible for item in odd), sum(item.total for item in odd)
            many = f"; {len(odd)} of {len(counts)} files" if len(counts) > 1 else ""
            unit = likely_unit("timing", float(np.median([abs(c.value) for o in odd for c in o.first["impossible"]])))
            found = self.error(
                sensor_place(first[0], data.time_branch),
                f"{impossible} of {total} times are larger than any event lasts ({abs(first[0].value):.3g} s): they "
                f"look like another unit than seconds{f': {unit}' if unit else ''}{many}",
                "make the file again with times in seconds",
            )
            shown = tuple(f"{sensor_place(cell, data.time_branch)}: {cell.value:g}" for cell in first[:_SHOWN])
            shown = (*shown, "xectool explain units")
            yield replace(found, evidence=shown, other_unit=data.time_branch, mends=time_mends(facts))
            return
        row = next((row for row in facts.normalized if row.channel == "time" and row.face == "all"), None)
        mixed = any(impossible_share(time) > MOST for time in counts)  # DAT-02 says so
        if facts.exchanged or mixed or row is None or (row.min >= -2 and row.max <= 2):
            return
        report = self.warning if max(abs(row.min), abs(row.max)) > 10 else self.info
        cell = facts.sample.cells.extremes[1][abs(row.max) >= abs(row.min)]
        where = where if cell is None else sensor_place(cell, data.time_branch)
        problem = f"normalised times run from {row.min:.3g} to {row.max:.3g} with normalization.time_scale="
        yield report(where, f"{problem}{facts.settings.normalization.time_scale:g}", facts.cure("time"))


class SpreadIsSound(Rule[DataFacts]):
    """A channel that hardly varies teaches nothing, one that varies by thousands drowns the rest."""

    code = "DAT-11"
    title = "Normalised values have a sound spread"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for each channel, and face, outside of the limits."""
        bad = [r for r in facts.normalized if not (facts.exchanged or SMALLEST_STD <= r.std <= LARGEST_STD)]
        whole = {row.channel for row in bad if row.face == "all"}
        by_others = {name for i, name in enumerate(("npho", "time")) if impossible_counts(facts, i)}  # DAT-02, DAT-10
        for row in bad:
            if row.channel in by_others or (row.face != "all" and row.channel in whole):
                continue
            yield self.error(
                self._farthest(facts, row),
                f"the normalised {row.channel} of face {row.face} has a spread of {row.std:.3g} about {row.mean:.3g}; "
                f"{SMALLEST_STD:g} to {LARGEST_STD:g} is sound",
                facts.cure(row.channel),
            )

    @staticmethod
    def _farthest(facts: DataFacts, row: NormalizedRow) -> str:
        """Return where, among the kept events, the reading stands that is farthest from the rest."""
        is_time, data = row.channel == "time", facts.settings.data
        ids = np.arange(NUM_SENSORS) if row.face == "all" else faces.sensors(row.face)
        values = facts.readings[is_time][:, ids]
        event, column = divmod(int(np.nanargmax(np.abs(values - np.nanmean(values)))), len(ids))
        cell = facts.sample.events.cell(event, int(ids[column]), float(values[event, column]))
        return f"{sensor_place(cell, data.time_branch if is_time else data.npho_branch)}: {cell.value:g}"


class NoHeavyTails(Rule[DataFacts]):
    """Without a logarithm or a root a few bright sensors decide everything."""

    code = "DAT-12"
    title = "No heavy tails"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning for a linear scheme on readings with a long tail, a note for the table otherwise."""
        for row in facts.raw:
            sigmas = (row.max - row.mean) / row.std if row.std > 0 else 0.0
            linear = facts.settings.normalization.npho_scheme == "linear" or row.feature == "time"
            if sigmas > 50 and linear:
                is_time, data = row.feature == "time", facts.settings.data
                cell = facts.sample.cells.extremes[is_time][1]
                branch = data.time_branch if is_time else data.npho_branch
                yield self.warning(
                    f"{facts.whole} branch {branch}" if cell is None else sensor_place(cell, branch),
                    f"the largest {row.feature}, {row.max:.4g}, lies {sigmas:.0f} sigma above the mean {row.mean:.4g}",
                    "--set normalization.npho_scheme=log1p" if row.feature == "npho" else "look at the largest times",
                )


class SentinelsStandApart(Rule[DataFacts]):
    """A valid reading that equals the sentinel cannot be told from none by whoever looks at the number alone."""

    code = "DAT-13"
    title = "No valid reading equals the sentinel"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning for any collision, an error for more than one in a thousand."""
        cells, data, settings = facts.sample.cells, facts.settings.data, facts.settings.normalization
        rows = (
            ("npho", cells.npho, data.npho_branch, settings.sentinel_npho),
            ("time", cells.time, data.time_branch, settings.sentinel_time),
        )
        for channel, (name, sums, branch, sentinel) in enumerate(rows):
            count, first = cells.collisions[channel], cells.collision_first[channel]
            if not count or first is None:
                continue
            report = self.error if count > 1e-3 * max(int(sums.valid.sum()), 1) else self.warning
            yield report(
                sensor_place(first, branch),
                f"{count} valid readings normalise to the sentinel {sentinel:g} of channel {name} (first: "
                f"{first.value:g}); the network is told by its mask, older systems are not",
                f"--set normalization.sentinel_{name}=-8.0",
            )


VALUE_RULES: tuple[Rule[DataFacts], ...] = (
    ReadingsAreNumbers(), PhotonsLieInTheDomain(), NormalizedPhotonsFit(), NormalizedTimesFit(), SpreadIsSound(),
    NoHeavyTails(), SentinelsStandApart(), SensorsAreAlive(),
)  # fmt: skip
