"""CPU seconds that the calling thread spends inside chosen methods of a running training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class ThreadClock:
    """Adds up the time of every method it watches.

    Attributes:
        seconds: CPU seconds of the thread since it was last set to 0.
        runs: Whether the methods are timed; to be changed while none of them is running.

    Args:
        beside: A clock whose time within these methods is not counted.
    """

    def __init__(self, beside: ThreadClock | None = None) -> None:
        self.seconds, self.runs = 0.0, True
        self._beside = beside

    def watch(self, kind: type, name: str) -> None:
        """Time a method of a class from now on."""
        setattr(kind, name, self._timed(getattr(kind, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            if not self.runs:
                return function(*arguments, **named)
            beside, within = self._beside, self._beside.seconds if self._beside else 0.0
            began = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.thread_time() - began - (beside.seconds - within if beside else 0.0)

        return timed
