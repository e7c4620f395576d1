"""What a resume needs beyond the weights: whether it is there, whole, and of these weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from xectool.checkpoint.inspection.archive import Problem
from xectool.checkpoint.inspection.layout import XECTOOL, Layout

_SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")
_RNG_PARTS: Final = ("torch", "numpy", "python")
_TRAINING_PARTS: Final = ("optimizer", "scaler", "task", "rng")
_META_PARTS: Final = ("progress", "schedule", "guard", "num_averaged")
_POSITION: Final = ("epoch", "batch", "step", "stats", "history", "best_loss", "best_epoch", "epochs_since_best")
_TORCH_STATE_BYTES: Final = 5056  # torch.get_rng_state() of the CPU generator
_NUMPY_STATE_WORDS: Final = 624  # Mersenne twister
_PYTHON_STATE_WORDS: Final = 625


@dataclass(frozen=True)
class OptimizerState:
    """The state of an optimizer.

    Attributes:
        num_groups: Parameter groups.
        num_parameters: Parameters listed in them.
        num_states: Parameters that have a state, which those that were stepped have.
        first_step: Fewest steps of a parameter.
        last_step: Most steps of a parameter.
        learning_rates: Rate of each group.
        problems: What contradicts the weights or itself.
    """

    num_groups: int
    num_parameters: int
    num_states: int
    first_step: float
    last_step: float
    learning_rates: tuple[float, ...]
    problems: tuple[Problem, ...]


def optimizer_state(state: Any, weights: Mapping[str, Tensor], extra: Mapping[str, Any]) -> OptimizerState | None:
    """Return the state of an optimizer; None where there is none.

    Args:
        state: What ``Optimizer.state_dict()`` returned.
        weights: The weights it should belong to.
        extra: Other learned tensors, such as those of a loss.
    """
    if not isinstance(state, Mapping) or not {"state", "param_groups"} <= state.keys():
        return None
    groups, states = state["param_groups"], state["state"]
    if not isinstance(groups, list | tuple) or not isinstance(states, Mapping):
        return OptimizerState(0, 0, 0, math.nan, math.nan, (), (_wrong("it has no groups or no states"),))
    whole = [group for group in groups if isinstance(group, Mapping)]
    listed = [index for group in whole for index in _list(group.get("params"))]
    learned = [*weights.values(), *(value for value in extra.values() if isinstance(value, Tensor))]
    steps = _numbers("step", [entry for entry in states.values() if isinstance(entry, Mapping)])
    rates = _numbers("lr", whole)
    problems = [*_membership(listed, states), *_shapes(states, learned), *_signs(states)]
    problems += [_wrong(f"a step counter is {step}") for step in steps if not 0 <= step < math.inf]
    problems += [_wrong(f"a learning rate is {rate}") for rate in rates if not 0 <= rate < math.inf]
    first, last = (min(steps), max(steps)) if steps else (math.nan, math.nan)
    return OptimizerState(len(groups), len(listed), len(states), first, last, rates, tuple(problems))


def _numbers(key: str, entries: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    return tuple(number for entry in entries if (number := _number(entry.get(key))) is not None)


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
    state = layout.training.get("scheduler")
    last = state.get("last_epoch") if isinstance(state, Mapping) else None
    if not isinstance(last, int) or layout.epoch is None or isinstance(last, bool):
        return ""
    horizon = state.get("T_max") if isinstance(state, Mapping) else None
    if isinstance(horizon, int) and last > horizon:
        return f"the cosine schedule is past its end (T_max {horizon}, at {last}): the rate rises again"
    return "" if last >= 0 else f"the scheduler stands at epoch {last}"


def _membership(listed: list[Any], states: Mapping[Any, Any]) -> Iterator[Problem]:
    twice = [index for index, count in Counter(map(str, listed)).items() if count > 1]
    if twice:
        yield _wrong(f"parameter {twice[0]} is in two groups")
    known = set(map(str, listed))
    strangers = [index for index in states if str(index) not in known]
    if strangers:
        yield _wrong(f"{len(strangers)} states belong to no listed parameter, the first is {strangers[0]}")


def _shapes(states: Mapping[Any, Any], learned: list[Tensor]) -> Iterator[Problem]:
    """Yield states that have the shape of no weight, or of more weights than there are."""
    available = Counter(tuple(value.shape) for value in learned)
    for index, entry in states.items():
        moments = {name: value for name, value in _moments(entry) if value.numel() > 1 or value.ndim}
        shapes = {tuple(value.shape) for value in moments.values()}
        where = f"optimizer.state.{index}"
        if len(shapes) > 1:
            yield Problem(f"its moments have different shapes {sorted(map(list, shapes))}", where, "K10")
        elif shapes:
            shape = shapes.pop()
            available[shape] -= 1
            if available[shape] < 0:
                fewer = "no weight" if available[shape] == -1 and not _has(learned, shape) else "no further weight"
                yield Problem(f"{fewer} has the shape {list(shape)} of this state", where, "K10")


def _has(learned: list[Tensor], shape: tuple[int, ...]) -> bool:
    return any(tuple(value.shape) == shape for value in learned)


def _signs(states: Mapping[Any, Any]) -> Iterator[Problem]:
    """Yield means of squares that are negative."""
    named = ((index, name, value) for index, entry in states.items() for name, value in _moments(entry))
    for index, name, value in named:
        if name not in _SECOND_MOMENTS or value.device.type == "meta" or not value.numel():
            continue
        negative = (value < 0).reshape(-1)
        if bool(negative.any()):
            at = int(negative.int().argmax())
            what = f"a mean of squares is negative: {float(value.reshape(-1)[at]):g} at place {at}"
            yield Problem(what, f"optimizer.state.{index}.{name}", "K10")


def _moments(entry: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(entry, Mapping):
        for name, value in entry.items():
            if isinstance(value, Tensor) and name != "step" and value.is_floating_point():
                yield str(name), value


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name)
    return value if isinstance(value, Mapping) else {}


def _wrong(what: str) -> Problem:
    return Problem(what, "optimizer", "K10")


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and value.device.type != "meta" and not value.is_complex() else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
