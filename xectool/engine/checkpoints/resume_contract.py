"""What each key of a configuration would do to a checkpoint: nothing, no harm, other outputs, or no fit at all."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from xectool.checkpoint.transfer import is_view
from xectool.config.load import config_from_dict
from xectool.config.order_keys import ORDER_KEYS
from xectool.config.root import RunConfig
from xectool.config.serialize import dotted_values, inline_yaml
from xectool.errors import XecError, in_shell
from xectool.models.build import build_model
from xectool.models.regressor import GAUSSIAN_NLL
from xectool.training.saving.resume import OUTPUT_KEYS, is_free, is_idle, is_objective

SAME: Final = "same"
HARMLESS: Final = "harmless"
SILENT: Final = "changes outputs silently"
NO_FIT: Final = "does not fit"
_INNER_WIDTH: Final = "model.dim_feedforward"  # the older system's checkpoints hold it as a number
_SHAPING: Final = ("model.", "tasks.", "training.auto_channel_weight")
_NETWORK: Final = ("model.", "tasks.", "loss_balance")
_READINGS: Final = ("data.npho_branch", "data.time_branch")  # beside what `is_view` names: what the encoder is given
_NEW_BEST: Final = "validation losses before and after do not compare; the best is found anew"
_NOTES: Final = {
    "training.ema_decay": "the average goes on with the new decay, starts now, or is dropped",
    "training.lr": "the new rate applies from the next step",
    "training.amp": "other rounding: not bit for bit",
    "training.compile": "other rounding: not bit for bit",
    "training.device": "other rounding: not bit for bit",
}

Shapes = Mapping[str, tuple[int, ...]]


class _WithoutStorage(TorchFunctionMode):
    """Gives uninitialised tensors, which layers make for their weights, no memory; tables are computed as always."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        settings = dict(kwargs or {})
        if func is torch.empty:
            settings["device"] = "meta"
        return func(*args, **settings)


@dataclass(frozen=True)
class KeyEffect:
    """What one key does when a run goes on from a checkpoint.

    Attributes:
        key: Dotted key.
        saved: Value in the checkpoint.
        current: Value in the configuration.
        effect: ``same``, ``harmless``, ``changes outputs silently`` or ``does not fit``.
        why: One clause.
    """

    key: str
    saved: Any
    current: Any
    effect: str
    why: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether a resume with it would be wrong."""
        return self.effect in (SILENT, NO_FIT)

    def line(self) -> str:
        """Return the key with both values."""
        return f"{self.key}: {_shown(self.saved)} in the checkpoint, {_shown(self.current)} in the configuration"

    def paste(self) -> str:
        """Return the option that takes the value of the checkpoint."""
        return f"--set {in_shell(f'{self.key}={_shown(self.saved)}')}"


def misfits(config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """Return how weights contradict the network their configuration describes.

    Raises:
        ConfigError: The configuration is not valid.
    """
    expected = _blueprint(config_from_dict(config, "the checkpoint's configuration"))
    shapes = {name: tuple(value.shape) for name, value in expected.items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    wrong = [f"{name} is missing" for name in shapes if name not in found]
    wrong += [f"{name} is unexpected" for name in found if name not in shapes]
    wrong += [
        f"{name} is {list(found[name])}, the configuration gives {list(shape)}"
        for name, shape in shapes.items()
        if name in found and found[name] != shape
    ]
    floats = {value.dtype for value in weights.values() if value.is_floating_point()}
    wrong += [
        f"{name} is {_dtype(weights[name])}, the configuration gives {_dtype(value)}"
        for name, value in expected.items()
        if name in weights and weights[name].dtype != value.dtype and not _is_cast(weights[name], value, floats)
    ]
    return tuple(wrong)


def _is_cast(value: torch.Tensor, expected: torch.Tensor, floats: set[torch.dtype]) -> bool:
    """Return whether all floating-point weights were given another width, as is done to save disk."""
    return value.is_floating_point() and expected.is_floating_point() and len(floats) == 1


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def shapes_of(config: RunConfig) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the weights of a configured network; no memory is used for them."""
    return {name: tuple(value.shape) for name, value in _blueprint(config).items()}


