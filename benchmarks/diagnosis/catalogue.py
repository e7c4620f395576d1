"""What is put in, and which cause has to be named first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from benchmarks.diagnosis.lab import Lab

Inject = Callable[[Lab], object]


@dataclass(frozen=True)
class Case:
    """One kind of run.

    Attributes:
        name: What was done.
        group: Heading of the table.
        inject: Trains in a lab.
        codes: Causes that may come first; none for a healthy run. Two codes only where one fault has two symptoms and
            chance decides which is seen.
        also: Causes that have to be named as well, after the first.
        constructed: What of it is not real, or empty.
        bisect: Whether ``diagnose nan-batch --run`` has to name the corrupted event.
    """

    name: str
    group: str
    inject: Inject
    codes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    constructed: str = ""
    bisect: bool = False

    @property
    def healthy(self) -> bool:
        """Whether nothing was put in."""
        return not self.codes


CASES: dict[str, Case] = {}
MODULES = (
    "nan_faults", "spike_faults", "learning_faults", "unmoved_faults", "state_faults", "machine_faults", "flow_faults",
    "quiet_faults", "pairs", "healthy",
)  # fmt: skip


def load_cases() -> dict[str, Case]:
    """Return all cases by name, in the order of the table."""
    for name in MODULES:
        import_module(f"benchmarks.diagnosis.{name}")
    return CASES


def fault(
    name: str, group: str, *codes: str, also: tuple[str, ...] = (), constructed: str = "", bisect: bool = False
) -> Callable[[Inject], Inject]:
    """Register a fault; no codes for a healthy run."""

    def register(inject: Inject) -> Inject:
        if name in CASES:
            raise ValueError(f"two cases are called {name}")
        CASES[name] = Case(name, group, inject, codes, also, constructed, bisect)
        return inject

    return register
