"""What to change when memory runs out, in the order of what it costs and saves (F006)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from xectool.diagnosis.evidence.files import setting
from xectool.diagnosis.evidence.incidents import number


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


_SMALLER: Final = Rung(
    "half the data.batch_size, twice the training.grad_accum_steps: the same effective batch", (), "activations to 1/2"
)
_RECOMPUTED: Final = Rung(
    "recompute activations",
    ("training.activation_checkpointing=stages",),
    "40 % or more of the activations, for about a third more time",
)


def ladder(config: Mapping[str, Any]) -> tuple[Rung, ...]:
    """Return the steps in the order in which to try them, with the run's own numbers where its settings are known."""
    smaller, accumulated = _smaller(config) if config else (_SMALLER, ())
    return (
        smaller,
        _RECOMPUTED,
        Rung("bf16 activations", ("training.amp=bf16",), "about half of the activations"),
        Rung(
            "drop references to old tensors",
            (),
            "what they hold; torch.cuda.empty_cache does not help this process",
        ),
        Rung(
            "gradient accumulation",
            accumulated,
            "nothing by itself: it keeps the effective batch when batches get smaller",
        ),
        Rung(
            "sharding of parameters and optimizer (FSDP)",
            (),
            "16 B a parameter, 0.57 GB of the 35.6 M of the default network: activations dominate",
        ),
        Rung(
            "allocator: export PYTORCH_ALLOC_CONF=expandable_segments:True",
            (),
            "what is reserved but unallocated; set before the process starts",
        ),
    )


def _smaller(config: Mapping[str, Any]) -> tuple[Rung, tuple[str, ...]]:
    """Return the step to smaller batches, and the accumulation that goes with it."""
    batch, accum = _count(config, "data.batch_size", 256), _count(config, "training.grad_accum_steps", 1)
    parts = next((parts for parts in (2, 3, 5, 7) if batch % parts == 0), batch)
    title = f"smaller batches, the same effective batch = {batch * accum}"
    accumulated = (f"training.grad_accum_steps={max(2, accum * parts)}",)
    if batch == 1:
        return Rung(title, _RECOMPUTED.settings, "40 % or more of the activations"), accumulated
    settings = (f"data.batch_size={max(1, batch // parts)}", f"training.grad_accum_steps={accum * parts}")
    return Rung(title, settings, f"activations to 1/{parts}"), accumulated


def _count(config: Mapping[str, Any], key: str, default: int) -> int:
    """Return a count of a configuration, the default where it is absent or none."""
    value = number(setting(config, key, default))
    return int(value) if math.isfinite(value) and value >= 1 else default
