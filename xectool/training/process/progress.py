"""What a run tells whoever watches it; the loop itself never prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Observer(Protocol):
    """Receives progress; every method returns at once and must not raise."""

    def started(self, facts: Mapping[str, Any]) -> None:
        """Say what is about to run: directory, device, events, epochs, notes."""

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin a phase (``train 3/8``, ``validate``) of ``total`` batches, ``done`` of them by an attempt before."""

    def advanced(self, num_batches: int, values: Mapping[str, float]) -> None:
        """Count finished batches of the phase, with values worth showing."""

    def epoch_done(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Give the metrics of a finished epoch."""

    def message(self, text: str) -> None:
        """Give one line that the user should read."""


class NullObserver:
    """Watches nothing."""

    def started(self, facts: Mapping[str, Any]) -> None:
        """Ignore the start."""

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Ignore the phase."""

    def advanced(self, num_batches: int, values: Mapping[str, float]) -> None:
        """Ignore the progress."""

    def epoch_done(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Ignore the metrics."""

    def message(self, text: str) -> None:
        """Ignore the text."""
