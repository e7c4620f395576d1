"""What a check would say of units by the names that it proposes itself: in the same pass, not in the next."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from xectool.checks.facts import FileFacts, Trouble
from xectool.findings import Finding


def proposed_names(files: Sequence[FileFacts], troubles: Sequence[Trouble]) -> tuple[str, ...]:
    """Return the settings by which branches of other names would be read; none where the files do not agree."""
    told = {file.where: set[str]() for file in files}
    for trouble in troubles:
        told.get(trouble.where.partition(" branch ")[0], set()).update(_settings(trouble.fix))
    first, *others = told.values() or [set[str]()]
    return tuple(sorted(first)) if all(names == first for names in others) else ()


def units_by(names: Sequence[str], check: Callable[[], Sequence[Finding]]) -> list[Finding]:
    """Return what a check by some names finds of units, each with the names it was read by."""
    said = f"read by the proposed {', '.join(names)}"
    units = (found for found in check() if any(words in found.problem for words in ("looks like", "look like")))
    return [replace(found, evidence=(said, *found.evidence)) for found in units]


def _settings(line: str) -> list[str]:
    if not line.startswith("xectool check-data "):
        return []
    words = shlex.split(line, comments=True)
    return [setting for option, setting in itertools.pairwise(words) if option == "--set"]
