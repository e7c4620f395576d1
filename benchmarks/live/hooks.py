"""Faults inside real trainings, and a witness of their steps; every process of a run imports this as it starts.

A fault begins once the file ``LIVE_GO`` exists, on rank ``LIVE_RANK`` alone where that is set. Nothing here may import
torch or xectool: modules are changed as the training loads them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Final

FAULT: Final = os.environ.get("LIVE_FAULT", "")
GO: Final = os.environ.get("LIVE_GO", "")
PIPE: Final = os.environ.get("LIVE_PIPE", "")
WITNESS: Final = os.environ.get("LIVE_WITNESS", "")
FOR_EVER_S: Final = 3600.0
_done = threading.Event()


def due(fault: str) -> bool:
    """Return whether a fault is to happen now, in this process."""
    rank = os.environ.get("LIVE_RANK", "")
    return fault == FAULT and rank in ("", os.environ.get("RANK", "0")) and os.path.exists(GO)


def once(fault: str) -> bool:
    """Return whether a fault is to happen now, the first time."""
    if not due(fault) or _done.is_set():
        return False
    _done.set()
    return True


def pause(name: str) -> None:
    """Rest as long as the environment says."""
    time.sleep(float(os.environ.get(f"LIVE_{name}_S", "0")))


def open_pipe() -> None:
    """Wait for a writer who never comes."""
    with open(PIPE):
        pass


def hold_lock() -> None:
    """Wait for a lock that is never released."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def spin() -> None:
    """Compute for ever."""
    while True:
        pass


def sleep_uninterruptibly() -> None:
    """Stand in state D: whoever starts a program waits so until it runs, and it opens the pipe before that."""
    action = (os.POSIX_SPAWN_OPEN, 0, PIPE, os.O_RDONLY, 0)
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[action])


def hold_interpreter() -> None:
    """Sleep in C without giving the interpreter to any other thread."""
    import ctypes

    ctypes.PyDLL(None).sleep(int(FOR_EVER_S))


def stand() -> None:
    """Sleep, where a signal is heard."""
    time.sleep(FOR_EVER_S)


READS: Final = {"io": open_pipe, "lock": hold_lock, "spin": spin, "state-d": sleep_uninterruptibly}
STEPS: Final[dict[str, Callable[[], None]]] = {
    "interpreter": hold_interpreter, "step": stand, "leaves": lambda: os._exit(0),
}  # fmt: skip


def change(owner: Any, name: str, before: Callable[..., None]) -> None:
    """Call ``before`` with the arguments of a function, each time it is called."""
    plain = getattr(owner, name)

    def changed(*args: Any, **options: Any) -> Any:
        before(*args, **options)
        return plain(*args, **options)

    setattr(owner, name, changed)


def _act(faults: dict[str, Callable[[], None]]) -> Callable[..., None]:
    def act(*_: Any, **__: Any) -> None:
        for name, fault in faults.items():
            if due(name):
                fault()

    return act


def _small(backbones: Any) -> None:
    backbones.STAGE_DEPTHS, backbones.NUM_HEX_LAYERS = (1, 1), 1


def _trainer(module: Any) -> None:
    step = module.Trainer._step

    def witnessed(self: Any, progress: Any, window: Any, *rest: Any) -> Any:
        pause("STEP")
        place = {"rank": self.parts.ranks.rank, "epoch": progress.epoch, "batch": progress.batch}
        result = step(self, progress, window, *rest)
        events = [[int(f), int(e)] for b in window for f, e in zip(b.file_index, b.entry, strict=True)]
        line = {**place, "step": progress.step, "pid": os.getpid(), "events": events}
        if WITNESS:
            with open(WITNESS, "a") as file:  # one write a line: several ranks write here
                file.write(json.dumps(line) + "\n")
        return result

    module.Trainer._step = witnessed
    change(module.Trainer, "_validated_batch", lambda *_: pause("VALIDATION"))


def _stepper(module: Any) -> None:
    change(module.Stepper, "run", _act(STEPS))


def _batch_loss(module: Any) -> None:
    change(module.BatchLoss, "forward", _act({"lazy": stand}))


def _events(module: Any) -> None:
    change(module.EventSource, "read_piece", _act(READS))


def _store(module: Any) -> None:
    def before(*_: Any) -> None:
        pause("CHECKPOINT")
        _act({"checkpoint": open_pipe})()

    change(module, "save", before)


def _group(module: Any) -> None:
    any_of = module.RankGroup.any_of

    def skipping(self: Any, flags: Any) -> Any:
        return list(flags) if once("skips") else any_of(self, flags)

    module.RankGroup.any_of = skipping


def _loader(module: Any) -> None:
    epoch = module.EventLoader.epoch

    def shorter(self: Any, number: int, *where: int) -> Any:
        for batch in epoch(self, number, *where):
            if number and once("uneven"):
                return
            yield batch

    module.EventLoader.epoch = shorter


CHANGES: Final[dict[str, Callable[[Any], None]]] = {
    "xectool.models.backbones": _small,
    "xectool.training.trainer": _trainer,
    "xectool.training.stepping.step": _stepper,
    "xectool.training.stepping.batch_loss": _batch_loss,
    "xectool.data.events": _events,
    "xectool.checkpoint.store": _store,
    "xectool.training.ranks.group": _group,
    "xectool.data.loader": _loader,
}


class _Changed:
    """Finds the modules that are changed, and changes them once they have run."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in CHANGES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        loader: Any = spec.loader
        run = loader.exec_module

        def run_and_change(module: Any) -> None:
            run(module)
            CHANGES[name](module)

        loader.exec_module = run_and_change
        return spec


def install() -> None:
    """Change what is loaded from now on."""
    sys.meta_path.insert(0, _Changed)  # type: ignore[arg-type]
