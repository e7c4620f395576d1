"""What is told of markers of "no reading" that are neither 1e10 nor NaN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from xectool.checks.data_facts import DataFacts, sensor_place
from xectool.checks.markers import Marker
from xectool.detector.markers import marker_words
from xectool.findings import Finding, Severity
from xectool.findings.mends import Change, Mend
from xectool.findings.mends import Marker as NumberMarker
from xectool.rootio.stored import stored_as

_SHOWN: Final = 10


class _Held(NamedTuple):
    """A marker of one channel of one file, and all readings of that channel."""

    where: str
    marker: Marker
    total: int

    @property
    def share(self) -> str:
        """How much of the channel it is, in words."""
        return f"{100 * self.marker.count / self.total:.3g} %"


def marker_findings(code: str, facts: DataFacts) -> Iterator[Finding]:
    """Yield each marker of each channel: an error where a network takes it for a reading, else a warning."""
    data = facts.settings.data
    for channel, branch in (("npho", data.npho_branch), ("time", data.time_branch)):
        held: dict[float, list[_Held]] = {}
        for where, file in facts.sample.markers.items():
            for number, marker in getattr(file, channel).items():
                held.setdefault(number, []).append(_Held(where, marker, file.total))
        for number, files in held.items():
            yield _finding(code, facts, branch, number, files)


def _finding(code: str, facts: DataFacts, branch: str, number: float, files: list[_Held]) -> Finding:
    seen = sum(held.marker.seen for held in files)
    of_all = len(facts.sample.markers)
    many = f", in {len(files)} of {of_all} files" if of_all > 1 else ""
    effect = (
        f"a network takes {seen} of them for readings"
        if seen
        else "the network of these settings sees none, for it reads nothing there"
    )
    return Finding(
        code,
        Severity.ERROR if seen else Severity.WARNING,
        f"{marker_words(number)} looks like your marker of 'no reading' (in {files[0].share} of the values of branch "
        f"'{branch}' of '{files[0].where}'{many}); xectool knows 1e10 and NaN: {effect}",
        sensor_place(files[0].marker.first, branch),
        tuple(f"{held.where}: {held.share}" for held in files[:_SHOWN] if many),
        other_unit=branch,
        mends=tuple(_mend(facts.place_of(held.where), branch, number, held) for held in files),
    )


def _mend(file: tuple[str, str], branch: str, number: float, held: _Held) -> Mend:
    first = held.marker.first
    return Mend(*file, branch, Change((NumberMarker(stored_as(*file, branch, (first.entry, first.sensor), number)),)))
