"""What a rank says of the collectives it is in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from xectool.runlog.status_page import COLLECTIVES, PHASES, StatusPage, Word


@dataclass
class CollectiveNotes:
    """Writes into the status page which collective this rank is in, and how many it has entered.

    Attributes:
        page: Where to write; None before there is a run directory.
        entered: Collectives entered so far, waits for work of rank 0 among them; the same on all ranks.
        gradients_began: When the last gradients of this rank were there, by the clock of the process.
        gradients_s: Seconds from the last gradients of this rank in a backward pass until those of all were summed.
    """

    page: StatusPage | None = None
    entered: int = 0
    gradients_s: float = 0.0
    gradients_began: float = 0.0

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Say so for the time of the block; a rank that dies inside leaves the words as they are."""
        self.entered += 1
        page = self.page
        if page is None:
            yield
            return
        phase = PHASES[page[Word.PHASE]]
        self.enter(name)
        page.phase("collective")
        yield
        page[Word.COLLECTIVE_OP] = 0
        page.phase(phase)

    def beside(self) -> None:
        """Count what the others wait for and this rank works on, so that the numbers of all ranks are of the same."""
        self.entered += 1
        if self.page is not None:
            self.page[Word.COLLECTIVE_SEQ] = self.entered

    def enter(self, name: str) -> None:
        """Say which collective has begun."""
        if self.page is not None:
            self.page[Word.COLLECTIVE_SEQ] = self.entered
            self.page[Word.COLLECTIVE_OP] = COLLECTIVES.index(name)
