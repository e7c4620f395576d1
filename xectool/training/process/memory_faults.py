"""Turn an out-of-memory failure of the device or the host into a message with the lines to change."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch
from torch import nn

from xectool.config.platform import available_memory
from xectool.config.root import RunConfig
from xectool.errors import OutOfMemory

FRAGMENTED: Final = 0.2  # of the device, reserved and not in use
STACK_BYTES: Final = 64 * 2**20  # less than that, and a thread cannot have the stack it asks for
FOREIGN: Final = 0.2  # of the device, held by other processes
_UNITS: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_OF_DEVICE: Final = re.compile(
    r"(?:CUDA|HIP) (?:error: )?out of memory|CU(?:BLAS|DNN|FFT|SPARSE|SOLVER)_(?:STATUS_)?ALLOC_FAILED"
    r"|(?:cuda|hip)Error(?:MemoryAllocation|OutOfMemory)"
)  # of libraries that ask for memory of their own, beside PyTorch's
_OF_ONEDNN: Final = re.compile(r"could not (?:create|execute) a (?:primitive(?! descriptor)|memory)")
_FOREIGN: Final = re.compile(r"Process \d+ has ([0-9.]+) (bytes|[KMGT]iB) memory in use")


@contextmanager
def memory_faults(config: RunConfig, phase: str) -> Iterator[None]:
    """Raise `OutOfMemory` in place of PyTorch's or Python's own error.

    Args:
        config: Gives the batch size to halve.
        phase: What the run was doing.

    Raises:
        OutOfMemory: Device or host memory ran out inside the block.
    """
    smaller = smaller_batches(config)
    try:
        yield
    except MemoryError as error:
        raise OutOfMemory(
            f"the host ran out of memory: {str(error) or 'MemoryError'}",
            where=phase,
            fix=f"--set data.chunksize={max(1, config.data.chunksize // 2)}   # or fewer data.num_workers; {smaller}",
            code="XT-OOM-HOST",
        ) from error
    except RuntimeError as error:
        if _is_of_device(error):
            code, remedy = classify(facts_of(error))
            text = f"the device ran out of memory: {str(error).splitlines()[0]}"
            raise OutOfMemory(text, where=phase, fix=f"{remedy}{smaller}", code=code) from error
        if not _is_for_memory(str(error)):
            raise
        raise OutOfMemory(
            f"the host ran out of memory: {str(error).splitlines()[0]}", where=phase, fix=smaller, code="XT-OOM-HOST"
        ) from error


def _is_of_device(error: BaseException) -> bool:
    """Return whether an error says that the device has no memory: PyTorch's own, or that of a library beside it."""
    return isinstance(error, torch.OutOfMemoryError) or bool(_OF_DEVICE.search(str(error)))


def _is_for_memory(text: str) -> bool:
    """Return whether an error says that the host has no memory.

    A thread needs some for its stack, and oneDNN does not say why it failed.
    """
    if "can't start new thread" in text or _OF_ONEDNN.search(text):
        limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        return limited or available_memory() < STACK_BYTES
    return "can't allocate memory" in text or "not enough memory" in text


@dataclass(frozen=True)
class DeviceFacts:
    """What PyTorch says when a device is full, in bytes; -1 where it does not say.

    Attributes:
        requested: What was asked for.
        capacity: Memory of the device.
        free: Memory nobody holds.
        allocated: Held by tensors of this process.
        reserved_unallocated: Held by this process and not in use.
        foreign: Held by other processes.
    """

    requested: int = -1
    capacity: int = -1
    free: int = -1
    allocated: int = -1
    reserved_unallocated: int = -1
    foreign: int = -1


