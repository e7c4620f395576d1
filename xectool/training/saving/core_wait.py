"""How long a thread waited for a core: on a busy machine everything lasts longer, and nothing is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_SCHEDULER: Final = Path("/proc/thread-self/schedstat")


def core_wait_s() -> float:
    """Return how long this thread could have run and had no core; 0 where the system does not say."""
    return 1e-9 * int(_SCHEDULER.read_text(encoding="utf-8").split()[1]) if _SCHEDULER.is_file() else 0.0
