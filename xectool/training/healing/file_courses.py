"""Parts of files, and files beside others, in which a face is off or the time has another zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from xectool.training.healing.file_gains import FEWEST_EVENTS, MeasuredEvent, Sign

Files = Mapping[int, Sequence[MeasuredEvent]]
FEWEST_IN_A_PART: Final = 4  # events of a file without light in a face, and as many with
OFTEN: Final = 0.9  # of the events of a file
TIMES_APART: Final = 2.0  # network units, 0.23 us; medians of sound files lie within nanoseconds
LEAST_APART: Final = 0.1  # network units, 11 ns
WIDTHS_APART: Final = 6.0  # mean distances to the middle of a file: the times of two files do not overlap


def face_off(index: int, files: Files) -> Sign | None:
    """Return that faces have no light in one stretch of a file, or in a whole file while they have it in another."""
    events = sorted(files[index], key=lambda event: event.entry)
    for face in sorted(frozenset[str]().union(*(event.dark_faces for event in events))):
        dark = [face in event.dark_faces for event in events]
        named = ", ".join(sorted(frozenset[str].intersection(*(e.dark_faces for e in events if face in e.dark_faces))))
        message, meaning = f"no light in face {named}", "that face was off"
        if all(dark):
            lit = next(_with_light(face, index, files), None)
            if lit is not None and len(events) >= FEWEST_EVENTS:
                return Sign(f"{message}, which has light in other files", (index, lit), meaning)
        elif min(dark.count(True), dark.count(False)) >= FEWEST_IN_A_PART and _one_stretch(dark):
            entries = [event.entry for event, off in zip(events, dark, strict=True) if off]
            return Sign(f"{message} from entry {entries[0]} or before to {entries[-1]} or after", (index,), meaning)
    return None


def _with_light(face: str, index: int, files: Files) -> Iterator[int]:
    """Yield the other files in nearly all events of which a face has light."""
    for other, events in files.items():
        lit = sum(face not in event.dark_faces for event in events)
        if other != index and len(events) >= FEWEST_EVENTS and lit >= OFTEN * len(events):
            yield other


def _one_stretch(dark: Sequence[bool]) -> bool:
    """Return whether what is dark comes in one piece: readings below a threshold, left out of a file, do not."""
    return sum(now != then for now, then in pairwise(dark)) <= 2


def times_apart(files: Files, time_scale: float) -> Sign | None:
    """Return that the times of a file lie later than those of another, beyond all that its events differ by."""
    found = _apart(files, lambda event: event.time)
    if found is None:
        return None
    late, early, apart = found
    message = f"the times lie {apart * time_scale:.3g} s ({apart:.3g} in network units) later than in the earliest file"
    return Sign(message, (late, early), "their time offsets or units differ")


def true_times_apart(files: Files, time_scale: float) -> Sign | None:
    """Return that the true times of a file lie later beside those of its light than in another."""
    found = _apart(files, lambda event: event.true_time - event.time)
    if found is None:
        return None
    late, early, apart = found
    message = f"the true times lie {apart * time_scale:.3g} s later beside those of the light than in another file"
    return Sign(message, (late, early), "it has another zero there", task="timing")


def _apart(files: Files, value: Callable[[MeasuredEvent], float]) -> tuple[int, int, float] | None:
    """Return the file of the highest middle, that of the lowest, and their distance, where that is no chance."""
    known = {index: [x for event in events if math.isfinite(x := value(event))] for index, events in files.items()}
    middles = {index: median(values) for index, values in known.items() if len(values) >= FEWEST_EVENTS}
    if len(middles) < 2:
        return None
    late, early = max(middles, key=middles.__getitem__), min(middles, key=middles.__getitem__)
    apart = middles[late] - middles[early]
    width = fmean(fmean(abs(x - middles[index]) for x in known[index]) for index in (late, early))
    far = apart > TIMES_APART or apart > max(LEAST_APART, WIDTHS_APART * width)
    return (late, early, apart) if far else None
