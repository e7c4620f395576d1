"""The first suspects of all: inputs and targets whose scale the network was not made for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from xectool.config.input_limits import LARGEST_ABS, LARGEST_MEAN, LARGEST_STD, SMALLEST_STD
from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.rules.data import SINGLE_EVENTS
from xectool.findings import Severity

_NPHO: Final[Mapping[str, Any]] = {
    "normalization.npho_scheme": "log1p",
    "normalization.npho_scale": 1000,
    "normalization.npho_scale2": 4.08,
}
TARGET_RANGE: Final = 1e3
"""Largest spread of a target inside the network, and one over the smallest: it should be 1. Energy in GeV has 0.013,
positions in cm have 24; seconds have 2e-9, which no loss tells from 0, and photons 1e5, which no weight reaches."""
WIDEST: Final[Mapping[str, float]] = {"angle": 180.0, "energy": 1.0, "timing": 1e-5, "uvwFI": 100.0, "angleVec": 1.0}
"""Spread of a truth, in its unit, that no event has: beams of less than 1 GeV, times of a trace, the size in cm."""
UNITS: Final[Mapping[str, str]] = {"angle": "deg", "energy": "GeV", "timing": "s", "uvwFI": "cm", "angleVec": "1"}
MOST_FAR: Final = 0.05  # of the events: as many as a run leaves out, beside SINGLE_EVENTS
CONSTANT_STD: Final = 1e-12  # less than this is the rounding of a truth that is the same in all events
_POSITION: Final = "uvwTruth"  # branch of the true position where no other is set
_TIME: Final[Mapping[str, Any]] = {"normalization.time_scale": 1.14e-7, "normalization.time_shift": -0.46}


class InputScale(DiagnosisRule):
    """Normalised inputs of the first batch lie within what a network can take."""

    code = "XT-INPUT-SCALE"
    title = "inputs are not normalised"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the first batch was not measured where it was not."""
        return "" if evidence.of("input_scale") else "the scale of the first batch was not recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare each channel with its limits."""
        for event in evidence.of("input_scale"):  # one of each attempt
            channels = event.data.get("channels") or {}
            level = str(event.data.get("level") or "")
            broken = [
                line
                for name, values in channels.items()
                if isinstance(values, Mapping)
                for line in channel_problems(name, values)
            ]
            # The guard takes the median over events, which one corrupted event cannot move; these numbers are of the
            # whole batch, so they decide alone only where no guard judged.
            if level in ("ok", "warning") or (not broken and level != "error"):
                continue
            reason = str(event.data.get("reason") or event.message or "")
            validation = event.data.get("sample") == "validation"
            yield Cause(
                code=self.code,
                confidence=0.95 if broken else 0.85,
                problem=f"the inputs of the first {'validation ' * validation}batch are not normalised: "
                f"{(broken or [reason])[0]}",
                evidence=tuple([*broken, reason] if reason and broken else broken or [reason]),
                fix=fixes.check_named_files(evidence, "val") if validation else _fix(evidence, channels),
                step=max(1, event.step),
                symptom="input scale",
            )
            return


class FilesDiffer(DiagnosisRule):
    """The files were read with one gain and in one unit, by sensors that work."""

    code = "XT-INPUT-SCALE"
    title = "files have different gains"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report files of which one has far more light an event than another, or is odd as a whole."""
        for event in evidence.of("files_differ"):
            ratio = "ratio" in event.data or "meaning" not in event.data
            yield Cause(
                code=self.code,
                confidence=0.9,
                problem=f"{event.message}: {event.data.get('meaning') or 'their gains or units differ'}",
                evidence=("calibration lines and beams lie within a factor of ten",) if ratio else (),
                fix=fixes.check_files(evidence.run_dir, event.data.get("files") or ()),
                severity=Severity.WARNING,
                step=1,
                symptom="files",
            )
            return


class SensorOrder(DiagnosisRule):
    """The faces of the detector agree where the light comes from."""

    code = "XT-SENSOR-ORDER"
    title = "sensors stand in another order than that of the geometry"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report files whose faces disagree."""
        found = evidence.of("sensor_order")
        if found:
            files = sorted({str(path) for event in found for path in event.data.get("files") or ()})
            yield Cause(
                code=self.code,
                confidence=0.9,
                problem=f"{found[0].message}: sensors or faces were written in another order than the geometry's",
                evidence=tuple(event.message for event in found[:5]),
                fix=fixes.check_files(evidence.run_dir, files),
                severity=Severity.WARNING,
                step=1,
                symptom="sensor order",
            )


