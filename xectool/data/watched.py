"""Reads of events that leave a note of what is being read."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from xectool.data.blocks import Piece
from xectool.data.events import EventSource
from xectool.data.extremes import measure
from xectool.data.window import WindowArrays
from xectool.runlog.worker_slots import SlotRange, WorkerSlots


class WatchedReads:
    """Reads pieces of a source; each thread writes into its slot what it is at.

    Args:
        source: The events.
        slots: Slots of this process, one a thread; None leaves no notes.
    """

    def __init__(self, source: EventSource, slots: SlotRange | None) -> None:
        self._source = source
        self._slots = _open(slots)
        self._numbers = itertools.count()
        self._local: Any = threading.local()

    def __call__(self, piece: Piece, window: WindowArrays, row: int) -> None:
        """Read a piece into the rows of a window from ``row`` on.

        Raises:
            DataFileError: The file is damaged.
        """
        if self._slots is None:
            self._source.read_piece(piece, window, row)
            return
        thread = self._thread() % self._slots.count
        self._slots.read(thread, piece.file_index, piece.entry_start, piece.entry_stop)
        try:
            self._source.read_piece(piece, window, row)
        finally:
            self._slots.idle(thread)

    def measured(self, piece: Piece, window: WindowArrays, row: int) -> None:
        """Read a piece as a call does, and take the extremes of its events.

        Raises:
            DataFileError: The file is damaged.
        """
        self(piece, window, row)
        measure(window.rows(row, row + piece.num_events))

    def exit(self) -> None:
        """Say that this process reads no more."""
        if self._slots is not None:
            self._slots.exit()

    def _thread(self) -> int:
        if not hasattr(self._local, "number"):
            self._local.number = next(self._numbers)
        return int(self._local.number)


def _open(slots: SlotRange | None) -> WorkerSlots | None:
    if slots is None:
        return None
    try:
        return WorkerSlots(slots)
    except OSError:  # the run directory is gone: notes are lost, events are not
        return None
