"""Damage that goes on from one basket to the next is told as one range of entries."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from xectool.checks.facts import Trouble

_WHERE: Final = re.compile(r"(?P<branch>.*) entries \[(?P<start>\d+), (?P<stop>\d+)\)", re.DOTALL)
_MOST_EVIDENCE: Final = 16


def in_ranges(troubles: Iterable[Trouble]) -> list[Trouble]:
    """Return the troubles, those of one kind in a branch by their entries, and those that touch as one.

    Several reasons of one range are told by the first of them.
    """
    found: dict[object, list[Trouble]] = {}
    for trouble in troubles:
        match = _WHERE.fullmatch(trouble.where)
        key = (trouble.check, trouble.code, match["branch"]) if match else trouble
        found.setdefault(key, []).append(trouble)
    return [one for alike in found.values() for one in _joined(alike)]


def _entries(trouble: Trouble) -> tuple[int, int]:
    match = _WHERE.fullmatch(trouble.where)
    return (int(match["start"]), int(match["stop"])) if match else (0, 0)


def _joined(alike: Sequence[Trouble]) -> list[Trouble]:
    """Return troubles of one branch, which have entries or are one alone."""
    if len(alike) == 1:
        return list(alike)
    ordered, reached, number, groups = sorted(alike, key=_entries), -1, 0, []
    for trouble in ordered:
        start, stop = _entries(trouble)
        number += start > reached
        reached = max(reached, stop)
        groups.append((number, trouble))
    return [_one([trouble for _, trouble in group]) for _, group in itertools.groupby(groups, key=lambda item: item[0])]


def _one(touching: Sequence[Trouble]) -> Trouble:
    """Return the first with the evidence of all, in words that hold of any kind of trouble."""
    first, ranges = touching[0], {_entries(trouble) for trouble in touching}
    lines = list(dict.fromkeys(line for trouble in touching for line in trouble.evidence))
    more = [f"and {len(lines) - _MOST_EVIDENCE} more"] if len(lines) > _MOST_EVIDENCE else []
    evidence = (*lines[:_MOST_EVIDENCE], *more)
    if len(ranges) == 1:
        return replace(first, evidence=evidence)
    start, stop = min(ranges)[0], max(stop for _, stop in ranges)
    where = f"{first.where.rpartition(' entries ')[0]} entries [{start}, {stop})"
    problem = f"{first.problem}; it goes on up to entry {stop} ({len(ranges)} ranges that touch)"
    return replace(first, where=where, problem=problem, evidence=evidence)
