"""Turn an out-of-memory failure of the device or the host into a message with the lines to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from xectool.config.root import RunConfig
from xectool.errors import OutOfMemory


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
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"the device ran out of memory: {str(error).splitlines()[0]}", where=phase, fix=smaller, code="XT-OOM-GPU"
        ) from error
    except MemoryError as error:
        raise OutOfMemory(
            f"the host ran out of memory: {error or 'MemoryError'}",
            where=phase,
            fix=f"--set data.chunksize={max(1, config.data.chunksize // 2)} or fewer data.num_workers; {smaller}",
            code="XT-OOM-HOST",
        ) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "not enough memory" not in str(error):
            raise
        raise OutOfMemory(
            f"the host ran out of memory: {str(error).splitlines()[0]}", where=phase, fix=smaller, code="XT-OOM-HOST"
        ) from error


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
