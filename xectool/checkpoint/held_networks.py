"""Networks of ours by the names of their weights, also those that a LightningModule holds under names of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from torch import Tensor

from xectool.checkpoint.wrapped_names import bare_name
from xectool.errors import CheckpointError, in_shell

Kind: TypeAlias = Literal["regressor", "mae", "inpainter", "encoder"]
StateDict: TypeAlias = dict[str, Tensor]

EMA_COUNTER = "n_averaged"
ENCODER_MARK = "fusion_transformer.layers.0.linear1.weight"
_HOLDERS = ("backbone.", "encoder.")
_KEEP_ONE = (
    "import sys, torch; c = torch.load(sys.argv[1], weights_only=True); c['state_dict'] = {n: v for n, v in "
    "c['state_dict'].items() if not any('.' + o in '.' + n for o in sys.argv[3:])}; torch.save(c, sys.argv[2])"
)


def held(payload: Mapping[str, Any]) -> dict[str, StateDict]:
    """Return the networks of ours that a LightningModule holds, by the names they have in it, the shortest first."""
    stored = payload.get("state_dict")
    if "pytorch-lightning_version" not in payload or not isinstance(stored, Mapping):
        return {}
    weights = unwrapped(stored)
    found: dict[str, StateDict] = {}
    for outer in (name.removesuffix(ENCODER_MARK) for name in weights if name.endswith(ENCODER_MARK)):
        # the last word is the network's own for its encoder, or the module's for a network or an encoder
        for start in (*(outer.removesuffix(own) for own in _HOLDERS if outer.endswith(own)), outer):
            part = {name.removeprefix(start): value for name, value in weights.items() if name.startswith(start)}
            if kind_of(part) is not None:
                found[start] = part
                break
    return dict(sorted(found.items(), key=lambda item: len(item[0])))


def lent(payload: Mapping[str, Any]) -> tuple[str, StateDict]:
    """Return the network of ours that a LightningModule holds, and its name in it; nothing where it is not one."""
    found = held(payload)
    return next(iter(found.items())) if len(found) == 1 else ("", {})


def refuse_several(payload: Mapping[str, Any]) -> None:
    """Refuse a LightningModule that holds several networks of ours, such as a teacher beside the one it teaches.

    Raises:
        CheckpointError: It does: which one is meant cannot be known.
    """
    found = held(payload)
    if len(found) < 2:
        return
    kept, *others = found
    raise CheckpointError(
        f"the LightningModule holds {len(found)} networks of this project, and which is meant is not known",
        where=", ".join(f"{start or 'the module itself'} ({kind_of(part)})" for start, part in found.items()),
        fix=f'{in_shell(sys.executable)} -c "{_KEEP_ONE}" PATH one.ckpt {" ".join(others)}   '
        f"# leaves out all but {kept or 'its own'}",
        code="XT-CKPT-LAYOUT",
    )


def unwrapped(weights: Mapping[str, Any]) -> StateDict:
    """Return the tensors without what wrappers put in front of their names."""
    return {
        bare_name(name): value
        for name, value in weights.items()
        if isinstance(name, str) and isinstance(value, Tensor) and name != EMA_COUNTER
    }


def kind_of(weights: Mapping[str, Any]) -> Kind | None:
    """Return which of our networks has weights of these names, if any."""
    if f"backbone.{ENCODER_MARK}" in weights:
        return "regressor" if any(name.startswith("heads.") for name in weights) else None
    if f"encoder.{ENCODER_MARK}" in weights and any(name.startswith("dec_") for name in weights):
        return "mae"
    if f"encoder.{ENCODER_MARK}" in weights:
        return "inpainter" if any(name.startswith(("head_", "cross_attn_head.")) for name in weights) else None
    return "encoder" if ENCODER_MARK in weights else None
