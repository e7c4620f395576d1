"""The first suspects of all: inputs and targets whose scale the network was not made for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from xectool.config.data import DataConfig
from xectool.config.input_limits import LARGEST_ABS, LARGEST_MEAN, LARGEST_STD, SMALLEST_STD
from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.files import train_files
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.rules.data import copied_files
from xectool.errors import in_shell
from xectool.findings import Severity

_NPHO: Final[Mapping[str, Any]] = {
    "normalization.npho_scheme": "log1p",
    "normalization.npho_scale": 1000,
    "normalization.npho_scale2": 4.08,
}
_TIME: Final[Mapping[str, Any]] = {"normalization.time_scale": 1.14e-7, "normalization.time_shift": -0.46}
NPHO_BRANCH: Final[str] = DataConfig.model_fields["npho_branch"].default
TIME_BRANCH: Final[str] = DataConfig.model_fields["time_branch"].default
_LONGEST: Final = 1e-5  # s, of a trace; no unit brings photons down to it


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
            first = (broken or [reason])[0]
            validation = event.data.get("sample") == "validation"
            yield Cause(
                code=self.code,
                confidence=0.95 if broken else 0.85,
                problem=_what(evidence, channels, first, "validation " * validation),
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
        copied = copied_files(evidence)  # whose light tells neither a gain nor a drift
        for event in evidence.of("files_differ"):
            if any(path in copied for path in event.data.get("files") or ()):
                continue
            ratio = "ratio" in event.data or "meaning" not in event.data
            yield Cause(
                code=self.code,
                confidence=0.9,
                problem=f"{event.message}: {event.data.get('meaning') or 'their gains or units differ'}",
                evidence=("calibration lines and beams lie within a factor of ten",) if ratio else (),
                fix=check_beside(evidence, [str(path) for path in event.data.get("files") or ()]),
                severity=Severity.WARNING,
                step=1,
                symptom="files",
            )


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


def check_beside(evidence: Evidence, files: list[str]) -> str:
    """Return the command that judges files beside each other; one of validation beside one of training."""
    trained = train_files(evidence.manifest)
    validated = [path for path in files if path in train_files(evidence.manifest, "val") and path not in trained]
    others = [path for path in files if path not in validated]
    if validated and others:
        return f"xectool check-data {in_shell(validated[0])} --against {in_shell(others[0])}"
    return fixes.check_named_files(evidence, "val") if validated else fixes.check_files(evidence.run_dir, files)


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

    With the right constants it is the files that are in another unit. Times that are read as photons need the other
    branch.
    """
    times = _exchanged(evidence, channels)
    settings = _settings(evidence, channels)
    if times:
        return fixes.train_again(evidence, *(f"data.{key}={value}" for key, value in times.items()), name="branches")
    if settings:
        return fixes.train_again(evidence, *settings, name="normalised")
    return fixes.check_named_files(evidence, "train")


def _exchanged(evidence: Evidence, channels: Mapping[str, Any]) -> dict[str, str]:
    """Return the branches to read where the photons of a batch are times in s, else nothing."""
    photons, times = (_largest(channels.get(name)) for name in ("npho", "time"))
    if not 0 < photons < _LONGEST:
        return {}
    npho, time = evidence.setting("data.npho_branch", NPHO_BRANCH), evidence.setting("data.time_branch", TIME_BRANCH)
    if times > _LONGEST and npho != time:
        return {"npho_branch": time, "time_branch": npho}
    return {"npho_branch": NPHO_BRANCH} if npho != NPHO_BRANCH else {}


def _largest(values: Any) -> float:
    """Return the largest raw reading of a channel without its sign, NaN where it is not known."""
    extremes = [abs(number(values.get(key))) for key in ("raw_min", "raw_max")] if isinstance(values, Mapping) else []
    return max(extremes, default=math.nan)


def _settings(evidence: Evidence, channels: Mapping[str, Any]) -> list[str]:
    """Return what would set the constants the data were made for, of the channel that is off; empty where they are."""
    off = [name for name, values in channels.items() if isinstance(values, Mapping) and channel_problems(name, values)]
    wanted = _TIME if off == ["time"] else _NPHO if off == ["npho"] else {**_NPHO, **_TIME}
    return [f"{key}={value}" for key, value in wanted.items() if evidence.setting(key) != value]


def _what(evidence: Evidence, channels: Mapping[str, Any], first: str, sample: str) -> str:
    """Return what is off: the branches that are read, the constants, or the readings in the files."""
    if _exchanged(evidence, channels):
        branch = evidence.setting("data.npho_branch", NPHO_BRANCH)
        return f"branch {branch} holds times in s and is read as photons (data.npho_branch): {first}"
    if _settings(evidence, channels):
        return f"the inputs of the first {sample}batch are not normalised: {first}"
    return f"the readings of the first {sample}batch have another gain or unit than the detector: {first}"
