"""What a signature is: a text that tells a fault, and what that fault is to the faults around it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property


class Role(IntEnum):
    """What a line is in the story of a failure; a smaller value is nearer to the cause."""

    CAUSE = 0
    UNKNOWN = 1
    DEGRADED = 2
    CONSEQUENCE = 3
    WRAPPER = 4
    VICTIM = 5


@dataclass(frozen=True)
class Signature:
    """One known text.

    Attributes:
        code: Finding code; its entry of the explanations says cause and fix.
        pattern: Regular expression searched in a line.
        literals: Texts of which one stands in every line that matches, in the case of ``fold``.
        role: What the line is to the faults around it.
        confidence: How sure the text makes the code, 0 to 1.
        fold: Whether case does not matter; literals are then lower case.
        unless: Regular expression of lines this is not about.
        within: Text that must stand in the frames of the traceback the line ends; empty for any line.
    """

    code: str
    pattern: str
    literals: tuple[str, ...]
    role: Role = Role.CAUSE
    confidence: float = 0.95
    fold: bool = False
    unless: str = ""
    within: str = ""

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.IGNORECASE if self.fold else 0)

    @cached_property
    def _not(self) -> re.Pattern[str] | None:
        return re.compile(self.unless) if self.unless else None

    def matches(self, line: str, folded: str, frames: frozenset[str] = frozenset()) -> bool:
        """Return whether a line carries this signature.

        Args:
            line: The line, without colours, rank and trailing space.
            folded: The same in lower case.
            frames: Texts of interest in the frames of the traceback that the line ends.
        """
        searched = folded if self.fold else line
        if not any(literal in searched for literal in self.literals):
            return False
        if self.within and self.within not in frames:
            return False
        return self._regex.search(line) is not None and not (self._not and self._not.search(line))
