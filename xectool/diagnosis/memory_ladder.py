"""What to change when memory runs out, in the order of what it costs and saves (F006)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xectool.diagnosis.evidence.files import setting


@dataclass(frozen=True)
class Rung:
    """One step of the ladder.

    Attributes:
        title: What it does.
        settings: ``key=value`` lines of the configuration; empty for what is no setting.
        saving: What it saves, of which part of the memory.
    """

    title: str
    settings: tuple[str, ...]
    saving: str


def ladder(config: Mapping[str, Any]) -> tuple[Rung, ...]:
    """Return the steps in the order in which to try them, with this run's own numbers."""
    batch, accum = int(setting(config, "data.batch_size", 256)), int(setting(config, "training.grad_accum_steps", 1))
    parts = next((parts for parts in (2, 3, 5, 7) if batch % parts == 0), batch)
    smaller = (f"data.batch_size={max(1, batch // parts)}", f"training.grad_accum_steps={accum * parts}")
    return (
        Rung(
            f"smaller batches, the same effective batch = {batch * accum}",
            smaller if batch > 1 else ("training.activation_checkpointing=stages",),
            f"activations to 1/{parts}" if batch > 1 else "40 % or more of the activations",
        ),
        Rung(
            "recompute activations",
            ("training.activation_checkpointing=stages",),
            "40 % or more of the activations, for about a third more time",
        ),
        Rung("bf16 activations", ("training.amp=bf16",), "about half of the activations"),
        Rung(
            "drop references to old tensors",
            (),
            "what they hold; torch.cuda.empty_cache does not help this process",
        ),
        Rung(
            "gradient accumulation",
            (f"training.grad_accum_steps={max(2, accum * parts)}",),
            "nothing by itself: it keeps the effective batch when batches get smaller",
        ),
        Rung(
            "sharding of parameters and optimizer (FSDP)",
            (),
            "not useful here: 35.6 M parameters x 16 B = 0.57 GB; activations dominate",
        ),
        Rung(
            "allocator: export PYTORCH_ALLOC_CONF=expandable_segments:True",
            (),
            "what is reserved but unallocated; set before the process starts",
        ),
    )
