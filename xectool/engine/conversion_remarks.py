"""What `convert` says of options that found nothing, of values it could not convert and of what it leaves behind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from xectool.config.mends import options_of
from xectool.detector.changes import Effect
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.errors import counted, in_shell
from xectool.findings import Finding, Severity
from xectool.findings.mends import Change, Marker

NOTHING: Final = "XT-CONVERT-NOTHING"
UNKNOWN: Final = "XT-CONVERT-UNKNOWN"


def remarks(
    changes: Mapping[str, Change], effects: Mapping[str, Effect], ones: Iterable[str], files: Sequence[str]
) -> list[Finding]:
    """Return what options found nothing in all files together, and which values they could not bring to another unit.

    Args:
        changes: What was asked, by branch.
        effects: What it found, by branch.
        ones: The branches whose factor is 1.
        files: Each file and tree.
    """
    found = []
    for branch, change in changes.items():
        effect, where = effects.get(branch, Effect()), f"{_first(files)} branch {branch}"
        told = [*_markers(branch, change, effect), *_rest(branch, change, effect)]
        found += [Finding(NOTHING, Severity.WARNING, problem, where, fix=fix) for problem, fix in told]
        found += [Finding(UNKNOWN, Severity.WARNING, problem, where, fix=fix) for problem, fix in _lost(branch, effect)]
    for branch in ones:
        option = f"--scale {in_shell(f'{branch}=1')}"
        problem = f"{option} changes nothing: a value times 1 is the same"
        where = f"{_first(files)} branch {branch}"
        found.append(Finding(NOTHING, Severity.WARNING, problem, where, fix=f"leave {option} out"))
    return found


def left_behind(keys: Mapping[str, str], source: str, target: str) -> list[Finding]:
    """Return which other objects of a file are not in the one that was written."""
    if not keys:
        return []
    said = ", ".join(f"{name} ({kind})" for name, kind in keys.items())
    top = [name for name in keys if "/" not in name]
    problem = (
        f"{counted(len(keys), 'other object')} of '{source}' {'is' if len(keys) == 1 else 'are'} not in '{target}'"
    )
    copied = " ".join(("rootcp", *(in_shell(f"{source}:{name}") for name in top), in_shell(target)))
    fix = f"{copied}   # a program of ROOT, if they are needed" if top else f"read them from {source}"
    return [Finding("XT-CONVERT-KEYS", Severity.WARNING, f"{problem}: {said}", where=target, fix=fix)]


def _first(files: Sequence[str]) -> str:
    return f"{files[0]} and {counted(len(files) - 1, 'other file')}" if len(files) > 1 else files[0]


def _markers(branch: str, change: Change, effect: Effect) -> Iterator[tuple[str, str]]:
    for marker in change.markers:
        if effect.marked[marker]:
            continue
        beside = dict[float, int]()
        for side in effect.near.get(marker, ()):
            beside |= side
        said = [f"{shown(value)} ({counted(count, 'time')})" for value, count in beside.items()]
        option = options_of(branch, Change((marker,)))
        near = f"; next to it are {' and '.join(said)}" if said else ""
        problem = f"{option} found nothing: no value of '{branch}' is {shown(marker.value)}{near}"
        yield problem, _nearest(branch, marker, beside) or f"leave {option} out"


def shown(value: float) -> str:
    """Return a number as it is read, with all the digits that tell it from others; an identity with every digit.

    >>> shown(-999.0), shown(2**53 + 1), shown(float(np.float32(-999.9))), shown(1700000003.0)
    ('-999', '9007199254740993', '-999.9', '1700000003.0')
    """
    if isinstance(value, int):
        return str(value)
    short = f"{value:.7g}"
    with np.errstate(over="ignore"):
        is_told = value in (float(short), float(np.float32(short)))
    return short if is_told else repr(value)


def _nearest(branch: str, marker: Marker, near: Mapping[float, int]) -> str:
    """Return the option for the marker that may have been meant: of its sign, and found more than once."""
    alike = [value for value, count in near.items() if count > 1 and value * marker.value > 0]
    if not alike:
        return ""
    value = min(alike, key=lambda number: abs(number - marker.value))
    return f"{options_of(branch, Change((Marker(value, marker.component),)))}   # if that stands for 'not known'"


def _rest(branch: str, change: Change, effect: Effect) -> Iterator[tuple[str, str]]:
    if change.factor != 1.0 and not effect.scaled:
        option = options_of(branch, Change(factor=change.factor))
        yield f"{option} changed nothing: no value of '{branch}' is known, or all are 0", f"leave {option} out"
    if change.within and not effect.outside:
        option = options_of(branch, Change(within=change.within))
        has = math.isfinite(effect.lowest)
        lie = f"all known values lie from {effect.lowest:.6g} to {effect.highest:.6g}" if has else "no value is known"
        yield f"{option} found nothing: {lie}", f"leave {option} out"
    if change.is_finite and not effect.not_finite:
        option = options_of(branch, Change(is_finite=True))
        problem = f"{option} found nothing: no value is NaN or infinite, or beyond 1e10"
        yield problem, f"leave {option} out"


def _lost(branch: str, effect: Effect) -> Iterator[tuple[str, str]]:
    if effect.passed_over:
        number, counts = counted(effect.passed_over, "value"), effect.passed_over
        what = "was not multiplied, for it counts" if counts == 1 else "were not multiplied, for they count"
        problem = f"{number} of '{branch}' beyond 1e10 {what} as not known"
        yield problem, f"--finite {in_shell(branch)}   # makes them 1e10"
    if effect.lost:
        number = counted(effect.lost, "known value")
        problem = f"{number} of '{branch}' became larger than {UNKNOWN_ABOVE:g}, which counts as not known"
        yield problem, f"--scale {in_shell(f'{branch}=1e-3')}   # or another unit of smaller numbers"
