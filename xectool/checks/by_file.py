"""Sensors that are odd in some files, or entries, only: among many good ones they do not show in what is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from xectool.checks.data_facts import DataFacts
from xectool.checks.health import MIN_CONSTANT_TIMES, STATES, around, silent_sensors
from xectool.detector import faces
from xectool.detector.constants import NUM_SENSORS
from xectool.findings import Finding, Severity

_CODE: Final = "DAT-14"
_MANY_DEAD: Final = 0.1
_SHOWN: Final = 10
_SILENT: Final = ("dead", "constant")
_OFTEN: Final = 0.05  # of the events, beyond what is usual around a sensor
_SURPRISE: Final = 16.0  # -ln of the probability: less than 1 in 1000 samples has one such sensor by chance
_FEWEST_EVENTS: Final = 20
_AROUND: Final = 24  # sensors within two steps


def odd_in_some_files(facts: DataFacts) -> Iterator[Finding]:
    """Yield dead faces, and sensors that are dead, constant, hot or noisy in files and good in others."""
    yield from odd_stretches(facts, jumps=False)
    silent = np.isin(facts.health.state, [STATES.index(name) for name in _SILENT])
    partly = partly_loud(facts)
    for state in STATES[1:]:
        new = ~silent if state in _SILENT else partly
        found = [(item.path, item.of(state) & new) for item in facts.sample.by_file]
        found = [(path, which) for path, which in found if which.any()]
        if not found:
            continue
        if state == "dead":
            yield from _dead_faces(facts, found)
        yield _finding(facts, state, found)


_REPEATED: Final = {
    "dark": "shows no light",
    "frozen": "shows the same light in every event",
    "untimed": "has no time",
    "frozen time": "has the same time in every event",
}


def odd_stretches(facts: DataFacts, jumps: bool) -> Iterator[Finding]:
    """Yield the entries of files in which faces fall silent or freeze, or else those where light or time jumps."""
    for path, stretches in facts.sample.stretches.items():
        for item in stretches:
            if (item.kind not in _REPEATED) != jumps:
                continue
            named = "every face" if len(item.faces) == len(faces.FACES) else f"face {', '.join(item.faces)}"
            where = f"{path} entries {item.first} to {item.last} {named}"
            told = f"in entries {item.first} to {item.last} of '{path}', and not in the rest"
            fix = "leave these entries out when the file is made, and have the run looked at"
            if not jumps:
                yield Finding(_CODE, Severity.ERROR, f"{named} {_REPEATED[item.kind]} {told}", where, fix=fix)
            elif item.kind == "light":
                problem = f"the share of light of {named} is {item.size:.3g} times as large {told}"
                yield Finding("DAT-21", Severity.WARNING, problem, where, fix=fix)
            else:
                side = "later" if item.size > 0 else "earlier"
                problem = f"the mean time of {named} is {abs(item.size) * 1e9:.3g} ns {side} {told}"
                yield Finding("DAT-21", Severity.WARNING, problem, where, fix=fix)


def partly_loud(facts: DataFacts) -> Any:
    """Return which sensors are hot or noisy in some files and in others not, bool, shape (S,)."""
    files = [item for item in facts.sample.by_file if item.judged]
    loud = [item.of("hot") | item.of("noisy") for item in files]
    return np.any(loud, axis=0) & ~np.all(loud, axis=0) if loud else np.zeros(NUM_SENSORS, bool)


def silent_at_times(facts: DataFacts) -> Iterator[Finding]:
    """Yield the sensors that lack a reading in many more events than those around them, and are dead in no file.

    Around them, since weak light is often not stored.
    """
    health = facts.health
    if health.events < _FEWEST_EVENTS:
        return
    missing = 1 - health.valid_share
    dead = health.state == STATES.index("dead")
    for item in facts.sample.by_file:
        dead = dead | item.of("dead")
    others = np.where(dead, np.nan, missing)
    median, mean = around(others), around(others, np.nanmean)
    # The median of counts is within one of what is expected, which in few events is much; the mean holds bad sensors.
    usual = np.maximum(median, np.minimum(mean, median + 1 / health.events))
    likely = np.clip(usual, 1 / (_AROUND * health.events), 1.0)  # where none of those around misses any
    surprise = health.events * _divergence(missing, likely)
    which = ~dead & (missing > likely + _OFTEN) & (surprise > _SURPRISE)
    sensors = sorted(np.flatnonzero(which).tolist(), key=lambda sensor: -missing[sensor])
    if not sensors:
        return
    names = [f"sensor {sensor} face {faces.FACES[int(faces.face_ids()[sensor])]}" for sensor in sensors[:_SHOWN]]
    yield Finding(
        _CODE,
        Severity.INFO,
        f"{len(sensors)} sensor{'s have' if len(sensors) > 1 else ' has'} no reading in many events in which those "
        f"around have one: {listed(sensors)}",
        f"{facts.whole} {names[0]}",
        tuple(f"{name}: none in {missing[s]:.0%} of the events" for name, s in zip(names, sensors, strict=False)),
        "have the channels looked at, or add them to the list of dead channels; in training such a reading is missing",
    )


def _divergence(share: Any, expected: Any) -> Any:
    """Return the Kullback-Leibler divergence of two binomial shares, in nats.

    So many an event, minus the logarithm of the probability that the share is so high by chance (Chernoff's bound).
    """
    share, expected = (np.clip(value, 1e-9, 1 - 1e-9) for value in (share, expected))
    return share * np.log(share / expected) + (1 - share) * np.log((1 - share) / (1 - expected))


def _dead_faces(facts: DataFacts, found: Sequence[tuple[str, Any]]) -> Iterator[Finding]:
    dead_in = {item.path: item.of("dead") for item in facts.sample.by_file}
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
    serious = state != "dead" or most > _MANY_DEAD * NUM_SENSORS
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
    return len(facts.sample.by_file)


def listed(sensors: list[int]) -> str:
    """Return the first sensors of a list, and how many more there are."""
    shown = ", ".join(str(sensor) for sensor in sensors[:_SHOWN])
    return shown if len(sensors) <= _SHOWN else f"{shown} and {len(sensors) - _SHOWN} more"


def frozen_times(facts: DataFacts) -> Iterator[Finding]:
    """Yield sensors that always tell the same time, where others of their face do not."""
    _, flat = silent_sensors(facts.sample.cells.time, MIN_CONSTANT_TIMES)
    found = np.flatnonzero(flat).tolist()
    if found:
        first = int(found[0])
        value = float(facts.sample.cells.time.lowest[first])
        yield Finding(
            _CODE,
            Severity.WARNING,
            f"{len(found)} sensor{'s tell' if len(found) > 1 else ' tells'} the same time in every event "
            f"({value:.6g} s): {listed(found)}",
            f"branch {facts.settings.data.time_branch} sensor {first} face {faces.FACES[int(faces.face_ids()[first])]}",
            fix="add them to the list of dead channels, or have the run looked at",
        )
