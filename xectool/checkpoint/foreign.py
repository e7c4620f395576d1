"""Checkpoints of the older system (xec-ml-wl): what a file is, its configuration and weights in our terms.

Pure functions on loaded content; all of it is plain values and tensors, so files load with ``weights_only=True``.

Layouts, after the prefixes ``module.`` and ``_orig_mod.`` that wrappers put in front of every name, or of those of the
module they wrap (``encoder._orig_mod.x``):

========== =============================================== ============================================
kind       weights                                         names
========== =============================================== ============================================
regressor  model_state_dict, ema_state_dict, best_ema_state ``backbone.`` + encoder, ``heads.<task>.``
mae        model_state_dict, ema_state_dict                ``encoder.`` + encoder, ``dec_<face>.``
inpainter  model_state_dict, ema_state_dict                ``encoder.`` + encoder, ``head_<face>.`` ...
encoder    the dictionary itself                           encoder
========== =============================================== ============================================

Names and shapes are those of our networks, so weights need no translation beyond the prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from torch import Tensor

from xectool.checkpoint.held_networks import ENCODER_MARK, Kind, StateDict, kind_of, lent, refuse_several, unwrapped
from xectool.checkpoint.names import USE_ANOTHER
from xectool.checkpoint.wrapped_names import bare_name, wrappers_of
from xectool.config.normalization import NormalizationConfig
from xectool.detector import hexgrid
from xectool.errors import CheckpointError

Which: TypeAlias = Literal["best", "ema", "model"]

CONTAINERS: Mapping[Which, str] = {"best": "best_ema_state", "ema": "ema_state_dict", "model": "model_state_dict"}
ENCODER_PREFIX: Mapping[Kind, str] = {
    "regressor": "backbone.",
    "mae": "encoder.",
    "inpainter": "encoder.",
    "encoder": "",
}
OLDER_GEOMETRY = "compat"
CHANNEL_WEIGHTS = "channel_log_vars"
_DECODER_MARK = "dec_inner.decoder.0.bias"
_FIRST_OF_HEAD = re.compile(r"heads\.\w+\.0\.weight")
_SPLIT_TOKENS = 7
_BARE = {True: "these are the bare weights of an encoder", False: "these are weights"}
_NORMALIZATION_KEYS = (
    "npho_scale", "npho_scale2", "time_scale", "time_shift", "sentinel_time", "sentinel_npho", "npho_scheme",
    "npho_threshold",
)  # fmt: skip
_MODEL_KEYS: Mapping[Kind, tuple[str, ...]] = {
    "encoder": (),
    "regressor": ("drop_path_rate",),
    "mae": ("mask_ratio", "predict_channels", "decoder_dim"),
    "inpainter": (
        "mask_ratio", "mask_npho_flat", "predict_channels", "freeze_encoder",
        "cross_attn_k", "cross_attn_hidden", "cross_attn_latent_dim", "cross_attn_pos_dim",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ForeignLayout:
    """What an older checkpoint holds.

    Attributes:
        kind: The network it belongs to.
        weights: Which sets of weights it has, best first.
        has_config: Whether it says how the network was built and its input normalised.
        epoch: The epoch it was written after, counted as that system did (regressor from 1, others from 0).
        best_loss: Its best validation loss, in that system's definition.
    """

    kind: Kind
    weights: tuple[Which, ...]
    has_config: bool
    epoch: int | None = None
    best_loss: float | None = None


def is_foreign(payload: object) -> bool:
    """Return whether the content looks like a checkpoint of the older system."""
    return isinstance(payload, Mapping) and kind_of(_any_weights(payload)) is not None


def is_older(payload: Mapping[str, Any]) -> bool:
    """Return whether the older system wrote a network under the names that its weights share with ours.

    Bare weights are its own where they carry the neighbours of its geometry; a LightningModule is not.
    """
    if "pytorch-lightning_version" in payload or isinstance(payload.get("config"), Mapping):
        return "pytorch-lightning_version" not in payload
    return geometry_of(encoder_state_dict(payload, recognise(payload).weights[0])) == OLDER_GEOMETRY


def recognise(payload: Mapping[str, Any]) -> ForeignLayout:
    """Return what an older checkpoint holds.

    Raises:
        CheckpointError: The layout is none of the older system's.
    """
    kind = kind_of(_any_weights(payload))
    if kind is None:
        refuse_several(payload)
        keys = ", ".join(sorted(map(str, payload))[:12]) or "nothing"
        raise CheckpointError(
            f"this is no checkpoint of this project, nor of the older system: its top-level keys are {keys}",
            fix="xectool inspect-ckpt PATH   # says what it is",
            code="XT-CKPT-LAYOUT",
        )
    present = tuple(which for which, container in CONTAINERS.items() if payload.get(container))
    epoch, loss = payload.get("epoch"), payload.get("best_val_loss")
    return ForeignLayout(
        kind=kind,
        weights=present or ("model",),
        has_config=isinstance(payload.get("config"), Mapping),
        epoch=epoch if isinstance(epoch, int) else None,
        best_loss=float(loss) if isinstance(loss, int | float) else None,
    )


def state_dict(payload: Mapping[str, Any], which: Which = "best") -> StateDict:
    """Return weights under our names, for :meth:`load_state_dict` with ``strict=True``.

    Args:
        payload: The loaded checkpoint.
        which: ``best`` (averaged weights of the best epoch), ``ema`` (averaged, last) or ``model`` (last).

    Raises:
        CheckpointError: The layout is unknown, or the file has no such weights.
    """
    layout = recognise(payload)
    if which not in layout.weights:
        raise CheckpointError(
            f"the checkpoint has no '{which}' weights",
            where=f"it has: {', '.join(layout.weights)}",
            fix=f"use '{layout.weights[0]}'",
            code="XT-CKPT-WEIGHTS",
        )
    stored = payload.get(CONTAINERS[which])
    return unwrapped(stored) if stored else lent(payload)[1] or unwrapped(payload)


def encoder_state_dict(payload: Mapping[str, Any], which: Which = "best") -> StateDict:
    """Return the encoder's weights under its own names; arguments and errors as for :func:`state_dict`."""
    prefix = ENCODER_PREFIX[recognise(payload).kind]
    weights = state_dict(payload, which)
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def to_config(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration that rebuilds the network, as plain sections.

    Sizes are read from the weights, which cannot be wrong; the rest from the stored configuration. The older geometry
    and its treatment of counts below the domain are switched on. Losses other than the Gaussian likelihood are not
    stored in these files and stay at their default, as do log transforms.

    Raises:
        CheckpointError: The layout is unknown, the file holds no configuration, or one that its weights do not fit.
    """
    layout = recognise(payload)
    stored = payload.get("config")
    if not isinstance(stored, Mapping):
        geometry = geometry_of(encoder_state_dict(payload, layout.weights[0]))
        known = f"--set model.geometry={geometry} " if geometry else ""
        raise CheckpointError(
            f"{_BARE[layout.kind == 'encoder']} without a configuration: how readings were normalised and pooled is "
            "unknown",
            fix=f"{known}--set checkpoint.init_from=PATH   # trains from it, with a configuration that says so",
            code="XT-CKPT-NO-CONFIG",
        )
    try:
        return _sections(payload, layout, stored)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        problem = f"weights or stored configuration are none of a network: {type(error).__name__}: {error}"
        raise CheckpointError(problem, fix=USE_ANOTHER, code="XT-CKPT-LAYOUT") from error


def _sections(payload: Mapping[str, Any], layout: ForeignLayout, stored: Mapping[str, Any]) -> dict[str, Any]:
    normalization = {key: stored[key] for key in _NORMALIZATION_KEYS if stored.get(key) is not None}
    branches = {key: stored[key] for key in ("npho_branch", "time_branch") if stored.get(key)}
    config: dict[str, Any] = {
        "kind": layout.kind,
        "data": branches,
        "normalization": normalization | {"below_domain": "zero"},
        "model": model_section(layout.kind, stored, state_dict(payload, layout.weights[0])),
    }
    if layout.kind == "regressor":
        config["tasks"] = task_sections(stored)
    if layout.kind == "mae":
        config["training"] = {"auto_channel_weight": CHANNEL_WEIGHTS in state_dict(payload, layout.weights[0])}
    return config


def assumed(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the normalisation that a file with a configuration does not tell, by dotted key with the value taken.

    The older system's defaults, which are ours: its autoencoders do not store the threshold of the time.
    """
    stored = payload.get("config")
    if not isinstance(stored, Mapping):
        return {}
    defaults = NormalizationConfig()
    return {f"normalization.{key}": getattr(defaults, key) for key in _NORMALIZATION_KEYS if stored.get(key) is None}


def encoder_sizes(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what an encoder's weights, under its own names, tell about the ``model`` section they belong to."""
    num_layers = sum(name.startswith("fusion_transformer") and name.endswith("norm1.bias") for name in weights)
    num_tokens, width = _weight(weights, "pos_embed").shape[1:]
    geometry = geometry_of(weights)
    return ({"geometry": geometry} if geometry else {}) | {
        "outer_mode": "split" if num_tokens == _SPLIT_TOKENS else "finegrid",
        "encoder_dim": int(width),
        "dim_feedforward": int(_weight(weights, ENCODER_MARK).shape[0]),
        "num_fusion_layers": num_layers,
    }


def _weight(weights: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a weight that every network of ours has."""
    if name not in weights:
        raise CheckpointError(f"the weight '{name}' is missing", fix=USE_ANOTHER, code="XT-CKPT-LAYOUT")
    return weights[name]


def geometry_of(weights: Mapping[str, Any]) -> str:
    """Return the geometry whose neighbours an encoder's weights carry; empty where they carry none of either."""
    table = weights.get("hex_edge_index")
    known = {hexgrid.edge_index(name).shape: name for name in ("physical", OLDER_GEOMETRY)}
    return known.get(tuple(table.shape), "") if isinstance(table, Tensor) else ""


def model_section(kind: Kind, stored: Mapping[str, Any], weights: StateDict) -> dict[str, Any]:
    """Return the ``model`` section that weights and what is stored of the configuration tell."""
    prefix = ENCODER_PREFIX[kind]
    encoder = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    section: dict[str, Any] = {"geometry": OLDER_GEOMETRY, "outer_fine_pool": _pool(stored.get("outer_fine_pool"))}
    section |= encoder_sizes(encoder)
    section |= {key: _plain(stored[key]) for key in _MODEL_KEYS[kind] if stored.get(key) is not None}
    if kind == "regressor":
        first = next((name for name in weights if _FIRST_OF_HEAD.fullmatch(name)), "heads.energy.0.weight")
        section["hidden_dim"] = int(_weight(weights, first).shape[0])
    if kind == "inpainter":
        # No sensor_positions_file: the weights carry positions and neighbours.
        section["use_local_context"] = not any(".global_decoder." in name for name in weights)
        section["use_masked_attention"] = any(".masked_pred_head." in name for name in weights)
        is_one_head = any(name.startswith("cross_attn_head.") for name in weights)
        section["head_type"] = "cross_attention" if is_one_head else "per_face"
    if kind == "mae" and _DECODER_MARK in weights:
        section["decoder_dim"] = int(weights[_DECODER_MARK].shape[0])
    return section


def task_sections(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``tasks`` section; of losses no more is stored than which of them predict a width."""
    likelihoods = stored.get("nll_tasks") or ()
    return {
        name: {"enabled": True, "loss_fn": "gaussian_nll" if name in likelihoods else "smooth_l1", "scale": None}
        for name in stored.get("active_tasks") or ()
    }


def _pool(value: int | Sequence[int] | None) -> list[int] | None:
    if value is None:
        return None
    return [value, value] if isinstance(value, int) else [int(cells) for cells in value]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _any_weights(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in reversed(tuple(CONTAINERS.values())):
        if isinstance(payload.get(container), Mapping):
            return unwrapped(payload[container])
    return lent(payload)[1] or unwrapped(payload)


def prefixes(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what others put in front of the names of the weights, or inside them, the outermost first."""
    containers = (*CONTAINERS.values(), "state_dict")
    sets = [stored for container in containers if isinstance(stored := payload.get(container), Mapping)]
    names = [name for own in (*sets, payload) for name in own if isinstance(name, str)]
    name, found = lent(payload)[0], wrappers_of(names)
    sample = next((full for full in names if name and bare_name(full).startswith(name)), "")
    return tuple(sorted((*found, *filter(None, [name])), key=sample.find))
