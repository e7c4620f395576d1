"""What a resume needs beyond the weights and the optimizer: whether it is there, whole, and in place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch import Tensor

from xectool.checkpoint.inspection.layout import XECTOOL, Layout

_RNG_PARTS: Final = ("torch", "numpy", "python")
_TRAINING_PARTS: Final = ("optimizer", "scaler", "task", "rng")
_META_PARTS: Final = ("progress", "schedule", "guard", "num_averaged")
_POSITION: Final = ("epoch", "batch", "step", "stats", "history", "best_loss", "best_epoch", "epochs_since_best")
_TORCH_STATE_BYTES: Final = 5056  # torch.get_rng_state() of the CPU generator
_NUMPY_STATE_WORDS: Final = 624  # Mersenne twister
_PYTHON_STATE_WORDS: Final = 625


def resume_gaps(layout: Layout) -> list[str]:
    """Return what is missing for a resume that ends with the weights an uninterrupted run has; empty if nothing is."""
    if layout.origin != XECTOOL:
        known = [name for name in ("optimizer", "scheduler", "scaler") if layout.training.get(name)]
        has = f" (it has {', '.join(known)})" if known else ""
        return [f"random states, place in the epoch and event order are not stored{has}"]
    if not layout.training:
        return ["it holds weights only: no optimizer, no random states, no place in the epoch"]
    gaps = [f"{name} is missing" for name in _TRAINING_PARTS if name not in layout.training]
    gaps += ["optimizer is empty"] if "optimizer" in layout.training and not layout.training["optimizer"] else []
    gaps += [f"{name} is missing from its facts" for name in _META_PARTS if name not in layout.meta]
    progress = layout.meta.get("progress")
    if isinstance(progress, Mapping):
        gaps += [f"progress.{name} is missing" for name in _POSITION if name not in progress]
    averaged = isinstance(layout.config, Mapping) and _section(layout.config, "training").get("ema_decay") is not None
    if averaged and not layout.weights.get("ema"):
        gaps.append("the averaged weights are missing, although the run keeps an average")
    if "rng" in layout.training:
        gaps += _rng_gaps(layout.training["rng"])
    return gaps


def _rng_gaps(state: Any) -> Iterator[str]:
    if not isinstance(state, Mapping):
        yield "the random states are no dictionary"
        return
    yield from (f"the random state of {name} is missing" for name in _RNG_PARTS if name not in state)
    generator, words, python = (state.get(name) for name in _RNG_PARTS)
    if generator is not None and not (isinstance(generator, Tensor) and generator.numel() == _TORCH_STATE_BYTES):
        yield "the random state of torch has another size"
    if words is not None and not _has_words(words, 1, _NUMPY_STATE_WORDS):
        yield "the random state of numpy has another size"
    if python is not None and not _has_words(python, 1, _PYTHON_STATE_WORDS):
        yield "the random state of python has another size"


def _has_words(state: Any, place: int, count: int) -> bool:
    if not isinstance(state, list | tuple) or len(state) <= place:
        return False
    words = state[place]
    return (words.numel() if isinstance(words, Tensor) else len(_list(words))) == count


def scheduler_problem(layout: Layout) -> str:
    """Return how the scheduler contradicts the epoch, or an empty string."""
    if layout.origin == XECTOOL:
        return schedule_problem(layout.meta, layout.config or {})
    state = layout.training.get("scheduler")
    last = state.get("last_epoch") if isinstance(state, Mapping) else None
    if not isinstance(last, int) or layout.epoch is None or isinstance(last, bool):
        return ""
    horizon = state.get("T_max") if isinstance(state, Mapping) else None
    if isinstance(horizon, int) and last > horizon:
        return f"the cosine schedule is past its end (T_max {horizon}, at {last}): the rate rises again"
    return "" if last >= 0 else f"the scheduler stands at epoch {last}"


def schedule_problem(meta: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return how the schedule of a run of ours contradicts its place, from which its rates follow; else nothing."""
    state, progress = (_section(meta, name) for name in ("schedule", "progress"))
    start, per_epoch, epoch, batch = (
        of.get(key)
        for of, key in ((state, "start_step"), (state, "steps_per_epoch"), (progress, "epoch"), (progress, "batch"))
    )
    scale = state.get("scale", 1.0)
    if isinstance(scale, int | float) and not 0 < scale < math.inf:
        return f"the factor of all rates is {scale}"
    if not (
        isinstance(start, int) and isinstance(per_epoch, int) and isinstance(epoch, int) and isinstance(batch, int)
    ):
        return ""
    accumulated = _section(config, "training").get("grad_accum_steps", 1)
    place = (epoch - 1) * per_epoch + batch // (accumulated if isinstance(accumulated, int) and accumulated > 0 else 1)
    if per_epoch < 1:
        return f"the schedule has epochs of {per_epoch} steps"
    if not 0 <= start <= place + 1:  # rounded where the steps of an epoch became others
        return f"the schedule begins at step {start}, and the run stands at step {place} of it"
    return ""


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name)
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
