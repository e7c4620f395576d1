"""Parts of files, and files beside others, in which a face is off or the time has another zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from xectool.detector.faces import FACES
from xectool.detector.photon_statistics import FEWEST_EVENTS
from xectool.training.healing.file_gains import MeasuredEvent, Sign

Files = Mapping[int, Sequence[MeasuredEvent]]
CHANCE: Final = 1e-4  # that events which are dark at random look like it in any face of any file
TIMES_APART_S: Final = 2.3e-7  # s; medians of sound files lie within nanoseconds
LEAST_APART_S: Final = 1.1e-8  # s
WIDTHS_APART: Final = 6.0  # mean distances to the middle of a file: the times of two files do not overlap
ODD: Final = 0.5  # of the distance of the farthest file from the middle, at most, on the other side of it


def face_goes_off(index: int, files: Files) -> Sign | None:
    """Return that faces have no light in one stretch of a file, beyond what events that are dark at random show."""
    events = sorted(files[index], key=lambda event: event.entry)
    for face in sorted(frozenset[str]().union(*(event.dark_faces for event in events))):
        dark = [face in event.dark_faces for event in events]
        if _chance_of_stretch(dark) < CHANCE / (len(files) * len(FACES)):
            entries = [event.entry for event, off in zip(events, dark, strict=True) if off]
            named = _named(event for event in events if face in event.dark_faces)
            message = f"no light in face {named} from entry {entries[0]} or before to {entries[-1]} or after"
            return Sign(message, (index,), "that face was off")
    return None


def faces_off(files: Files) -> Iterator[Sign]:
    """Yield the files in no event of which faces have light, while they have it in those of another file."""
    limit = CHANCE / (len(files) ** 2 * len(FACES))
    for index, events in files.items():
        for face in sorted(frozenset[str].intersection(*(event.dark_faces for event in events))):
            lit = (other for other in files if _chance_beside(face, len(events), files[other]) < limit)
            if (other := next(lit, None)) is not None:
                message = f"no light in face {_named(events)}, which has light in other files"
                yield Sign(message, (index, other), "that face was off")
                break


def _named(events: Iterable[MeasuredEvent]) -> str:
    """Return the faces that are dark in all of these events."""
    return ", ".join(sorted(frozenset[str].intersection(*(event.dark_faces for event in events))))


def _chance_of_stretch(dark: Sequence[bool]) -> float:
    """Return the chance that so many dark events at random places change so seldom to lit ones and back; 1 if often.

    Readings below a threshold, left out of a file, do not come in one piece.

    >>> _chance_of_stretch([True, True, False, False])
    0.3333333333333333
    """
    changes = sum(now != then for now, then in pairwise(dark))
    ways = {1: 2, 2: len(dark)}.get(changes)
    return 1.0 if ways is None else ways / math.comb(len(dark), sum(dark))


def _chance_beside(face: str, num_dark: int, others: Sequence[MeasuredEvent]) -> float:
    """Return the chance that all events of a file are among those without light, if these lie in both at random."""
    dark = sum(face in event.dark_faces for event in others)
    return math.comb(len(others), dark) / math.comb(len(others) + num_dark, dark + num_dark)


def times_apart(files: Files, time_scale: float) -> Sign | None:
    """Return that the times of a file lie elsewhere than those of the others, beyond all that its events differ by."""
    found = _apart(files, lambda event: event.time * time_scale)
    if found is None:
        return None
    named, apart, undecided = found
    message = f"the times lie {abs(apart):.3g} s ({abs(apart) / time_scale:.3g} in network units) "
    return Sign(message + _whither(apart, undecided), named, "their time offsets or units differ", undecided=undecided)


def true_times_apart(files: Files, time_scale: float) -> Sign | None:
    """Return that the true times of a file lie elsewhere beside those of its light than in the others."""
    found = _apart(files, lambda event: (event.true_time - event.time) * time_scale)
    if found is None:
        return None
    named, apart, undecided = found
    message = f"the true times lie {abs(apart):.3g} s {_whither(apart, undecided)}, beside those of the light"
    meaning = "one has another zero there" if undecided else "it has another zero there"
    return Sign(message, named, meaning, task="timing", undecided=undecided)


def _whither(apart: float, undecided: bool) -> str:
    if undecided:
        return "apart, the later in the first"
    return f"{'later' if apart > 0 else 'earlier'} than in the middle of all files"


def _apart(files: Files, value: Callable[[MeasuredEvent], float]) -> tuple[tuple[int, int], float, bool] | None:
    """Return two files whose middles differ by no chance, by how much in s, and whether neither is the odd one.

    The odd one stands first, with its distance from the median of all middles, negative if it is early; where neither
    is, as of two files, the later one does, with its distance from the other.
    """
    known = {index: [x for event in events if math.isfinite(x := value(event))] for index, events in files.items()}
    middles = {index: median(values) for index, values in known.items() if len(values) >= FEWEST_EVENTS}
    if len(middles) < 2:
        return None
    late, early = max(middles, key=middles.__getitem__), min(middles, key=middles.__getitem__)
    apart, center = middles[late] - middles[early], median(middles.values())
    width = fmean(fmean(abs(x - middles[index]) for x in known[index]) for index in (late, early))
    if not (apart > TIMES_APART_S or apart > max(LEAST_APART_S, WIDTHS_APART * width)):
        return None
    near, far = sorted((late, early), key=lambda index: abs(middles[index] - center))
    if abs(middles[near] - center) > ODD * abs(middles[far] - center):
        return (late, early), apart, True
    return (far, near), middles[far] - center, False
