"""What is damaged, what is asked, and what has to be said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from benchmarks.damage.lab import Lab

GROUPS: dict[str, tuple[str, ...]] = {
    "data": ("structure_faults", "value_faults", "sample_faults", "good_data"),
    "checkpoints": ("checkpoint_faults", "hostile_checkpoints", "good_checkpoints"),
    "exports": ("exports",),
}


class Verdict(NamedTuple):
    """What a further look at the files of a case showed.

    Attributes:
        trouble: What is wrong.
        said: What was measured.
    """

    trouble: str
    said: str


@dataclass(frozen=True)
class Question:
    """One command line, and what its answer has to tell.

    Attributes:
        words: The command line after ``xectool``.
        place: What ``where`` or ``evidence`` of the expected finding has to name: file, branch, entry, sensor, tensor.
        named: What its problem has to say.
        absent: Files that must not be there afterwards.
        environment: Variables of the command.
        result: Values of the result, or what they begin with.
        notes: Whether a note suffices, where the row has a threshold that the fault stays below.
        verify: Looks at what the command wrote.
    """

    words: tuple[str, ...]
    place: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    absent: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    result: Mapping[str, object] = field(default_factory=dict)
    notes: bool = False
    verify: Callable[[], Verdict] = lambda: Verdict("", "")


@dataclass(frozen=True)
class Case:
    """One damaged variant, or a good one.

    Attributes:
        name: What was done.
        group: Table it belongs to.
        codes: Rows that may name it; none for a good variant.
        build: Writes the files in a lab and says what is asked.
    """

    name: str
    group: str
    codes: tuple[str, ...]
    build: Callable[[Lab], Question]


CASES: dict[str, Case] = {}


def load_cases() -> dict[str, Case]:
    """Return all cases by name, in the order of the tables."""
    for modules in GROUPS.values():
        for name in modules:
            import_module(f"benchmarks.damage.{name}")
    return CASES


def case(name: str, group: str, *codes: str) -> Callable[[Callable[[Lab], Question]], Callable[[Lab], Question]]:
    """Register a case; no codes for a good variant."""

    def register(build: Callable[[Lab], Question]) -> Callable[[Lab], Question]:
        if name in CASES:
            raise ValueError(f"two cases are called {name}")
        CASES[name] = Case(name, group, codes, build)
        return build

    return register
