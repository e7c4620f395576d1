"""A thread that says once a second that the process lives, and what memory it holds."""

from __future__ import annotations

import os
import threading
import time
from typing import Final

import torch

from xectool.runlog.process import TreeMemory, oom_kills, tree_memory
from xectool.runlog.status_page import StatusPage, Word

INTERVAL_S: Final = 1.0


class Heartbeat:
    """Writes heartbeat and memory into a status page while it is entered.

    The training thread may hang without this one: a fresh heartbeat beside an old phase tells a blocked training
    thread from a stopped or dead process.

    Args:
        page: Where to write.
        device: Accelerator whose memory is asked for; the CPU has none.
        interval_s: Seconds between two beats.

    Attributes:
        aside: Processes whose memory is not the training's, such as the mirror that imports MLflow meanwhile.
    """

    def __init__(self, page: StatusPage, device: torch.device, interval_s: float = INTERVAL_S) -> None:
        self._page = page
        self._device = device
        self._interval_s = interval_s
        self.aside: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xectool-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def beat(self) -> None:
        """Take the samples of one beat."""
        page = self._page
        try:
            memory = tree_memory(os.getpid(), self.aside)
        except OSError:  # no descriptor is free: the process lives all the same
            memory = TreeMemory(-1, -1, -1)
        page[Word.RSS_BYTES] = memory.rss_bytes
        page[Word.OWN_RSS_BYTES] = memory.own_bytes
        page[Word.CHILDREN] = memory.children
        if self._device.type == "cuda":
            # Both only read counters of the allocator; neither waits for the device.
            page[Word.DEVICE_BYTES] = torch.cuda.memory_allocated(self._device)
            page[Word.DEVICE_RESERVED_BYTES] = torch.cuda.memory_reserved(self._device)
        page[Word.OOM_KILLS_SEEN] = oom_kills() + 1
        page[Word.HEARTBEAT_TIME_NS] = time.time_ns()
        page[Word.HEARTBEAT_NS] = time.monotonic_ns()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.beat()
