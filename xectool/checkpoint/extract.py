"""Part of a checkpoint as a checkpoint of its own, with the configuration that gives it a meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from xectool.checkpoint.foreign import ENCODER_PREFIX
from xectool.checkpoint.format import Checkpoint
from xectool.checkpoint.transfer import ENCODER_KEYS
from xectool.config.root import base_of
from xectool.errors import CheckpointError

ENCODER = "encoder"
_ROLES = ("best", "ema", "model")


def extract_encoder(
    weights: Mapping[str, Mapping[str, Tensor]], kind: str, config: Mapping[str, Any] | None, lineage: Mapping[str, Any]
) -> Checkpoint:
    """Return the encoder of a network of ours, averaged weights where there are any, for ``checkpoint.init_from``.

    Args:
        weights: Sets of weights by role.
        kind: Kind of the network; one of a plugin has the encoder of the kind it is built on.
        config: What it was built from and how its input was normalised.
        lineage: Where it comes from, kept in the new checkpoint.

    Raises:
        CheckpointError: The network has no encoder of ours, or no configuration is known.
    """
    prefix = next((prefix for known, prefix in ENCODER_PREFIX.items() if known == base_of(kind)), None)
    role = next((role for role in _ROLES if weights.get(role)), "model")
    source = weights.get(role, {})
    start = prefix or ""
    found = {name.removeprefix(start): value for name, value in source.items() if name.startswith(start)}
    if prefix is None or "pos_embed" not in found:
        first_parts = ", ".join(sorted({name.split(".")[0] for name in source})[:8])
        raise CheckpointError(
            f"there is no encoder of this project in it (kind: {kind})",
            where=f"its names start with: {first_parts or 'nothing'}",
            fix="give a checkpoint of a regressor, an MAE or an inpainter",
            code="XT-CKPT-PREFIX",
        )
    if config is None:
        raise CheckpointError(
            "the file stores no configuration, so what its encoder sees is unknown",
            where="normalization and model section",
            fix="--config CONFIG   # the one it was trained with",
            code="XT-CKPT-NO-CONFIG",
        )
    model = {key: value for key, value in dict(config.get("model", {})).items() if key in ENCODER_KEYS}
    settings = {"kind": ENCODER, "normalization": dict(config.get("normalization", {})), "model": model}
    meta = {"kind": ENCODER, "config": settings, "lineage": {**lineage, "kind": kind, "weights": role}}
    return Checkpoint(meta, found)
