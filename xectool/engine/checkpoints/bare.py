"""Weights without a configuration: whether any network of ours has them, and what is missing for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from xectool.checkpoint import foreign
from xectool.checkpoint.extract import ENCODER
from xectool.checkpoint.held_networks import Kind, StateDict
from xectool.checkpoint.inspection.layout import Layout
from xectool.config.tasks import TASK_WIDTHS
from xectool.engine.checkpoints.resume_contract import misfits
from xectool.errors import XecError

_GEOMETRIES: Final = ("compat", "physical")
_BACKBONE: Final = "backbone."
_UNTOLD: Final = "inpainter"
"""Its shapes depend on channels, pooling and neighbours that are not in the weights; its names do not."""
_FEW: Final = 20
"""A share of one twentieth: where more is wrong, the guess is, not the file."""


def bare_misfits(layout: Layout) -> tuple[str, ...]:
    """Return how bare weights contradict the network that is most like them; empty where they do not, or none is."""
    guesses = [found for config in _guesses(layout) if (found := _misfits(config, layout)) is not None]
    best = min(guesses, key=len, default=())
    return best if len(best) * _FEW <= len(layout.main) else ()


def _guesses(layout: Layout) -> Iterator[dict[str, Any]]:
    try:
        config = _guess(cast("Kind", layout.kind), dict(layout.main))
    except (XecError, LookupError, ValueError, TypeError):  # a tensor its sizes are read from is not there
        return
    for geometry in _GEOMETRIES[:1] if layout.kind == _UNTOLD else _GEOMETRIES:
        yield config | {"model": config["model"] | {"geometry": geometry}}


def _guess(kind: Kind, weights: StateDict) -> dict[str, Any]:
    """Return a configuration of weights of these sizes; normalisation and pooling leave no trace in them."""
    section = foreign.encoder_sizes(weights) if kind == ENCODER else foreign.model_section(kind, {}, weights)
    config: dict[str, Any] = {"kind": "regressor" if kind == ENCODER else kind, "model": section}
    if kind == "mae":
        config["training"] = {"auto_channel_weight": foreign.CHANNEL_WEIGHTS in weights}
    if kind == "regressor":
        heads = {task: weights.get(f"heads.{task}.6.weight") for task in TASK_WIDTHS}
        wide = [task for task, head in heads.items() if head is not None and head.shape[0] == 2 * TASK_WIDTHS[task]]
        config["tasks"] = foreign.task_sections({"active_tasks": list(heads), "nll_tasks": wide})
    return config


def _misfits(config: dict[str, Any], layout: Layout) -> tuple[str, ...] | None:
    is_part = layout.kind == ENCODER
    weights = {f"{_BACKBONE}{name}": value for name, value in layout.main.items()} if is_part else layout.main
    try:
        found = misfits(config, weights)
    except XecError:
        return None
    own = [text for text in found if not is_part or text.startswith(_BACKBONE)]
    if layout.kind == _UNTOLD:
        own = [text for text in own if text.endswith(" is missing")]
    return tuple(text.removeprefix(_BACKBONE) if is_part else text for text in own)