def buffers_of(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the tensors of a network that are no parameters, such as masks and tables."""
    network = _network(config_from_dict(config, "the checkpoint's configuration"))
    return frozenset(network.state_dict()) - {name for name, _ in network.named_parameters()}


def _blueprint(config: RunConfig) -> dict[str, torch.Tensor]:
    return dict(_network(config).state_dict())


def _network(config: RunConfig) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]), _WithoutStorage():
        return build_model(config)


def resume_contract(
    saved: Mapping[str, Any], current: RunConfig, meta: Mapping[str, Any], is_older: bool = False
) -> tuple[KeyEffect, ...]:
    """Return the effect of every key a checkpoint stores, worst first.

    Args:
        saved: Configuration in the checkpoint; keys it does not store are not judged.
        current: Configuration of the run that would go on.
        meta: Facts of the checkpoint, for its place in the epoch.
        is_older: Whether the older system wrote it, which stores less: of a loss no more than whether it has a width.
    """
    before, now = dotted_values(saved), dotted_values(current.to_dict())
    before, now = _written_out(before, now), _written_out(now, before)
    judge = _Judge(saved, current, meta)
    if is_older or "training" not in saved:  # what is not stored differs from nothing
        keys = [key for key in before if not (is_older and _is_untold_loss(key, before[key], now.get(key)))]
    else:
        keys = [*before, *(key for key in now if key not in before and key.split(".")[0] in saved)]
    found = [judge.effect(key, before.get(key), now.get(key)) for key in keys]
    order = (NO_FIT, SILENT, HARMLESS, SAME)
    return tuple(sorted(found, key=lambda item: order.index(item.effect)))


def _is_untold_loss(key: str, before: Any, now: Any) -> bool:
    return key.startswith("tasks.") and key.endswith(".loss_fn") and GAUSSIAN_NLL not in (before, now)


def _written_out(values: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys with the width that null stands for, where the other side holds it as a number."""
    if values.get(_INNER_WIDTH, 0) is None and other.get(_INNER_WIDTH) and "model.encoder_dim" in values:
        return values | {_INNER_WIDTH: 4 * values["model.encoder_dim"]}
    return values


class _Judge:
    def __init__(self, saved: Mapping[str, Any], current: RunConfig, meta: Mapping[str, Any]) -> None:
        self.saved, self.current = saved, current.to_dict()
        self.same_kind = saved.get("kind", current.kind) == current.kind
        progress = meta.get("progress")
        self.progress: Mapping[str, Any] = progress if isinstance(progress, Mapping) else {}
        self.changes_shapes = cache(self._changes_shapes)

    def effect(self, key: str, before: Any, now: Any) -> KeyEffect:
        if _plain(before) == _plain(now):
            return KeyEffect(key, before, now, SAME)
        effect, why = next(self._judgements(key, before, now))
        return KeyEffect(key, before, now, effect, why)

    def _judgements(self, key: str, before: Any, now: Any) -> Iterator[tuple[str, str]]:
        """Yield the effect and the reason; the first one counts."""
        if key == "data.exclude" and self.same_kind and set(before or ()) <= set(now or ()):
            yield HARMLESS, "more events are left out; inside an epoch, of the rest of it in its order"
        yield from self._refusals(key, now)
        if not self.same_kind:
            yield self._of_another_kind(key)
        if now == "auto" and before is not None and key.endswith((".scale", ".shift", ".ema_decay")):
            yield HARMLESS, "auto takes the number from the checkpoint"
        if is_idle(key, self.saved, self.current):
            yield HARMLESS, "the task is off in both"
        if is_free(key, before, now):
            yield HARMLESS, _NEW_BEST if is_objective(key) else "acts in training only"
        if key.startswith(_SHAPING) and self.changes_shapes(key):
            yield NO_FIT, "weights of other names or shapes"
        if key.startswith(OUTPUT_KEYS):
            yield SILENT, self._meaning(key, before)
        yield HARMLESS, _NOTES.get(key, "does not touch the weights")

    def _of_another_kind(self, key: str) -> tuple[str, str]:
        """Return what a key does to a network of another kind, which can take the encoder and nothing else."""
        if is_view(key):
            return SILENT, "its encoder sees events in another way"
        if key in _READINGS:
            return SILENT, "its encoder learned other readings"
        return HARMLESS, "of another network" if key.startswith(_NETWORK) else "a run of another kind starts anew"

    def _refusals(self, key: str, now: Any) -> Iterator[tuple[str, str]]:
        """Yield why a resume cannot go on at all."""
        if key == "kind":
            yield NO_FIT, "another network; its encoder can be taken with checkpoint.init_from"
        if not self.same_kind:  # there is nothing to go on with
            return
        if key == "loss_balance":
            yield NO_FIT, "the loss has learned other weights"
        if key == "model.freeze_encoder":
            yield NO_FIT, "the optimizer has moments of other weights"
        if self.progress.get("batch") and any(key == order or key.startswith(f"{order}.") for order in ORDER_KEYS):
            yield NO_FIT, "the checkpoint lies inside an epoch, which would go on with other batches"
        if key == "training.epochs" and int(self.progress.get("epoch", 0)) > int(now or 0):
            yield NO_FIT, f"{int(self.progress['epoch']) - 1} epochs are done, so none is left"

    def _meaning(self, key: str, before: Any) -> str:
        if key.endswith(".enabled"):
            return "the head was not trained with this task" if not before else "the task is no longer learnt"
        if key.startswith("data."):
            return "the weights load, and the network reads or learns something else"
        return "the weights load, and mean something else"

    def _changes_shapes(self, key: str) -> bool:
        """Return whether this key alone gives the saved network other weights."""
        changed = copy.deepcopy(dict(self.saved))
        _put(changed, key, dotted_values(self.current).get(key))
        try:
            return shapes_of(config_from_dict(changed, key)) != self._saved_shapes()
        except XecError:  # the key makes no network together with the others
            return True

    def _saved_shapes(self) -> Shapes:
        return shapes_of(config_from_dict(self.saved, "the checkpoint's configuration"))


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        values = values.setdefault(part, {})
    values[last] = value


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    return inline_yaml(_plain(value))
