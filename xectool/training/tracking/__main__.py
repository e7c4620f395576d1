"""The mirror's process: ``python -m xectool.training.tracking RUN (--parent PID | --once)``.

With ``--parent`` standard input is a pipe from the trainer: a byte on it, or its end, says that the training is over.
With ``--once`` everything is replayed and standard input may hold another tracking URI. Exit code 3: records are left.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from xectool.errors import EXIT_OK, EXIT_WORLD
from xectool.runlog.lock import ProcessLock
from xectool.runlog.process import end_with_parent
from xectool.runlog.reader import RunReader
from xectool.training.tracking.mirror import Mirror
from xectool.training.tracking.settings import TrackerSettings, load_settings, tracking_dir

_LOG = logging.getLogger(__name__)
_EXIT_BUSY: Final = 4
_NO_PARENT: Final = -1  # a replay has nobody to wait for
_NICENESS: Final = 5
_PARENT_EXIT_S: Final = 5.0
_REPLAY_PATIENCE_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.25
_LAST_WORDS_S: Final = 1.0


class TrainerWatch:
    """Says whether the trainer still trains, by its pipe and by being our parent.

    The pipe alone is not enough: a data worker that outlives a killed trainer may hold a copy of its other end.
    """

    def __init__(self, parent: int, pipe: int) -> None:
        self._parent = parent
        self._pipe = pipe
        self._ended = False

    def is_parent(self) -> bool:
        """Return whether the trainer is there, be it training or not."""
        return os.getppid() == self._parent

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` and return whether the training has ended."""
        deadline = time.monotonic() + seconds
        if self._ended:
            time.sleep(seconds)
        while not self._ended:
            left = deadline - time.monotonic()
            ready = select.select([self._pipe], [], [], max(0.0, min(left, 1.0)))[0]
            if ready and not os.read(self._pipe, 1):
                self._await_death()
            self._ended = bool(ready) or not self.is_parent()
            if left <= 0:
                break
        return self._ended

    def _await_death(self) -> None:
        """Wait until a dying trainer is dead: its files are closed before the process table shows its end."""
        deadline = time.monotonic() + _PARENT_EXIT_S
        while self.is_parent() and time.monotonic() < deadline:
            time.sleep(0.01)


def main() -> int:
    """Run the mirror of one run and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--parent", type=int, default=0)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    os.nice(_NICENESS)
    settings = load_settings(options.run_dir)
    lock = ProcessLock(tracking_dir(options.run_dir) / "lock")
    if options.once:
        uri = sys.stdin.read().strip()
        settings = replace(settings, uri=uri or settings.uri, drain_s=_REPLAY_PATIENCE_S)
        if not lock.acquire():
            return _EXIT_BUSY
        return _mirror(options.run_dir, settings, TrainerWatch(_NO_PARENT, sys.stdin.fileno()), replay=True)
    # A job told to stop tells all its processes; this one has to log how the trainer then ends, and ends with it.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    watch = TrainerWatch(options.parent, sys.stdin.fileno())
    # The mirror of a killed attempt may still be logging what that attempt left.
    if not lock.acquire(settings.drain_s + 30.0):
        _LOG.warning("process %s mirrors this run already", lock.holder())
        return _EXIT_BUSY
    return _mirror(options.run_dir, settings, watch, replay=False)


def _end_after(trainer: TrainerWatch) -> None:
    """End this process soon after the trainer was killed: what it had no time to log is there for a replay."""
    while trainer.is_parent():
        time.sleep(_LOOK_EVERY_S)
    time.sleep(_LAST_WORDS_S)
    os._exit(EXIT_WORLD)


def _mirror(run_dir: Path, settings: TrackerSettings, watch: TrainerWatch, *, replay: bool) -> int:
    # Imported late: it takes seconds, and the lock and the pipe must be watched from the start.
    from xectool.training.tracking.store import MlflowStore

    if not replay:  # from here on there may be something to say of a killed trainer
        threading.Thread(target=_end_after, args=(watch,), name="xectool-parent", daemon=True).start()
        end_with_parent(False)
    started = RunReader(run_dir).status().started
    store = MlflowStore(settings, run_dir, started)
    state = Mirror(run_dir, settings, store, replay=replay).run(watch.wait)
    return EXIT_OK if state.status == "done" else EXIT_WORLD


if __name__ == "__main__":
    sys.exit(main())
