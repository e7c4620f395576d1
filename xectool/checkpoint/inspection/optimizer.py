"""The state of an optimizer: whether it is whole, plausible, and of these weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from xectool.checkpoint.inspection.archive import Problem
from xectool.checkpoint.inspection.values import statistics

_SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")
_WHOLE_MOMENTS: Final = frozenset((
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "momentum_buffer", "grad_avg", "acc_delta", "sum",
    "exp_inf", "exp_avg_diff", "prev", "step_size", "ax",
))  # fmt: skip
_ADAM: Final = ("exp_avg", "exp_avg_sq")
_WIDE: Final = (torch.float32, torch.float64, torch.bfloat16)
_SMALLEST_MEAN: Final = 1e-12  # of smaller ones the square may be zero
_MOST_SIGMAS: Final = 1e3  # 7.3 with the usual decays, by Cauchy and Schwarz
_RUNNING: Final = ("running_mean", "running_var")


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
        strangers: States of tensors that are not in the file, beside a state for each weight.
    """

    num_groups: int
    num_parameters: int
    num_states: int
    first_step: float
    last_step: float
    learning_rates: tuple[float, ...]
    problems: tuple[Problem, ...]
    strangers: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Learned:
    """What an optimizer should belong to.

    Attributes:
        weights: The weights of the network.
        others: Every other tensor of the file that may be learned, such as weights of a loss or a second network.
        steps: Steps the run took, where they are known.
        skipped: How many of them left the weights as they were.
    """

    weights: Mapping[str, Tensor]
    others: Mapping[str, Tensor]
    steps: int | None = None
    skipped: int = 0


def states_of(value: Any) -> list[Mapping[str, Any]]:
    """Return the optimizer states under a key of a checkpoint: one, or one an optimizer; none where it is no state."""
    if isinstance(value, Mapping) and {"state", "param_groups"} <= value.keys():
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    found = [part for part in parts if isinstance(part, Mapping) and {"state", "param_groups"} <= part.keys()]
    return found if len(found) == len(parts) else []


def optimizer_state(value: Any, learned: Learned) -> OptimizerState | None:
    """Return the state of an optimizer, or of several as one; None where there is none.

    Args:
        value: What ``Optimizer.state_dict()`` returned, or several of them.
        learned: What it should belong to.
    """
    parts = states_of(value)
    if len(parts) < 2:
        return _one(parts[0], learned) if parts else None
    found = [_one(state, learned, is_only=False) for state in parts]
    several = [
        problem._replace(where=problem.where.replace("optimizer", f"optimizer {number}", 1))
        for number, state in enumerate(found)
        for problem in state.problems
    ]
    return OptimizerState(
        sum(state.num_groups for state in found),
        sum(state.num_parameters for state in found),
        sum(state.num_states for state in found),
        min(state.first_step for state in found),
        max(state.last_step for state in found),
        tuple(rate for state in found for rate in state.learning_rates),
        tuple(several),
        tuple(stranger for state in found for stranger in state.strangers),
    )


def _one(state: Mapping[str, Any], learned: Learned, is_only: bool = True) -> OptimizerState:
    groups, states = state["param_groups"], state["state"]
    if not isinstance(groups, list | tuple) or not isinstance(states, Mapping):
        return OptimizerState(0, 0, 0, math.nan, math.nan, (), (_wrong("it has no groups or no states"),))
    whole = [group for group in groups if isinstance(group, Mapping)]
    listed = [index for group in whole for index in _list(group.get("params"))]
    steps = _numbers("step", [entry for entry in states.values() if isinstance(entry, Mapping)])
    rates = _numbers("lr", whole)
    first, last = (min(steps), max(steps)) if steps else (math.nan, math.nan)
    unmatched, strangers = _misfits(states, learned, is_only)
    problems = [*_membership(listed, states), *_shapes(states), *_signs(states), *_sizes(states), *unmatched]
    problems += [_wrong(f"a step counter is {step}") for step in steps if not 0 <= step < math.inf]
    problems += [_wrong(f"a learning rate is {rate}") for rate in rates if not 0 <= rate < math.inf]
    problems += _against_run(states, listed, last, learned)
    return OptimizerState(len(groups), len(listed), len(states), first, last, rates, tuple(problems), strangers)


def _misfits(
    states: Mapping[Any, Any], learned: Learned, is_only: bool
) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """Return states that cannot be of these weights, and those of tensors that are not in the file."""
    unmatched = tuple(_unmatched(states, learned.weights))
    if not unmatched or not any(_unmatched(states, {**learned.others, **learned.weights})):
        return (), ()
    # A loss with weights of its own leaves no weight of the network without a state; a state of another shape does.
    return (unmatched, ()) if is_only and _left_over(states, learned.weights) else ((), unmatched)