class TruthElsewhere(DiagnosisRule):
    """The true position is where the light is."""

    code = "XT-TRUTH-ELSEWHERE"
    title = "the truth of the position does not follow the light"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report a truth of other events, or of something else; what it leads to is the likelier word for a plateau."""
        for event in evidence.of("truth_elsewhere")[:1]:
            branch = evidence.setting("data.truth_branches.uvwFI", _POSITION)
            yield Cause(
                code=self.code,
                confidence=0.75,
                problem=f"uvwFI: {event.message}: it is of other events, or something else",
                evidence=(f"data.truth_branches.uvwFI: {branch}",),
                fix=fixes.check_named_files(evidence, "train")
                if branch == _POSITION
                else fixes.train_again(evidence, f"data.truth_branches.uvwFI={_POSITION}", name="position"),
                severity=Severity.WARNING,
                step=1,
                symptom="truth elsewhere",
            )


class TargetScale(DiagnosisRule):
    """Targets spread about 1 inside the network."""

    code = "XT-TARGET-SCALE"
    title = "targets are not on the scale of the loss"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the truth was not measured where it was not."""
        return "" if evidence.of("baseline") else "the spread of the truth was not recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the spread of each truth with the scale it was given."""
        baseline = evidence.last("baseline")
        spreads = (baseline.data.get("target_std") if baseline else None) or {}
        yield from self._in_another_unit(evidence, baseline.data if baseline else {})
        yield from self._in_two_units(evidence, (baseline.data.get("target_far") if baseline else None) or {})
        found = {
            task: std / scale
            for task, recorded in spreads.items()
            if (std := number(recorded)) > CONSTANT_STD and (scale := _scale(evidence, task)) > 0
        }
        off = {task: spread for task, spread in found.items() if not 1 / TARGET_RANGE <= spread <= TARGET_RANGE}
        if not off:
            return
        settings = [f"tasks.{task}.{key}=auto" for task in off for key in ("scale", "shift")]
        yield Cause(
            code=self.code,
            confidence=0.93,
            problem="; ".join(
                f"{task}: the truth spreads {spread:.3g} inside the network, not about 1"
                for task, spread in off.items()
            ),
            evidence=tuple(f"tasks.{task}.scale {evidence.setting(f'tasks.{task}.scale')}" for task in off),
            fix=fixes.train_again(evidence, *settings, name="scaled"),
            severity=Severity.WARNING,
            step=1,
            symptom="target scale",
        )

    def _in_another_unit(self, evidence: Evidence, known: Mapping[str, Any]) -> Iterator[Cause]:
        """Yield the truths that no event of the detector can have, whatever scale makes the loss fit them."""
        spreads = {task: number(value) for task, value in (known.get("target_std") or {}).items()}
        found = {
            task: f"{task}: the truth spreads {spreads[task]:.3g} {UNITS[task]}, at most {limit:g} in this detector"
            for task, limit in WIDEST.items()
            if spreads.get(task, 0.0) > limit
        }
        for task, unit in (known.get("target_unit") or {}).items():
            found.setdefault(task, f"{task}: the truth seems to be in {unit}, not in {UNITS.get(task, '1')}")
        if found:
            yield Cause(
                code=self.code,
                confidence=0.9,
                problem="; ".join(found.values()) + ": what is predicted is in that other unit, too",
                evidence=tuple(f"{task}: spread {spreads.get(task, math.nan):.3g}" for task in found),
                fix=fixes.check_named_files(evidence, "train"),
                severity=Severity.WARNING,
                step=1,
                symptom="target unit",
            )

    def _in_two_units(self, evidence: Evidence, shares: Mapping[str, Any]) -> Iterator[Cause]:
        """Yield the truths that are far from all others in more events than may be left out: those of whole files."""
        started = evidence.last("run_start")
        num_train = number(started.data.get("num_train")) if started else math.nan
        most = max(MOST_FAR, SINGLE_EVENTS / num_train if num_train > 0 else 0.0)
        far = {task: share for task, known in shares.items() if (share := number(known)) > most}
        if far:
            yield Cause(
                code=self.code,
                confidence=0.92,
                problem="; ".join(f"{task}: {share:.0%} of the truths are far" for task, share in far.items())
                + " from all others: some files are in another unit",
                evidence=("beyond 200 robust standard deviations from the median of all training events",),
                fix=fixes.check_named_files(evidence, "train"),
                severity=Severity.WARNING,
                step=1,
                symptom="two units",
            )


def _scale(evidence: Evidence, task: str) -> float:
    """Return the scale of a task, 1 without one; NaN for what is learned as a logarithm."""
    known = {key: evidence.setting(f"tasks.{task}.{key}") for key in ("enabled", "scale", "log_transform")}
    if not known["enabled"] or known["log_transform"]:
        return math.nan
    return 1.0 if known["scale"] is None else number(known["scale"])


def channel_problems(name: str, values: Mapping[str, Any]) -> list[str]:
    """Return in which ways a channel exceeds the limits of F048a."""
    mean, std, largest = (number(values.get(key)) for key in ("mean", "std", "absmax"))
    found = []
    # Infinite ones come from single readings that are, which the guard against them names.
    if math.isfinite(mean) and abs(mean) > LARGEST_MEAN:
        found.append(f"{name}: mean {mean:.4g} (limit {LARGEST_MEAN:g})")
    if not math.isnan(std) and not SMALLEST_STD <= std <= LARGEST_STD:
        found.append(f"{name}: standard deviation {std:.4g} (limits {SMALLEST_STD:g} to {LARGEST_STD:g})")
    if math.isfinite(largest) and largest > LARGEST_ABS:
        found.append(f"{name}: largest |z| {largest:.4g} (limit {LARGEST_ABS:g})")
    return found


def _fix(evidence: Evidence, channels: Mapping[str, Any]) -> str:
    """Return the constants the data were made for, of the channel that is off; where they are set, a look at the files.

    With the right constants it is the files that are in another unit.
    """
    off = [name for name, values in channels.items() if isinstance(values, Mapping) and channel_problems(name, values)]
    wanted = _TIME if off == ["time"] else _NPHO if off == ["npho"] else {**_NPHO, **_TIME}
    settings = [f"{key}={value}" for key, value in wanted.items() if evidence.setting(key) != value]
    if settings:
        return fixes.train_again(evidence, *settings, name="normalised")
    return fixes.check_named_files(evidence, "train")
