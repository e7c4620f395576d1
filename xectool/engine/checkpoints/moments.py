"""The optimizer of a checkpoint held against the parameters of its network, one by one and in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from xectool.checkpoint.inspection.archive import Problem
from xectool.training.optimization.optim import is_decayed

_MOMENT: Final = "exp_avg"


def misplaced_moments(
    network: nn.Module, training: Mapping[str, Any], sets: Sequence[Mapping[str, Tensor]]
) -> tuple[Problem, ...]:
    """Return states that stand at another parameter's place, and those lost of parameters that have learned.

    Args:
        network: The network of the checkpoint.
        training: What the checkpoint keeps of the training; states are numbered in the order of the groups.
        sets: Weights by name: those of the last step and, where there are any, their averages.
    """
    state = training.get("optimizer")
    if not isinstance(state, Mapping) or not isinstance(states := state.get("state"), Mapping) or not states:
        return ()
    trained = [(name, value) for name, value in network.named_parameters() if value.requires_grad]
    ordered = [item for item in trained if is_decayed(*item)] + [item for item in trained if not is_decayed(*item)]
    learned = training.get("task")
    groups = state.get("param_groups")
    sizes = [len(group.get("params", ())) for group in groups] if isinstance(groups, list) else []
    if sum(sizes) != len(ordered) + len(learned if isinstance(learned, Mapping) else ()):
        return ()  # other rules say what does not fit
    return (*_of_another(ordered, states), *_lost(ordered, states, sets))


def _of_another(ordered: list[tuple[str, nn.Parameter]], states: Mapping[Any, Any]) -> Iterator[Problem]:
    for index, (name, parameter) in enumerate(ordered):
        moment = _moment(states.get(index))
        if moment is not None and moment.shape != parameter.shape:
            what = f"its moments are {list(moment.shape)}, {name} at this place is {list(parameter.shape)}"
            yield Problem(what, f"optimizer.state.{index}", "K10")


def _lost(
    ordered: list[tuple[str, nn.Parameter]], states: Mapping[Any, Any], sets: Sequence[Mapping[str, Tensor]]
) -> Iterator[Problem]:
    """Yield parameters without a state that had gradients.

    A gradient reaches all of a layer or none of it, and a weight that no step has moved equals its average.
    """
    layers = {name.rpartition(".")[0] for index, (name, _) in enumerate(ordered) if index in states}
    for index, (name, _) in enumerate(ordered):
        if index in states:
            continue
        if name.rpartition(".")[0] in layers:
            yield Problem(f"the moments of {name} are lost, its layer has others", f"optimizer.state.{index}", "K10")
        elif _has_moved(name, sets):
            what = f"the moments of {name} are lost: it has learned, for its average differs from it"
            yield Problem(what, f"optimizer.state.{index}", "K10")


def _has_moved(name: str, sets: Sequence[Mapping[str, Tensor]]) -> bool:
    """Return whether a weight differs from its average; what is held in another way, or not at all, tells nothing."""
    held = [weights[name] for weights in sets if name in weights]
    plain = [value for value in held if value.layout == torch.strided and value.device.type != "meta"]
    others = [value for value in plain[1:] if (value.shape, value.dtype) == (plain[0].shape, plain[0].dtype)]
    return any(not torch.equal(plain[0], other) for other in others)


def _moment(entry: Any) -> Tensor | None:
    value = entry.get(_MOMENT) if isinstance(entry, Mapping) else None
    return value if isinstance(value, Tensor) else None
