"""Memory that runs out or grows, processes that are killed, disks that are full, compilers that give up."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch
from torch import nn
from xectool.training.guards import memory, watchdog
from xectool.training.process import device
from xectool.training.stepping import batch_loss

from benchmarks.diagnosis import hooks
from benchmarks.diagnosis.catalogue import fault
from benchmarks.diagnosis.lab import Lab
from benchmarks.diagnosis.state_faults import kill_at

KEPT: list[bytearray] = []


def leak(megabytes: float, begin: int = 1) -> None:
    """Keep some memory at every step."""

    def keep(number: int, _: Any) -> None:
        if number >= begin:
            KEPT.append(bytearray(os.urandom(1 << 16) * int(megabytes * 16)))

    hooks.before_step(keep)


def pause(seconds: float) -> None:
    """Make every step of a tiny network last as long as one of a small one."""
    hooks.before_step(lambda number, _: time.sleep(seconds))


@fault("3 to 10 MB lost at every step", "memory", "XT-MEM-GROWTH")
def growth(lab: Lab) -> None:
    lab.configure(steps=90)
    size = float(lab.rng.uniform(3, 10))

    def sabotage() -> None:
        leak(size)
        pause(0.1)

    lab.train(sabotage)


@fault("an address space that is too small", "memory", "XT-OOM-HOST")
def address_space(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=40)
    begin, room = int(lab.rng.integers(3, 25)), int(lab.rng.integers(40, 120)) << 20

    def shrink(_: Any) -> None:
        limit = psutil.Process().memory_info().vms + room
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        hooks.before_step(lambda *_: bytearray(2 * room))

    lab.train(lambda: hooks.at_step(begin, shrink))


@fault("a control group that is nearly full", "memory", "XT-OOM-HOST", constructed="free bytes of the group")
def group_full(lab: Lab) -> None:
    lab.configure(steps=60)
    free, every = int(lab.rng.integers(1, 15)) << 20, 0.2

    def sabotage() -> None:
        memory.available_memory = lambda: free  # type: ignore[attr-defined]
        memory.LOOK_EVERY_S = every  # type: ignore[misc]
        pause(0.02)

    lab.train(sabotage)


def device_text(lab: Lab, kind: str) -> str:
    """Return what PyTorch says when a device of random size is full."""
    total, wanted = float(lab.rng.uniform(8, 140)), float(lab.rng.uniform(0.1, 4))
    unallocated = float(lab.rng.uniform(0.3, 0.5) if kind == "fragments" else lab.rng.uniform(0, 0.03)) * total
    foreign = float(lab.rng.uniform(0.3, 0.7) if kind == "other" else 0.0) * total
    unallocated, foreign = (max(x, wanted * 1.2) if x > 0.1 * total else x for x in (unallocated, foreign))
    free = min(wanted / 2, 0.01 * total)
    own = total - unallocated - foreign - free
    process = f"Process {lab.rng.integers(1000, 99999)} has {foreign:.2f} GiB memory in use. " if foreign else ""
    return (
        f"CUDA out of memory. Tried to allocate {wanted:.2f} GiB. GPU 0 has a total capacity of {total:.2f} GiB of "
        f"which {free * 1024:.2f} MiB is free. {process}Including non-PyTorch memory, this process has "
        f"{own + unallocated:.2f} GiB memory in use. Of the allocated memory {own:.2f} GiB is allocated by PyTorch, "
        f"and {unallocated * 1024:.2f} MiB is reserved by PyTorch but unallocated."
    )


def device_full(lab: Lab, kind: str) -> None:
    """Raise PyTorch's own error in the forward pass, the backward pass or a validation."""
    lab.configure(("regressor", "mae"), steps=30, training={"ema_decay": None})  # or a copy is validated
    text, where, place = device_text(lab, kind), lab.choose(["forward", "backward", "validation"]), lab.rng.random()
    begin = int(lab.rng.integers(2, 25))

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError(text)

    def attach(trainer: Any) -> None:
        chosen = hooks.Chosen(trainer.parts, place)

        def look(module: nn.Module, output: Any) -> None:
            if where == "validation" and not module.training:
                full()
            if module.training and chosen.step == begin:
                if where == "forward":
                    full()
                if where == "backward" and output.requires_grad:
                    output.register_hook(full)

        chosen.hook(look)

    lab.train(lambda: hooks.before_fit(attach))


TEXT = "PyTorch's message, raised in a real step on the CPU"


@fault("device memory too small", "memory", "XT-OOM-GPU", constructed=TEXT)
def capacity(lab: Lab) -> None:
    device_full(lab, "capacity")


