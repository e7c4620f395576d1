"""What kind of checkpoint some contents are: whose layout, which network, which sets of weights, what else is in it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from xectool.checkpoint import foreign, held_networks, wrapped_names
from xectool.checkpoint.format import FORMAT_NAME, num_lost
from xectool.checkpoint.inspection.contents import Contents
from xectool.checkpoint.inspection.families import family
from xectool.checkpoint.inspection.tree import Opaque
from xectool.errors import CheckpointError

XECTOOL: Final = "xectool"
OLDER: Final = "older system"
_WEIGHT_KEYS = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "params", "module", "teacher")
_AVERAGE_KEYS = ("state_dict_ema", "ema_state_dict", "model_ema", "ema")
_OPTIMIZER_KEYS = ("optimizer_state_dict", "optimizer_states", "optimizer")
_SCHEDULER_KEYS = ("scheduler_state_dict", "lr_schedulers", "lr_scheduler", "scheduler")
_SCALER_KEYS = ("scaler_state_dict", "scaler", "amp_scaler", "MixedPrecision", "MixedPrecisionPlugin")
_STEP_KEYS = ("step", "global_step", "iteration")
_MAX_NESTED: Final = 2
_MANGLED: Final = re.compile(r"\.___torch_mangle_\d+")  # counts classes of one name in the process that wrote the file


@dataclass(frozen=True)
class Layout:
    """What a checkpoint is.

    Attributes:
        origin: Who writes files like this: ``xectool``, ``older system``, ``Lightning``, ``timm``, ...
        kind: ``regressor``, ``mae``, ``inpainter``, ``encoder`` where it is one of ours, else a description.
        weights: Sets of weights by role (``model``, ``ema``, ``best``), each by name without wrappers.
        wrappers: What wrappers had put in front of every name.
        config: The stored configuration; of the older system translated to ours.
        meta: Facts stored beside the weights.
        training: What a resume needs beyond the weights: optimizer, scheduler, scaler, rng, ...
        epoch: Epoch as stored.
        step: Optimizer steps as stored.
        notes: What the reader should know about the layout.
    """

    origin: str
    kind: str
    weights: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    epoch: int | None = None
    step: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether the weights are those of one of our networks."""
        return self.origin == XECTOOL or self.kind in foreign.ENCODER_PREFIX

    @property
    def main(self) -> Mapping[str, Tensor]:
        """The raw weights, or the only set there is."""
        return self.weights.get("model") or next(iter(self.weights.values()), {})

    @property
    def num_lost(self) -> int:
        """How many steps an average had seen that is gone; 0 where it is there, or none was kept."""
        return num_lost(self.meta, self.weights.get("ema")) if self.weights.get("model") else 0


def recognise(contents: Contents) -> Layout:
    """Return what some contents are; every file that could be read gets an answer."""
    payload = contents.payload
    if contents.format == "safetensors":
        return _safetensors(contents)
    if contents.format == "onnx":
        producer = str(contents.facts.get("producer") or "unknown")
        return Layout(f"ONNX, by {producer}", "graph", {"model": _tensors(payload)}, meta=contents.facts["metadata"])
    if contents.format == "torch-export":
        kind = "graph" if contents.facts["graphs"] or not contents.facts["compiled"] else "compiled graph"
        return Layout("torch.export", kind, {"model": _tensors(payload)}, meta=contents.facts["metadata"])
    if isinstance(payload, Opaque):
        script = contents.format == "torchscript"
        name = _MANGLED.sub("", payload.name)
        return Layout("TorchScript" if script else "pickled object", name, {"model": _tensors(payload.weights)})
    if isinstance(payload, Tensor):
        return Layout("PyTorch", "one tensor", {"model": {"tensor": payload}})
    if isinstance(payload, Mapping):
        return _dictionary(payload)
    many = dict(enumerate(payload)) if isinstance(payload, list | tuple) else {}
    if many and all(isinstance(item, Tensor) for item in many.values()):
        return Layout("PyTorch", f"a {type(payload).__name__} of {len(many)} tensors", {"model": _tensors(many)})
    return Layout("PyTorch", f"a {type(payload).__name__} without weights")