def device_facts(text: str) -> DeviceFacts:
    """Return the numbers of an out-of-memory message of PyTorch."""

    def size(pattern: str) -> int:
        found = re.search(pattern.replace("SIZE", r"([0-9.]+) (bytes|[KMGT]iB)"), text)
        return round(float(found[1]) * _UNITS[found[2]]) if found else -1

    return DeviceFacts(
        requested=size("Tried to allocate SIZE"),
        capacity=size("total capacity of SIZE"),
        free=size("of which SIZE is free"),
        allocated=size("SIZE is allocated by PyTorch"),
        reserved_unallocated=size("SIZE is reserved by PyTorch but unallocated"),
        foreign=sum(max(0, round(float(n) * _UNITS[unit])) for n, unit in _FOREIGN.findall(text)),
    )


def facts_of(error: BaseException) -> DeviceFacts:
    """Return what an error says of a full device, else what the driver does: one without a context tells no number."""
    told = device_facts(str(error))
    if told.capacity > 0 or not torch.cuda.is_available():
        return told
    try:
        return replace(told, **_told_by_driver())
    except RuntimeError:  # a device in such a state tells nothing more
        return told


def _told_by_driver() -> dict[str, int]:
    """Return the numbers of the CUDA device of which this process holds most."""
    devices = range(torch.cuda.device_count())
    held = {device: torch.cuda.memory_reserved(device) for device in devices}
    device = max(devices, key=lambda index: held[index])
    free, allocated = _free_bytes(device), torch.cuda.memory_allocated(device)
    capacity = torch.cuda.get_device_properties(device).total_memory
    foreign = capacity - free - held[device]  # with the context of this process, which is below any share told here
    idle = held[device] - allocated
    numbers = {"capacity": capacity, "free": free, "allocated": allocated, "reserved_unallocated": idle}
    return {**numbers, "foreign": max(0, foreign)}


def _free_bytes(device: int) -> int:
    """Return the memory of a CUDA device that nobody holds: 0 where it has no room for the context that asks."""
    try:
        return int(torch.cuda.mem_get_info(device)[0])
    except RuntimeError as error:
        if not _is_of_device(error):
            raise
        return 0


def classify(facts: DeviceFacts) -> tuple[str, str]:
    """Return the code of the cause, and what to do about it before anything else."""
    if facts.capacity > 0 and facts.reserved_unallocated > FRAGMENTED * facts.capacity:
        return "XT-OOM-FRAGMENTATION", (
            "export PYTORCH_ALLOC_CONF=expandable_segments:True "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the run; else "
        )
    if facts.capacity > 0 and facts.foreign > FOREIGN * facts.capacity:
        return (
            "XT-OOM-FOREIGN",
            "wait for the other process on the device (nvidia-smi shows it), or --device cuda:1; else ",
        )
    return "XT-OOM-GPU", ""


def oom_event(error: OutOfMemory, model: nn.Module, phase: str) -> dict[str, Any]:
    """Return the fields of the ``oom`` event of a failure that `memory_faults` has raised."""
    cause = error.__cause__ or error
    device = _is_of_device(cause)
    numbers = asdict(facts_of(cause) if device else DeviceFacts())
    numbers.pop("free")
    side = "device" if device else "host"
    text = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    return {"side": side, "phase": phase, "module": _module(cause, model), **numbers, "text": text}


def _module(error: BaseException, model: nn.Module) -> str:
    """Return the innermost module of a model that was at work when an error was raised, or an empty string."""
    names, found, trace = {id(module): name for name, module in model.named_modules()}, "", error.__traceback__
    while trace is not None:
        found = names.get(id(trace.tb_frame.f_locals.get("self")), found)
        trace = trace.tb_next
    return found


def smaller_batches(config: RunConfig) -> str:
    """Return settings that take less memory with the same effective batch, as far as the batch can be divided."""
    batch, accum = config.data.batch_size, config.training.grad_accum_steps
    parts = next((parts for parts in (2, 3, 5, 7) if batch % parts == 0), batch)
    checkpointing = "--set training.activation_checkpointing=stages"
    if batch == 1:
        return checkpointing
    return (
        f"--set data.batch_size={batch // parts} --set training.grad_accum_steps={accum * parts} "
        f"(effective batch stays {batch * accum}); {checkpointing}"
    )
