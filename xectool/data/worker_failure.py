"""What a dead or silent loader process was doing, and what to change."""

from __future__ import annotations

import os
import re
from typing import Any

from xectool.data.events import EventSource
from xectool.data.plan import DataPlan, WindowKey
from xectool.errors import OutOfMemory, WorldError, XecError

_FIELDS = 4
_WORKER_PID = re.compile(r"worker \(pid(?:\(s\))? (\d+)")


class Heartbeat:
    """Shared memory in which each worker process notes the window it reads.

    Args:
        context: The multiprocessing context of the workers.
        num_workers: Count of processes.
    """

    def __init__(self, context: Any, num_workers: int) -> None:
        self._slots = context.Array("q", [0] * _FIELDS * max(num_workers, 1))

    def beat(self, epoch: int, key: WindowKey) -> None:
        """Note that this process reads a window."""
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        slot = (info.id if info is not None else 0) * _FIELDS
        self._slots[slot : slot + _FIELDS] = [os.getpid(), epoch, *key]

    def reading(self, pid: int) -> tuple[int, WindowKey] | None:
        """Return epoch and window that a process noted last."""
        values = list(self._slots)
        for slot in range(0, len(values), _FIELDS):
            if values[slot] == pid and pid:
                return values[slot + 1], WindowKey(*values[slot + 2 : slot + 4])
        return None


def explain_worker_failure(
    error: RuntimeError, heartbeat: Heartbeat, source: EventSource, plan: DataPlan
) -> XecError | RuntimeError:
    """Return the error for a worker process that died or does not answer; names what it was reading.

    An error that is about something else is returned as it is.
    """
    text = str(error)
    found = _WORKER_PID.search(text)
    pid = int(found[1]) if found else 0
    where = _last_window(pid, heartbeat, source, plan)
    if "timed out after" in text:
        return WorldError(
            f"no loader process answered in time ({text.splitlines()[0]})",
            where=where,
            fix="--set data.timeout_s=1800   # slow storage; or look with: xectool diagnose hang",
            code="XT-LOADER-TIMEOUT",
        )
    if "shared memory" in text or "Bus error" in text:
        return OutOfMemory(
            f"loader process {pid} ran out of shared memory (/dev/shm)",
            where=where,
            fix="--set data.num_workers=0   # threads need no shared memory; or enlarge /dev/shm",
            code="XT-LOADER-SHM",
        )
    if "signal: Killed" in text:
        return OutOfMemory(
            f"loader process {pid} was killed, most likely because the machine's memory ran out",
            where=where,
            fix="--set data.num_workers=0 --set data.chunksize=4096",
            code="XT-LOADER-KILLED",
        )
    if found:
        return WorldError(
            f"loader process {pid} died ({text.splitlines()[0]})",
            where=where,
            fix="--set data.num_workers=0   # reads in this process, so that the fault shows itself",
            code="XT-LOADER-DIED",
        )
    return error


def _last_window(pid: int, heartbeat: Heartbeat, source: EventSource, plan: DataPlan) -> str:
    reading = heartbeat.reading(pid)
    if reading is None:
        return "data.num_workers"
    epoch, key = reading
    parts = [
        f"{source.files[piece.file_index].path} entries [{piece.entry_start}, {piece.entry_stop})"
        for piece in plan.pieces(epoch, key)
    ]
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
    return f"it was reading {', '.join(parts[:3])}{more}"