def _dictionary(payload: Mapping[Any, Any]) -> Layout:
    if payload.get("format") == FORMAT_NAME:
        return _ours(payload)
    named = {str(key): value for key, value in payload.items()}
    if foreign.is_foreign(named):
        return _older(named)
    if "pytorch-lightning_version" in named:
        return _lightning(named)
    return _generic(named)


def _ours(payload: Mapping[Any, Any]) -> Layout:
    meta = _json(payload.get("meta"))
    sets = {role: _tensors(payload.get(role)) for role in ("model", "ema")}
    training = payload.get("training")
    config = meta.get("config")
    return Layout(
        origin=XECTOOL,
        kind=str(meta.get("kind", "unknown")),
        weights={role: weights for role, weights in sets.items() if weights},
        config=config if isinstance(config, Mapping) else None,
        meta=meta,
        training=_sections(training) if isinstance(training, Mapping) else {},
        epoch=_whole(meta.get("epoch")),
        step=_whole(meta.get("step")),
    )


def _older(payload: Mapping[str, Any]) -> Layout:
    layout, version = foreign.recognise(payload), payload.get("pytorch-lightning_version")
    config: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    try:
        config = foreign.to_config(payload)
    except CheckpointError as error:
        notes = (str(error).splitlines()[0],)
    kept = ("epoch", "best_val_loss", "mlflow_run_id", "stripped")
    return Layout(
        origin=OLDER if foreign.is_older(payload) else f"Lightning {version}" if version else "PyTorch",
        kind=layout.kind,
        weights={which: foreign.state_dict(payload, which) for which in layout.weights},
        wrappers=foreign.prefixes(payload),
        config=config,
        meta={key: payload[key] for key in kept if key in payload}
        | {"num_averaged": _count(payload.get("ema_state_dict")), "assumed": foreign.assumed(payload)},
        training=_training(payload),
        epoch=layout.epoch,
        step=_whole(payload.get("global_step")),
        notes=notes,
    )


def _lightning(payload: Mapping[str, Any]) -> Layout:
    weights, wrappers = unwrapped(_tensors(payload.get("state_dict")))
    raw, _ = unwrapped(_tensors(payload.get("current_model_state")))  # beside it, "state_dict" is the average
    sets = {"model": raw, "ema": weights} if raw else {"model": weights}
    version = payload.get("pytorch-lightning_version")
    hyper = payload.get("hyper_parameters")
    several = ", ".join(name or "the module itself" for name in held_networks.held(payload))
    several = f" with more than one network of this project: {several}" if several else ""
    return Layout(
        origin=f"Lightning {version}",
        kind=family(weights) or f"a LightningModule{several}",
        weights={role: found for role, found in sets.items() if found},
        wrappers=wrappers,
        meta={"hyper_parameters": hyper} if isinstance(hyper, Mapping) else {},
        training=_training(payload),
        epoch=_whole(payload.get("epoch")),
        step=_whole(payload.get("global_step")),
    )


def _generic(payload: Mapping[str, Any]) -> Layout:
    """Return the layout of a dictionary that nobody has signed."""
    model, place = _find_weights(payload)
    weights, wrappers = unwrapped(model)
    sets = {"model": weights} if weights else {}
    for key in _AVERAGE_KEYS:
        average, _ = unwrapped(_tensors(payload.get(key)))
        if average and key != place:
            sets["ema"] = average
    known = family(weights)
    is_timm = (known or "").startswith("timm") or {"arch", "args", "version"} <= payload.keys()
    found = "a state dict" if place is None else f"a state dict under '{place}'"
    arch = payload.get("arch")
    return Layout(
        origin="timm" if is_timm else "PyTorch",
        kind=known or (found if weights else _without_weights(payload)),
        weights=sets,
        wrappers=wrappers,
        meta={"arch": arch} if isinstance(arch, str) else {},
        training=_training(payload) if place is not None else {},
        epoch=_whole(payload.get("epoch")),
        step=next((_whole(payload.get(key)) for key in _STEP_KEYS if key in payload), None),
    )


def _without_weights(payload: Mapping[str, Any]) -> str:
    return "an optimizer state" if {"state", "param_groups"} <= payload.keys() else "no weights"