def _against_run(states: Mapping[Any, Any], listed: Sequence[Any], last: float, learned: Learned) -> Iterator[Problem]:
    if learned.steps is None:
        return
    if listed and not states and learned.steps > learned.skipped:
        yield _wrong(f"the run took {learned.steps} steps and no parameter has a state: its moments are lost")
    if learned.steps < last < math.inf:
        counts = ((key, _number(entry.get("step"))) for key, entry in states.items() if isinstance(entry, Mapping))
        at = next(key for key, count in counts if count == last)
        yield Problem(f"it counts {last:g} steps, the run {learned.steps}", f"optimizer.state.{at}.step", "K10")


def _numbers(key: str, entries: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    return tuple(number for entry in entries if (number := _number(entry.get(key))) is not None)


def _membership(listed: list[Any], states: Mapping[Any, Any]) -> Iterator[Problem]:
    twice = [index for index, count in Counter(map(str, listed)).items() if count > 1]
    if twice:
        yield _wrong(f"parameter {twice[0]} is in two groups")
    known = set(map(str, listed))
    strangers = [index for index in states if str(index) not in known]
    if strangers:
        yield _wrong(f"{len(strangers)} states belong to no listed parameter, the first is {strangers[0]}")


def _shapes(states: Mapping[Any, Any]) -> Iterator[Problem]:
    """Yield states whose moments differ in shape."""
    for index, entry in states.items():
        shapes = _shapes_of(entry)
        if len(shapes) > 1:
            problem = f"its moments have different shapes {sorted(map(list, shapes))}"
            yield Problem(problem, f"optimizer.state.{index}", "K10")


def _shapes_of(entry: Any) -> set[tuple[int, ...]]:
    """Return the shapes of moments that have that of their weight; factored and quantised ones have others."""
    moments = {name: value for name, value in _moments(entry) if name in _WHOLE_MOMENTS}
    return {tuple(value.shape) for value in moments.values() if value.numel() > 1 or value.ndim}


def _unmatched(states: Mapping[Any, Any], learned: Mapping[str, Tensor]) -> Iterator[Problem]:
    """Yield states that have the shape of no weight, or of more weights than there are."""
    shapes = Counter(tuple(value.shape) for value in learned.values())
    available = shapes.copy()
    for index, entry in states.items():
        found = _shapes_of(entry)
        if len(found) != 1:
            continue
        shape = found.pop()
        available[shape] -= 1
        if available[shape] < 0:
            fewer = "no further weight" if shapes[shape] else "no weight"
            yield Problem(f"{fewer} has the shape {list(shape)} of this state", f"optimizer.state.{index}", "K10")


def _left_over(states: Mapping[Any, Any], learned: Mapping[str, Tensor]) -> bool:
    """Return whether a weight is without a state; running means and numbers of one element need none."""
    available = Counter(shape for entry in states.values() if len(found := _shapes_of(entry)) == 1 for shape in found)
    for name, value in learned.items():
        if value.is_floating_point() and value.numel() > 1 and not name.endswith(_RUNNING):
            available[tuple(value.shape)] -= 1
    return any(count < 0 for count in available.values())


def _sizes(states: Mapping[Any, Any]) -> Iterator[Problem]:
    """Yield means of gradients beyond what the means of their squares allow: a damaged number in one of the two."""
    for index, entry in states.items():
        mean, square = (entry.get(name) for name in _ADAM) if isinstance(entry, Mapping) else (None, None)
        if not (isinstance(mean, Tensor) and isinstance(square, Tensor)) or mean.shape != square.shape:
            continue
        if mean.dtype not in _WIDE or square.dtype not in _WIDE or mean.device.type == "meta" or not mean.numel():
            continue
        sizes = mean.double().abs()
        beyond = ((sizes > _SMALLEST_MEAN) & (sizes > _MOST_SIGMAS * square.double().clamp(min=0).sqrt())).reshape(-1)
        squares = statistics(square.double().clamp(min=0).sqrt())
        if squares is not None and squares.outlier is not None and squares.outlier.impossible:
            far = squares.outlier
            what = f"a mean of squares is {far.value**2:.3g} at {list(far.index)}, the median {far.median**2:.3g}"
            yield Problem(f"{what}: a damaged value", f"optimizer.state.{index}.{_ADAM[1]}", "K10")
        if bool(beyond.any()):
            at = int(beyond.int().argmax())
            values = (float(part.reshape(-1)[at]) for part in (mean, square))
            what = "a mean of gradients is {:.3g} at place {}, the mean of their squares {:.3g}: one of them is damaged"
            first, second = values
            yield Problem(what.format(first, at, second), f"optimizer.state.{index}.{_ADAM[0]}", "K10")


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


def _wrong(what: str) -> Problem:
    return Problem(what, "optimizer", "K10")


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and value.device.type != "meta" and not value.is_complex() else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
