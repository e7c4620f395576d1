"""Sensors that say nothing in some files only: among many good files they do not show in the sums over all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from xectool.checks.data_facts import DataFacts
from xectool.checks.health import STATES
from xectool.detector import faces
from xectool.detector.constants import NUM_SENSORS
from xectool.findings import Finding, Severity

_CODE: Final = "DAT-14"
_MANY_DEAD: Final = 0.1
_SHOWN: Final = 10


def silent_in_some_files(facts: DataFacts) -> Iterator[Finding]:
    """Yield dead faces, dead sensors and constant sensors of files in which other files' sensors are alive."""
    pooled = facts.health.state
    known = np.isin(pooled, (STATES.index("dead"), STATES.index("constant")))
    for state in ("dead", "constant"):
        found = [(item.path, item.of(state) & ~known) for item in facts.sample.silent]
        found = [(path, which) for path, which in found if which.any()]
        if not found:
            continue
        if state == "dead":
            yield from _dead_faces(facts, found)
        yield _finding(facts, state, found)


def _dead_faces(facts: DataFacts, found: Sequence[tuple[str, Any]]) -> Iterator[Finding]:
    dead_in = {item.path: item.of("dead") for item in facts.sample.silent}
    for face in faces.FACES:
        ids = faces.sensors(face)
        paths = [path for path, which in found if which[ids].any() and dead_in[path][ids].all()]
        if paths:
            problem = f"all {len(ids)} sensors of face {face} are dead in {len(paths)} of {_judged(facts)} files"
            fix = "check the file that is named: --plots DIR draws its map"
            yield Finding(_CODE, Severity.ERROR, problem, f"{paths[0]} face {face}", tuple(paths[:_SHOWN]), fix)


def _finding(facts: DataFacts, state: str, found: Sequence[tuple[str, Any]]) -> Finding:
    sensors = [int(sensor) for sensor in np.flatnonzero(np.any([which for _, which in found], axis=0))]
    most = max(int(which.sum()) for _, which in found)
    serious = state == "constant" or most > _MANY_DEAD * NUM_SENSORS
    path, which = found[0]
    first = int(np.flatnonzero(which)[0])
    return Finding(
        _CODE,
        Severity.WARNING if serious else Severity.INFO,
        f"{len(sensors)} sensor{'s are' if len(sensors) > 1 else ' is'} {state} in some files and not in others "
        f"({len(found)} of {_judged(facts)} files): {listed(sensors)}",
        f"{path} sensor {first} face {faces.FACES[int(faces.face_ids()[first])]}",
        tuple(f"{path}: {listed(np.flatnonzero(which).tolist())}" for path, which in found[:_SHOWN]),
        "have the run of these files looked at, or add the sensors to the list of dead channels",
    )


def _judged(facts: DataFacts) -> int:
    return len(facts.sample.silent)


def listed(sensors: list[int]) -> str:
    """Return the first sensors of a list, and how many more there are."""
    shown = ", ".join(str(sensor) for sensor in sensors[:_SHOWN])
    return shown if len(sensors) <= _SHOWN else f"{shown} and {len(sensors) - _SHOWN} more"