def _safetensors(contents: Contents) -> Layout:
    weights, wrappers = unwrapped(_tensors(contents.payload))
    metadata = {str(key): str(value) for key, value in contents.facts.get("metadata", {}).items()}
    meta = _json(metadata.get(FORMAT_NAME)) if FORMAT_NAME in metadata else {}
    config = meta.get("config")
    if meta:
        shaped = config if isinstance(config, Mapping) else None
        return Layout(XECTOOL, str(meta.get("kind", "unknown")), {"model": weights}, wrappers, shaped, meta)
    if foreign.is_foreign(weights):
        kind = foreign.recognise(weights).kind
        origin, notes = OLDER if foreign.is_older(weights) else "safetensors", ("it holds no configuration",)
        return Layout(origin, kind, {"model": weights}, wrappers, meta=metadata, notes=notes)
    known = family(weights)
    origin = "timm" if (known or "").startswith("timm") else "safetensors"
    return Layout(origin, known or "a state dict", {"model": weights} if weights else {}, wrappers, meta=metadata)


def unwrapped(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return weights without what wrappers put in front of every name or inside some, and what that was."""
    wrappers: list[str] = []
    found = {name: value for name, value in weights.items() if name != held_networks.EMA_COUNTER}
    while found and (wrapper := _shared_wrapper(found)):
        wrappers.append(wrapper)
        found = {name.removeprefix(wrapper): value for name, value in found.items()}
    inside = [wrapper for wrapper in wrapped_names.INNER_WRAPPERS if any(f".{wrapper}" in name for name in found)]
    for wrapper in inside:
        found = {name.replace(f".{wrapper}", "."): value for name, value in found.items()}
    return found, tuple(dict.fromkeys(wrappers + inside))


def _shared_wrapper(weights: Mapping[str, Any]) -> str | None:
    known = dict.fromkeys(wrapped_names.WRAPPERS + wrapped_names.INNER_WRAPPERS)
    return next((wrapper for wrapper in known if all(name.startswith(wrapper) for name in weights)), None)


def _find_weights(payload: Mapping[str, Any]) -> tuple[dict[str, Tensor], str | None]:
    own = {name: value for name, value in payload.items() if isinstance(value, Tensor)}
    if len(own) * 2 > len(payload):
        return own, None
    for key in _WEIGHT_KEYS:
        found = _tensors(payload.get(key))
        if found:
            return found, key
    sets = {key: _tensors(value, _MAX_NESTED) for key, value in payload.items() if key not in _OPTIMIZER_KEYS}
    largest = max(sets, key=lambda key: len(sets[key]), default=None)
    return (sets[largest], largest) if largest is not None and sets[largest] else (own, None)


def _sections(training: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the sections with a word in place of a tensor, which is no section and has no truth value."""
    return {str(name): "a tensor" if isinstance(value, Tensor) else value for name, value in training.items()}


def _training(payload: Mapping[str, Any]) -> dict[str, Any]:
    places = (("optimizer", _OPTIMIZER_KEYS), ("scheduler", _SCHEDULER_KEYS), ("scaler", _SCALER_KEYS))
    payload = _sections(payload)
    found = {
        name: next((payload[key] for key in keys if payload.get(key) not in (None, [], ())), None)
        for name, keys in places
    }
    single = {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in found.items()}
    return {name: value for name, value in single.items() if value is not None}


def _tensors(value: Any, depth: int = 0) -> dict[str, Tensor]:
    """Return the tensors of a dictionary by name; those of dictionaries in it have dotted names."""
    if isinstance(value, Opaque):
        value = value.weights
    if not isinstance(value, Mapping):
        return {}
    found: dict[str, Tensor] = {str(name): item for name, item in value.items() if isinstance(item, Tensor)}
    if found or depth == _MAX_NESTED:
        return found
    parts = {str(name): _tensors(item, depth + 1) for name, item in value.items()}
    return {f"{name}.{inner}": item for name, part in parts.items() for inner, item in part.items()}


def _count(average: Any) -> int | None:
    value = average.get(held_networks.EMA_COUNTER) if isinstance(average, Mapping) else None
    if not isinstance(value, Tensor) or value.numel() != 1 or value.device.type == "meta" or value.is_complex():
        return None
    return int(value) if math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _json(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
