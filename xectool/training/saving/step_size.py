"""Whether a resume goes on with as many events a step as the run had."""

from __future__ import annotations

from xectool.checkpoint.format import Checkpoint
from xectool.config.root import RunConfig
from xectool.errors import counted


def step_size_change(config: RunConfig, checkpoint: Checkpoint, ranks: int) -> tuple[str, str] | None:
    """Return that the steps of a run would have another number of events, and the option that keeps it.

    None where they stay as they are, or where the configuration asks for another accumulation by itself.

    Args:
        config: The configuration that the run goes on with.
        checkpoint: Where it goes on.
        ranks: How many ranks it goes on with.
    """
    saved, accumulated = checkpoint.config, config.training.grad_accum_steps
    before = int(checkpoint.meta.get("world_size", 1)) * saved["data"]["batch_size"]
    now = ranks * config.data.batch_size
    if before == now or saved["training"]["grad_accum_steps"] != accumulated:
        return None
    shared, rest = divmod(before, ranks)
    fix = f"--set data.batch_size={shared}" if shared and not rest else "xectool explain effective-batch"
    return (
        f"the run took its steps with {before * accumulated} events, and would go on with {now * accumulated} "
        f"({counted(ranks, 'rank')}): the learning rate was chosen for the former",
        f"{fix}   # or raise the learning rate with the batch, and look at the loss",
    )
