"""Whether the sensors of the files are alive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from xectool.checks.by_file import frozen_times, listed, odd_in_some_files, partly_loud, silent_at_times
from xectool.checks.data_facts import DataFacts
from xectool.checks.filled import repaired_files
from xectool.checks.health import SensorHealth
from xectool.detector import faces
from xectool.detector.constants import NUM_SENSORS, UNKNOWN_ABOVE
from xectool.findings import Finding, Severity
from xectool.findings.mends import Change, Marker, Mend
from xectool.rootio.stored import stored_as
from xectool.rules import Rule

_MANY_DEAD: Final = 0.1
_SHOWN: Final = 10


class SensorsAreAlive(Rule[DataFacts]):
    """Dead sensors are a part of life; a dead face, or sensors that make up light, are not."""

    code = "DAT-14"
    title = "Sensors are alive"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for a dead face, warnings for many dead and for constant, hot or noisy sensors."""
        health = facts.health
        if not health.events:
            return
        dead = health.of("dead")
        for face in faces.FACES:
            ids = faces.sensors(face)
            if np.isin(ids, dead).all():
                where = f"{facts.whole} face {face}"
                yield self.error(where, f"all {len(ids)} sensors of face {face} are dead", "--plots DIR draws the map")
        if len(dead) > _MANY_DEAD * NUM_SENSORS:
            problem = f"{len(dead)} of {NUM_SENSORS} sensors are dead"
            yield self.warning(
                facts.whole, problem, "compare with the list of dead channels; --plots DIR draws the map"
            )
        elif dead:
            yield self.info(facts.whole, f"{len(dead)} of {NUM_SENSORS} sensors are dead: {listed(dead)}")
        partly = partly_loud(facts)
        for state in ("constant", "hot", "noisy"):
            if found := [sensor for sensor in health.of(state) if not partly[sensor]]:
                yield self._odd(facts, state, found, health)
        yield from repaired_files(self.code, facts.sample.filled)
        yield from (*odd_in_some_files(facts), *silent_at_times(facts), *frozen_times(facts))

    def _odd(self, facts: DataFacts, state: str, found: list[int], health: SensorHealth) -> Finding:
        names = [f"sensor {sensor} face {faces.FACES[int(faces.face_ids()[sensor])]}" for sensor in found[:_SHOWN]]
        fix, read = "add them to the list of dead channels, or have the run looked at", "mean"
        problem, mends = f"{len(found)} sensor{'s are' if len(found) > 1 else ' is'} {state}", list[Mend]()
        if state == "constant":
            read, values = "always", facts.sample.cells.npho.lowest[found]
            if len(found) > 1 and (values == values[0]).all():
                problem += f", all at {values[0]:.6g} photons"
                mends = _marking(facts, int(found[0]), float(values[0]))
                if not mends:
                    fix = f"write 1e10, which means no reading, for these sensors when the file is made; or {fix}"
        return Finding(
            self.code,
            Severity.WARNING,
            f"{problem}: {listed(found)}",
            f"{facts.whole} {names[0]}",
            tuple(f"{name}: {read} {health.mean[s]:.6g} photons" for name, s in zip(names, found, strict=False)),
            fix,
            mends=tuple(mends),
        )


def _marking(facts: DataFacts, sensor: int, number: float) -> list[Mend]:
    """Return what makes a number of photons that dead sensors have one that is not known.

    Zero is a reading; so is any whole number where all readings are whole.
    """
    npho = facts.sample.events.npho
    known = npho[np.abs(npho) <= UNKNOWN_ABOVE]
    is_reading = not number or bool((known == np.rint(known)).all())
    files = [] if is_reading else [facts.place_of(where) for where in facts.sample.counts]
    branch = facts.settings.data.npho_branch
    return [Mend(*file, branch, Change((Marker(stored_as(*file, branch, (0, sensor), number)),))) for file in files]
