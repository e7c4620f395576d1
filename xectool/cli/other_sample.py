"""The words of ``check-data`` after ``--against``: a shell writes every file of a pattern there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from xectool.errors import UsageError, in_shell

AGAINST: Final = "--against"
WITH_VALUE: Final = frozenset({AGAINST, "--config", "--set", "--max-events", "--plots", "--time-limit"})
"""Options of ``check-data`` that take the word after them."""


def with_the_other_sample(argv: Sequence[str]) -> list[str]:
    """Return the arguments with ``--against`` before each file of the other sample, where data stand before it.

    All but the first would count as data.

    >>> with_the_other_sample(["check-data", "--deep", "a.root", "--against", "b.root", "c.root"])[3:]
    ['--against', 'b.root', '--against', 'c.root']

    Raises:
        UsageError: Several files follow the first of the other sample, or one before a further ``--against``, and none
            was named before.
    """
    if argv[:1] != ["check-data"] or {"--help", "-h"} & {*argv}:
        return list(argv)
    end = argv.index("--") if "--" in argv else len(argv)
    words, last = argv[1:end], argv[end:]
    roles = _roles(words)
    if "other" not in roles:
        return list(argv)
    data = [word for word, role in zip(words, roles, strict=True) if role == "data"]
    if "data" in roles[: roles.index("other")]:
        marks = ([AGAINST] if role == "other" else [] for role in roles)
        return ["check-data", *(part for mark, word in zip(marks, words, strict=True) for part in (*mark, word)), *last]
    is_after_the_last = roles.index("other") > _options_of(words, roles)[-1]
    if roles.count("other") == 1 and is_after_the_last and not data and not last[1:]:
        return list(argv)
    raise _unclear(words, roles, [*data, *last[1:]])


def _roles(words: Sequence[str]) -> list[str]:
    """Return what each word is: an option, its value, one after a file of the other sample, or data."""
    roles: list[str] = []
    option, lacks_value = "", False
    for word in words:
        if lacks_value:
            roles.append("value")
            lacks_value = False
        elif word.startswith("-"):
            option, given, _ = word.partition("=")
            roles.append("option")
            lacks_value = option in WITH_VALUE and not given
        else:
            roles.append("other" if option == AGAINST else "data")
    return roles


def _options_of(words: Sequence[str], roles: Sequence[str]) -> list[int]:
    """Return where the option of the other sample stands."""
    return [at for at, word in enumerate(words) if roles[at] == "option" and word.partition("=")[0] == AGAINST]


def _unclear(words: Sequence[str], roles: Sequence[str], data: Sequence[str]) -> UsageError:
    """Return the refusal; files named apart are the data, else those that follow may be."""
    others = [word for word, role in zip(words, roles, strict=True) if role == "other"]
    options = [word for word, role in zip(words, roles, strict=True) if role in ("option", "value")]
    rest = [word for word, role in zip(words, roles, strict=True) if role != "data"]
    line = ["xectool", "check-data", *map(in_shell, data or others), *map(shlex.quote, rest if data else options)]
    remark = "" if data else f"   # if these are the data; {_other_reading(words, roles)}"
    files = f"{others[0]} and {others[1]}" if others[1:] else others[0]
    return UsageError(
        f"{files} after {AGAINST} may be data or the other sample: no data stand before it",
        where="command line",
        fix=f"{' '.join(line)}{remark}",
    )


def _other_reading(words: Sequence[str], roles: Sequence[str]) -> str:
    """Return what else is meant where no file is named apart: those after the last of several options are the data."""
    named = _options_of(words, roles)
    before, data = (
        [word for word, role in zip(words[part], roles[part], strict=True) if role == "other"]
        for part in (slice(named[-1]), slice(named[-1], None))
    )
    if not before or not data:
        return f"else name the data before {AGAINST}"
    rest = [word for word, role in zip(words, roles, strict=True) if role in ("option", "value")]
    added = (part for word in before for part in (AGAINST, in_shell(word)))
    line = " ".join(("xectool check-data", *map(in_shell, data), *map(shlex.quote, rest), *added))
    return f"if {' and '.join(before)} {'are' if before[1:] else 'is'} of the other sample: {line}"