@fault("device memory in fragments", "memory", "XT-OOM-FRAGMENTATION", constructed=TEXT)
def fragments(lab: Lab) -> None:
    device_full(lab, "fragments")


@fault("device memory held by another process", "memory", "XT-OOM-FOREIGN", constructed=TEXT)
def foreign(lab: Lab) -> None:
    device_full(lab, "other")


@fault("killed in a step", "process", "XT-KILLED")
def killed(lab: Lab) -> None:
    lab.configure(("regressor", "regressor", "mae", "inpainter"), steps=40)
    lab.train(lambda: kill_at(int(lab.rng.integers(2, 30))))


def compiled_by(backend: Any) -> None:
    """Have the network compiled on the CPU, shape by shape, with another backend behind the tracer."""
    device.missing_toolchain = lambda _: ""  # type: ignore[assignment]

    def compiled(model: nn.Module, *_: Any) -> Any:
        return torch.compile(model, backend=backend, dynamic=False)

    batch_loss.compiled = compiled  # type: ignore[assignment]


@fault("killed while compiling", "process", "XT-COMPILE-KILLED")
def compile_killed(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=30, training={"compile": "default"})

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    lab.train(lambda: compiled_by(die))


@fault("ever new batch sizes with static shapes", "process", "XT-RECOMPILE")
def recompiled(lab: Lab) -> None:
    lab.configure(steps=26, data={"batch_size": 14}, training={"compile": "default", "grad_accum_steps": 1})
    lab.set(training={"epochs": 2})
    order = iter(list(lab.rng.permutation(range(2, 14))) * 40)

    def cut(batch: Any) -> list[Any]:
        import numpy as np

        # Every event is served: a batch that only loses some is another fault, and is named as that one.
        pieces = np.split(np.arange(batch.num_events), [min(int(next(order)), batch.num_events)])
        return [batch.take(piece) for piece in pieces if len(piece)]

    def sabotage() -> None:
        compiled_by("eager")
        hooks.each_batch(cut)

    lab.train(sabotage)


@fault("a reading process that is killed", "process", "XT-WORKER-DEAD")
def worker(lab: Lab) -> None:
    lab.configure(steps=40, data={"num_workers": int(lab.rng.integers(1, 3)), "chunksize": 32, "prefetch_factor": 1})
    begin, number = int(lab.rng.integers(2, 20)), lab.choose([signal.SIGKILL, signal.SIGSEGV])

    def kill(_: Any) -> None:
        for child in psutil.Process().children(recursive=True):
            if "forkserver" not in " ".join(child.cmdline()) or child.children() == []:
                child.send_signal(number)

    lab.train(lambda: hooks.at_step(begin, kill))


@fault("a reading process that is stopped", "process", "XT-WORKER-DEAD")
def stopped_worker(lab: Lab) -> None:
    lab.configure(steps=40, data={"num_workers": 1, "chunksize": 32, "prefetch_factor": 1, "timeout_s": 5.0})
    begin = int(lab.rng.integers(2, 20))

    def stop(_: Any) -> None:
        for child in psutil.Process().children(recursive=True):
            if "forkserver" not in " ".join(child.cmdline()) or child.children() == []:
                child.send_signal(signal.SIGSTOP)

    lab.train(lambda: hooks.at_step(begin, stop))


def no_room(lab: Lab) -> Callable[[Any], None]:
    """Return what refuses a trainer files as large as its checkpoints."""
    share = float(lab.rng.uniform(0.1, 0.6))

    def limit(trainer: Any) -> None:
        size = 4 * sum(p.numel() for p in trainer.parts.model.parameters())
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * size), int(share * size)))

    return limit


@fault("files may not grow beyond a part of a checkpoint", "disk", "XT-DISK-FULL")
def disk(lab: Lab) -> None:
    lab.configure(steps=40)
    limit = no_room(lab)
    lab.train(lambda: hooks.before_fit(limit))


@fault("a step that never ends", "process", "XT-HANG", constructed="watched every 0.5 s, a hang is 3 s")
def hang(lab: Lab) -> None:
    lab.configure(steps=40, guards={"hang_s": 3.0, "hang_abort_s": 6.0})
    begin = int(lab.rng.integers(15, 35))

    def stand_still(_: Any) -> None:
        time.sleep(600)

    def sabotage() -> None:
        hurry()
        hooks.at_step(begin, stand_still)

    lab.train(sabotage)


def hurry() -> None:
    """Let the watchdog look more often than every five seconds."""
    begin: Callable[..., None] = watchdog.Watchdog.__init__

    def often(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **{**options, "every_s": 0.5})

    watchdog.Watchdog.__init__ = often  # type: ignore[method-assign]
