"""Several processes on one run: `torch.distributed` behind the face the loop knows."""

from __future__ import annotations

import inspect
import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from xectool.config.distributed import DistributedConfig
from xectool.errors import WorldError, duration
from xectool.runlog.process import end_with_parent
from xectool.runlog.status_page import StatusPage
from xectool.training.ranks.base import Ranks, Value
from xectool.training.ranks.environment import backend_of, started_by_launcher
from xectool.training.ranks.faults import error_facts, known_fault, raised_elsewhere
from xectool.training.ranks.notes import CollectiveNotes

_POLL_S: Final = 0.05
_FAILED_WAIT_S: Final = 2.0
_KEY: Final = "xectool"
_AGENT: Final = "TORCHELASTIC_RUN_ID"  # in the environment of all that torchrun starts
_LAST_WORK: Final = f"{_KEY}/last_work"


@dataclass(frozen=True)
class RankGroup(Ranks):
    """The ranks of a process group.

    Attributes:
        store: Key-value store of the job; what waits for it is no collective and has no part in their time limit.
        rank0_timeout_s: Longest wait for work of the first rank.
        notes: Says which collective this rank is in.
    """

    store: Any = None
    rank0_timeout_s: float = 3600.0
    notes: CollectiveNotes = field(default_factory=CollectiveNotes)
    _turns: list[int] = field(default_factory=lambda: [0])

    @property
    def gradient_wait_s(self) -> float:
        """Seconds the last backward pass waited for gradients of other ranks."""
        return self.notes.gradients_s

    def sum(self, values: Tensor) -> Tensor:
        """Return the element-wise sum of ``values`` over all ranks."""
        total = values.detach().clone()
        with self.notes.inside("all_reduce"):
            dist.all_reduce(total, dist.ReduceOp.SUM)
        return total

    def gather(self, value: Value) -> list[Value]:
        """Return the plain values of all ranks, in their order."""
        everywhere: list[Any] = [None] * self.world_size
        with self.notes.inside("all_gather"):
            dist.all_gather_object(everywhere, value)
        return everywhere

    def any(self, flag: bool) -> bool:
        """Return whether ``flag`` holds on some rank."""
        return self.any_of([flag])[0]

    def all(self, flag: bool) -> bool:
        """Return whether ``flag`` holds on every rank."""
        return not self.any_of([not flag])[0]

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether it holds on some rank."""
        values = torch.tensor([bool(flag) for flag in flags], dtype=torch.int32)
        with self.notes.inside("all_reduce"):
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return [bool(value) for value in values]

    def share(self, value: Value) -> Value:
        """Return the plain value of the first rank."""
        values: list[Any] = [value]
        with self.notes.inside("broadcast"):
            dist.broadcast_object_list(values, src=0)
        shared: Value = values[0]
        return shared

    def on_first(self, work: Callable[[], Value]) -> Value | None:
        """Do something on the first rank while the others wait for the store; errors of it are raised on every rank."""
        self._turns[0] += 1
        key = f"{_KEY}/turn/{self._turns[0]}"
        if self.is_first:
            self.notes.beside()
            facts: dict[str, str] = {"problem": "rank 0 failed in work of its own"}
            try:
                with error_facts(facts):
                    return work()
            finally:
                self.store.set(key, json.dumps(facts))
        with self.notes.inside("wait_rank0"):
            self._wait(key, self.rank0_timeout_s)
        raised_elsewhere(json.loads(self.store.get(key)))
        return None

    def parallel(self, module: nn.Module) -> nn.Module:
        """Return a module whose backward pass adds up the gradients of all ranks."""
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return module
        # No buffer changes in training, and one that did must not be overwritten by that of another rank in silence.
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # torch 2.13
        options: dict[str, Any] = {"gradient_as_bucket_view": True, name: False}
        with self.notes.inside("broadcast"):
            wrapped = DistributedDataParallel(module, **options)
        # DDP refuses annotations that are text, as those of this file are; a lambda has none
        wrapped.register_comm_hook(self, lambda group, bucket: add_gradients(group, bucket))  # noqa: PLW0108
        # said of every kernel with one input channel, whose strides mean the same either way
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        return wrapped

    @contextmanager
    def alone(self, module: nn.Module) -> Iterator[None]:
        """Let a forward and backward pass keep its gradients to itself."""
        if isinstance(module, DistributedDataParallel):
            with module.no_sync():
                yield
        else:
            yield

    def note_into(self, page: StatusPage) -> None:
        """Say in a status page from now on which collective this rank is in."""
        self.notes.page = page

    def note_last_work(self) -> None:
        """Say in the store that this rank saves what it has before it fails."""
        self.store.set(_LAST_WORK, "begun")

    def leave(self, failed: bool) -> None:
        """Say that this rank has nothing more to do, and wait for the first one.

        The launcher ends all ranks when one of them fails, also one that is still writing the checkpoint of a run that
        all agreed to stop. After this no signal interrupts the last words of this rank.
        """
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # no handler: Python gives those back while it ends
        try:
            self.store.set(f"{_KEY}/left/{self.rank}", "failed" if failed else "done")
            if self.is_first:
                return
            first = f"{_KEY}/left/0"
            if failed:
                with suppress(WorldError):
                    self._wait(first, _FAILED_WAIT_S)
            if not failed or self.store.check([_LAST_WORK]):
                self._wait(first, self.rank0_timeout_s)
        except (RuntimeError, WorldError):
            return  # whoever held the store is gone already

    def _wait(self, key: str, limit_s: float) -> None:
        """Wait for a key in short looks, so that signals are heard; raise `WorldError` when it takes too long."""
        end, pause_s = time.monotonic() + limit_s, _POLL_S
        while not self.store.check([key]):
            if time.monotonic() > end:
                raise WorldError(
                    f"rank {self.rank} waited {duration(limit_s)} for work of rank 0",
                    where="writing a checkpoint, predictions or plots on rank 0",
                    fix=f"--set distributed.rank0_timeout_s={10 * limit_s:g}",
                    code="XT-RANK0-SLOW",
                )
            time.sleep(pause_s)


def add_gradients(group: RankGroup, bucket: Any) -> torch.futures.Future[Tensor]:
    """Sum a bucket of gradients over all ranks: losses are divided by the counts of all ranks, not by those of one."""
    notes, began = group.notes, time.perf_counter()
    notes.entered, notes.gradients_began = notes.entered + 1, began
    notes.enter("gradients")

    def summed(future: torch.futures.Future[list[Tensor]]) -> Tensor:
        if began == notes.gradients_began:  # the last bucket: until then this rank was busy itself
            notes.gradients_s = time.perf_counter() - began
        return future.value()[0]

    work = dist.all_reduce(bucket.buffer(), async_op=True)
    added: torch.futures.Future[Tensor] = work.get_future().then(summed)
    return added


@contextmanager
def joined(config: DistributedConfig, device: torch.device) -> Iterator[Ranks]:
    """Join the process group that the environment names, for the time of the block; without one, be alone.

    Args:
        config: Backend and time limits.
        device: Device of this rank.

    Raises:
        WorldError: The other ranks do not come, or one of them is lost inside the block.
    """
    if not started_by_launcher():
        yield Ranks()
        return
    if _AGENT in os.environ:  # without it nobody would end the others when one of them is lost
        end_with_parent()
    with known_fault(f"rank {os.environ['RANK']}, waiting for the others"):
        group = _join(config, device)
    failed = True
    try:
        with known_fault(f"rank {group.rank}"):
            yield group
        failed = False
    finally:
        group.leave(failed)
        if not failed:
            dist.destroy_process_group()


def _join(config: DistributedConfig, device: torch.device) -> RankGroup:
    limit = timedelta(seconds=config.timeout_s)
    backend = backend_of(config.backend, device)
    store, rank, world_size = _met(limit)
    store.set_timeout(limit)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    bound = device if "nccl" in backend else None
    dist.init_process_group(
        backend,
        store=PrefixStore("group", store),
        rank=rank,
        world_size=world_size,
        timeout=limit,
        device_id=bound,
    )
    return RankGroup(rank, world_size, PrefixStore(_KEY, store), config.rank0_timeout_s)


def _met(limit: timedelta) -> tuple[Any, int, int]:
    """Return the store, the rank and the number of ranks once all have come.

    The wait for them is one call of compiled code, in which Python hears no signal: this thread only looks after it.
    """
    found: Future[tuple[Any, int, int]] = Future()

    def meet() -> None:
        try:
            found.set_result(next(rendezvous("env://", timeout=limit)))
        except (RuntimeError, ValueError, OSError) as error:
            found.set_exception(error)

    meeting = threading.Thread(target=meet, daemon=True)
    meeting.start()
    while meeting.is_alive():
        meeting.join(_POLL_S)
    if not found.done():
        raise RuntimeError("the meeting of the ranks ended in an error of its own, which stands above")
    return found.result()
