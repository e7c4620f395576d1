"""Who wrote a line, and when: the rank and the time that launchers and loggers put before it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# torch "[rank1]:", torchelastic "[default1]:", mpirun "[1,0]<stderr>:", srun -l "1: ", MPICH's mpiexec -l "[1] ",
# which a shell also writes before the process number of a job: "[1] 4711", "[1]    4711 killed"
_RANK: Final = re.compile(
    r"^\s*(?:\[(?:rank|default|RANK )(?P<torch>\d+)\]:?|\[\d+,(?P<mpi>\d+)\](?:<std(?:err|out)>)?:"
    r"|(?P<srun>\d{1,4}):(?= )|\[(?P<mpich>\d{1,4})\](?= (?!\s*\d+(?:\s|$))))\s?"
)
_RANK_IN_NAME: Final = re.compile(r"(?:rank|proc|task|worker)[-_.]?(\d+)", re.IGNORECASE)
_DATE: Final = re.compile(
    r"(?:\d{4}[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T ]|\b[EWIF](?P<gmonth>\d\d)(?P<gday>\d\d) )"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d+)?)"
)
_SEARCHED: Final = 120  # characters of a line in which its time is looked for


@dataclass(frozen=True)
class Origin:
    """Where a line comes from.

    Attributes:
        rank: Number of the process, -1 where nothing says so.
        text: The line without what named the rank.
    """

    rank: int
    text: str


def origin_of(line: str, rank_of_file: int) -> Origin:
    """Return rank and text of a line; the file's rank where the line names none.

    >>> origin_of("[rank1]: KeyError: 'a'", -1), origin_of("3: step 7", -1).rank, origin_of("step 7", 2).rank
    (Origin(rank=1, text="KeyError: 'a'"), 3, 2)
    >>> origin_of("[2] KeyError: 'a'", -1), origin_of("[2]    4711 killed     python train.py", -1).rank
    (Origin(rank=2, text="KeyError: 'a'"), -1)
    """
    match = _RANK.match(line)
    if match is None:
        return Origin(rank_of_file, line)
    named = next(number for number in match.groups() if number is not None)
    return Origin(int(named), line[match.end() :])


def rank_in_name(path: Path) -> int:
    """Return the rank a file is named after, or lies under as torchrun does (``.../attempt_0/1/stderr.log``); else -1.

    >>> rank_in_name(Path("logs/train_rank3.err")), rank_in_name(Path("a/attempt_0/1/stderr.log"))
    (3, 1)
    """
    named = _RANK_IN_NAME.search(path.name)
    if named:
        return int(named[1])
    inside = path.name.startswith(("stdout", "stderr")) and path.parent.name.isdigit()
    return int(path.parent.name) if inside else -1


def seconds_of(line: str) -> float | None:
    """Return the time a line carries, in seconds since the start of a year; None where it carries none.

    >>> seconds_of("2026-01-02 00:00:01,500 INFO start"), seconds_of("[W0102 00:00:01.5 file.cpp:1] x"), seconds_of("x")
    (86401.5, 86401.5, None)
    """
    match = _DATE.search(line, 0, _SEARCHED)
    if match is None:
        return None
    month, day = int(match["month"] or match["gmonth"]), int(match["day"] or match["gday"])
    clock = 3600 * int(match["hour"]) + 60 * int(match["minute"]) + float(match["second"].replace(",", "."))
    return (31 * (month - 1) + day - 1) * 86400.0 + clock
