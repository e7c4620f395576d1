"""Encoder weights of one network into another: what fitted, what did not, and why.

A token means something only to an encoder that sees readings the same way. Weights are refused where normalisation,
sentinels, geometry or the image of the outer face differ: they would load without complaint and teach the wrong thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from xectool.checkpoint.foreign import ENCODER_PREFIX, encoder_sizes
from xectool.checkpoint.format import Checkpoint
from xectool.config.model import EncoderConfig
from xectool.config.normalization import NormalizationConfig
from xectool.config.root import RunConfig, require_kind
from xectool.errors import CheckpointError, counted, did_you_mean, in_shell

INDEX_BUFFERS = ("top_hex_indices", "bottom_hex_indices", "hex_edge_index")
"""Part of an encoder's state dict, but computed from the geometry and so never taken from a file."""
ENCODER_KEYS = ("geometry", "outer_mode", "outer_fine_pool", "encoder_dim", "dim_feedforward", "num_fusion_layers")
_NAMED = 3
_ASSUMED = (
    "the file does not say how readings were normalised and pooled: it is taken to be as normalization and "
    "model.outer_fine_pool of this run say"
)


@dataclass(frozen=True)
class TransferReport:
    """What became of every tensor.

    Attributes:
        source: Kind of the network the weights come from.
        target: Kind of the network they went into.
        weights: Which set was taken: ``best``, ``ema`` or ``model``.
        loaded: Names in the target that now hold weights of the source.
        left_out: Names in the source that were not taken, with the reason.
        fresh: Names in the target that keep their own values, with the reason.
        loaded_parameters: How many numbers were loaded.
        fresh_parameters: How many numbers keep their own values.
        assumed: What could not be compared because the source does not tell, or an empty string.
    """

    source: str
    target: str
    weights: str
    loaded: tuple[str, ...]
    left_out: Mapping[str, str]
    fresh: Mapping[str, str]
    loaded_parameters: int
    fresh_parameters: int
    assumed: str = ""

    def lines(self) -> list[str]:
        """Return the report for a reader, one line a group of tensors."""
        whose = self.source if self.source == "encoder" else f"{self.source}'s encoder"  # an encoder that was extracted
        head = (
            f"{counted(len(self.loaded), 'tensor')} ({self.loaded_parameters:,} numbers) of the {whose} loaded into "
            f"the {self.target}, {self.weights} weights"
        )
        groups = [("not taken", self.left_out), ("new", self.fresh)]
        return [head, *([self.assumed] if self.assumed else [])] + [
            line for title, names in groups for line in _grouped(title, names)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, every tensor named."""
        return {**vars(self), "loaded": list(self.loaded), "left_out": dict(self.left_out), "fresh": dict(self.fresh)}


def transfer_encoder(checkpoint: Checkpoint, config: RunConfig, model: nn.Module) -> TransferReport:
    """Load the encoder of a checkpoint of any kind into a network of any kind, averaged weights where there are any.

    Args:
        checkpoint: Where the weights come from.
        config: What ``model`` was built from.
        model: The network to change; its other weights are left as they are.

    Raises:
        CheckpointError: The checkpoint holds no encoder under the name its kind gives it, or the two networks see
            readings differently; the message lists every key that differs.
        ConfigError: No installed package brings its kind.
    """
    require_kind_of(checkpoint)
    weights = checkpoint.weights("best")
    found = _encoder_weights(weights, checkpoint.base_kind)
    _require_same_view(checkpoint, config, found)
    prefix = ENCODER_PREFIX[config.base_kind]
    own = {name.removeprefix(prefix): value for name, value in model.state_dict().items() if name.startswith(prefix)}
    _require_fit(found, own)
    loaded = {prefix + name: found[name] for name in own if name not in INDEX_BUFFERS}
    model.load_state_dict(loaded, strict=False)
    return _report(checkpoint, config, model, weights, loaded)


def require_kind_of(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint of a kind that no installed package brings: neither a run nor an encoder comes of it.

    Raises:
        ConfigError: It is of such a kind.
    """
    if checkpoint.config.get("kind") not in (None, *ENCODER_PREFIX):
        require_kind(checkpoint.config["kind"], "meta of the checkpoint", checkpoint.kind_package)


def _encoder_weights(weights: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return the encoder's weights by their own names."""
    prefix = _prefix_of(kind)
    found = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    if "pos_embed" in found:
        return found
    elsewhere = sorted(name.removesuffix("pos_embed") for name in weights if _ends_an_encoder(name, weights))
    problem = f"the {kind} checkpoint has no encoder under '{prefix}'"
    if elsewhere:
        problem += f", but one under '{elsewhere[0]}'"
    raise CheckpointError(
        problem,
        where=f"its names start with: {', '.join(sorted({name.split('.')[0] for name in weights})[:8]) or 'nothing'}",
        fix="give the checkpoint as training wrote it, such as <mae run>/checkpoint_best.pt",
        code="XT-CKPT-PREFIX",
    )


def _prefix_of(kind: str) -> str:
    for known, prefix in ENCODER_PREFIX.items():
        if known == kind:
            return prefix
    raise CheckpointError(
        f"unknown kind of checkpoint '{kind}'",
        where="meta of the checkpoint",
        fix=did_you_mean(kind, ENCODER_PREFIX) or f"give a checkpoint of one of {', '.join(ENCODER_PREFIX)}",
        code="XT-CKPT-KIND",
    )


def _ends_an_encoder(name: str, weights: Mapping[str, Tensor]) -> bool:
    prefix = name.removesuffix("pos_embed")
    return name.endswith("pos_embed") and f"{prefix}backbone.stem.0.weight" in weights


def _require_same_view(checkpoint: Checkpoint, config: RunConfig, encoder: Mapping[str, Tensor]) -> None:
    """Refuse a checkpoint whose encoder sees readings differently, with all keys that differ.

    Bare weights tell sizes only, older autoencoders no threshold of the time: what a file does not tell is for the user
    to know, and the report says so.
    """
    ours = _view(config.to_dict())
    sizes = {f"model.{key}": value for key, value in encoder_sizes(encoder).items()}
    theirs = _stored_view(checkpoint.config) if checkpoint.config else sizes
    unknown = checkpoint.meta.get("assumed", ())
    different = [key for key in theirs if key not in unknown and theirs[key] != ours[key]]
    if not different:
        return
    pairs = [f"{key} {_plain(theirs[key])} (here {_plain(ours[key])})" for key in different]
    raise CheckpointError(
        f"the checkpoint's encoder does not see events as this run does: {', '.join(pairs)}",
        where="checkpoint.init_from",
        fix=_options({key: theirs[key] for key in different}),
        code="XT-CKPT-VIEW",
    )


def view_options(config: Mapping[str, Any] | None) -> str:
    """Return the options that let a run see events as a stored encoder does, of what is not the default of a run.

    Empty where the configuration is not valid, which its own finding tells.

    >>> view_options({"model": {"geometry": "compat"}, "normalization": {}})
    '--set model.geometry=compat'
    """
    if not config:
        return ""
    try:
        usual, theirs = _view({}), _stored_view(config)
    except CheckpointError:
        return ""
    if theirs["model.dim_feedforward"] == 4 * theirs["model.encoder_dim"]:
        del theirs["model.dim_feedforward"]  # follows from the other
    return _options({key: value for key, value in theirs.items() if value != usual[key]})


def _options(settings: Mapping[str, object]) -> str:
    return " ".join(f"--set {in_shell(f'{key}={_plain(value)}')}" for key, value in settings.items())


def _stored_view(config: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _view(config)
    except (ValidationError, TypeError, AttributeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        name = ".".join(map(str, first["loc"])) or "normalization and model"
        raise CheckpointError(
            f"the configuration in the checkpoint does not say how its encoder sees events: {name}: {first['msg']}",
            where="checkpoint.init_from",
            fix="give the checkpoint as training wrote it, or run the version of xectool that wrote it",
            code="XT-CKPT-MISMATCH",
        ) from error


def _view(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that decides what the encoder makes of a reading, by dotted key."""
    normalization = NormalizationConfig(**values.get("normalization", {}))
    fields = values.get("model", {})
    encoder = EncoderConfig(**{key: fields[key] for key in ENCODER_KEYS if key in fields})
    view = {f"normalization.{key}": value for key, value in normalization.model_dump().items()}
    view |= {f"model.{key}": getattr(encoder, key) for key in ENCODER_KEYS}
    view["model.dim_feedforward"] = encoder.dim_feedforward or 4 * encoder.encoder_dim
    return view


def is_view(key: str) -> bool:
    """Return whether a key decides what the encoder makes of a reading."""
    section, _, name = key.partition(".")
    return section == "normalization" or (section == "model" and name.split(".")[0] in ENCODER_KEYS)


def _plain(value: object) -> str:
    if value is None:
        return "null"
    return "[" + ",".join(map(str, value)) + "]" if isinstance(value, tuple) else f"{value}"


def _require_fit(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Refuse weights that are not those of the target's encoder although the configurations agree."""
    wrong = [f"{name} missing" for name in own if name not in found]
    wrong += [f"{name} unexpected" for name in found if name not in own]
    for name in own.keys() & found.keys():
        if own[name].shape != found[name].shape:
            wrong.append(f"{name} {tuple(found[name].shape)} (here {tuple(own[name].shape)})")
        elif name in INDEX_BUFFERS and not torch.equal(own[name].cpu(), found[name].cpu()):
            wrong.append(f"{name} of another geometry")
    if wrong:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise CheckpointError(
            f"the encoder's weights contradict the checkpoint's own configuration: {', '.join(wrong[:_NAMED])}{more}",
            where="checkpoint.init_from",
            fix="give the checkpoint as training wrote it, such as <mae run>/checkpoint_best.pt",
            code="XT-CKPT-MISMATCH",
        )


def _report(
    checkpoint: Checkpoint,
    config: RunConfig,
    model: nn.Module,
    weights: Mapping[str, Tensor],
    loaded: Mapping[str, Tensor],
) -> TransferReport:
    prefix = _prefix_of(checkpoint.base_kind)
    left_out = {name: f"not part of the {checkpoint.kind}'s encoder" for name in weights if not name.startswith(prefix)}
    left_out |= {prefix + name: "index table, computed from the geometry" for name in INDEX_BUFFERS}
    fresh = {name: "the checkpoint's encoder has none" for name, _ in model.named_parameters() if name not in loaded}
    sizes = {name: value.numel() for name, value in model.named_parameters()}
    return TransferReport(
        source=checkpoint.kind,
        target=config.kind,
        weights="best" if weights is checkpoint.best else "ema" if weights is checkpoint.ema else "model",
        loaded=tuple(loaded),
        left_out={name: reason for name, reason in left_out.items() if name in weights},
        fresh=fresh,
        loaded_parameters=sum(value.numel() for value in loaded.values()),
        fresh_parameters=sum(sizes[name] for name in fresh),
        assumed=_assumed(checkpoint),
    )


def _assumed(checkpoint: Checkpoint) -> str:
    if not checkpoint.config:
        return _ASSUMED
    unknown = ", ".join(checkpoint.meta.get("assumed", ()))
    return f"the file does not tell {unknown}: it is taken to be as this run says" if unknown else ""


def _grouped(title: str, names: Mapping[str, str]) -> list[str]:
    """Return one line for all tensors that share the first part of their name and the reason."""
    groups: dict[tuple[str, str], int] = {}
    for name, reason in names.items():
        key = (name.split(".")[0], reason)
        groups[key] = groups.get(key, 0) + 1
    return [f"{title}: {first} ({counted(count, 'tensor')}): {reason}" for (first, reason), count in groups.items()]
