"""What every command that predicts loads: a model with its weights; and in which order events are served."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import nn

from xectool.checkpoint import store
from xectool.checkpoint.extract import ENCODER
from xectool.checkpoint.format import FORMAT_NAME, Checkpoint
from xectool.checkpoint.soundness import require_finite
from xectool.config.document import parse_value
from xectool.config.load import config_from_dict
from xectool.config.overrides import key_of
from xectool.config.root import RunConfig
from xectool.config.serialize import dotted_values, inline_yaml, starting_from
from xectool.config.tasks import SIGNED_TASKS
from xectool.config.training import MAX_HOPS
from xectool.data.events import EventSource
from xectool.data.loader import EventLoader
from xectool.engine.model_files import exported_format
from xectool.errors import CheckpointError, UsageError, in_shell, unknown_choice
from xectool.findings import Finding, Severity
from xectool.models.build import build_model
from xectool.models.regressor import GAUSSIAN_NLL
from xectool.tasks import build_task
from xectool.tasks.base import TrainingTask
from xectool.training.process.device import Execution, plan_execution
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.build import sequential_loader
from xectool.training.stepping.state import load_task, load_weights

_WINDOW_EVENTS = 512
_EVENTS_AT_ONCE = 256
_FEWEST_ON_CPU, _MOST_ON_CPU, _WIDTHS_ON_CPU = 16, 64, 16_384
_OF_SENSORS: Final = ("training.loss_fn", "training.loss_beta", "training.npho_weight", "training.time.weight")
WEIGHTS = ("auto", "ema", "model", "best")


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to predict.

    Attributes:
        config: What it was trained with.
        network: The network with its weights, on its device.
        task: What it was trained on.
        execution: Device and precision.
        checkpoint: Where it comes from.
        notes: What is worth knowing about how it runs.
        engine: What computes: ``eager`` PyTorch, or the format of an exported file.
        told: ``section.key=value`` strings of what its file does not tell.
        may_be_told: Keys that its file does not tell and the command takes.
    """

    config: RunConfig
    network: nn.Module
    task: TrainingTask
    execution: Execution
    checkpoint: Checkpoint
    notes: tuple[Finding, ...] = ()
    engine: str = "eager"
    told: tuple[str, ...] = ()
    may_be_told: tuple[str, ...] = ()


def check_options(weights: str, batch_size: int | None, max_events: int | None) -> None:
    """Refuse options that no prediction can be made with.

    Raises:
        UsageError: An option is out of range.
    """
    if weights not in WEIGHTS:
        raise unknown_choice("weights", weights, WEIGHTS, "--weights")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"a batch of {batch_size} events", where="--batch-size", fix="--batch-size 64")
    if max_events is not None and max_events < 1:
        raise UsageError(f"{max_events} events leave nothing to predict", where="--max-events", fix="--max-events 1000")


def check_hops(hops: int | None) -> None:
    """Refuse a reach of neighbours that no estimate is made with.

    Raises:
        UsageError: It is out of range.
    """
    if hops is not None and not 1 <= hops <= MAX_HOPS:
        raise UsageError(f"neighbours within {hops} hops", where="--hops", fix=f"--hops 1   # up to {MAX_HOPS}")


def load_checkpoint(path: str | Path, weights: str) -> Checkpoint:
    """Return the checkpoint; ``best`` is the best one of its run, whichever checkpoint of the run is named.

    Raises:
        UsageError: It is an exported file, or an encoder alone.
        CheckpointError: There is none, or none that is sound.
    """
    path = Path(os.path.expanduser(path))
    graph = exported_format(path)
    if graph is not None:
        raise UsageError(
            f"{path} is an exported file ({graph}): it predicts, and here the checkpoint it was made from is needed",
            where=str(path),
            fix=f"give that checkpoint; xectool inspect-ckpt {in_shell(path)} names it",
        )
    checkpoint = store.load(path)
    if checkpoint.kind == ENCODER:
        raise UsageError(
            f"{path} is an encoder alone, which predicts nothing: it is there for another network to start from",
            where=str(path),
            fix=f"xectool train CONFIG {starting_from(path)}",
        )
    best = path.with_name(store.BEST_NAME)
    if weights != "best" or checkpoint.best or path == best:
        return checkpoint
    if not best.exists():
        raise CheckpointError(
            "the best weights are asked for, and the run has no best checkpoint",
            where=str(best),
            fix="--weights ema, or --weights model",
            code="XT-CKPT-NO-BEST",
        )
    return store.load(best)


def ready_model(
    checkpoint: Checkpoint, name: str | Path, weights: str, device: str | None, told: Sequence[str] | None = None
) -> LoadedModel:
    """Return the network and task of a checkpoint with the wanted weights.

    Args:
        checkpoint: What was loaded.
        name: How the user named it.
        weights: One of :data:`WEIGHTS`.
        device: Device that goes before the configuration's.
        told: ``section.key=value`` strings of keys that the checkpoint does not tell; None: the command takes none.

    Raises:
        XecError: The checkpoint does not fit its configuration or is not finite, or the device does not exist.
    """
    config = config_from_dict(checkpoint.config, str(name), told or (), package=checkpoint.kind_package)
    # In float32, whatever it was trained in: bfloat16 rounds a predicted sensor by up to 1.6 % of its photons.
    execution = plan_execution(config.training.model_copy(update={"compile": "none", "amp": "off"}), device)
    network = build_model(config)
    chosen = checkpoint.weights(weights)
    require_finite(chosen, name)
    fix = f"xectool inspect-ckpt {in_shell(name)}   # what it holds; then give a sound one"
    load_weights(network, chosen, fix)
    network = network.to(execution.device)
    task = build_task(config, network).to(execution.device)
    load_task(task, checkpoint)
    notes = assumptions(checkpoint.meta, str(name), told)
    may_be_told = () if told is None else untold(checkpoint)
    return LoadedModel(config, network, task, execution, checkpoint, notes, "eager", tuple(told or ()), may_be_told)


def assumptions(meta: Mapping[str, Any], where: str, told: Sequence[str] | None = ()) -> tuple[Finding, ...]:
    """Return what is said where a checkpoint of the older system does not tell how readings were normalised."""
    or_told = "" if told is None else "tell predict and export --set {key}=VALUE, or "
    return tuple(
        Finding(
            "XT-CKPT-ASSUMED",
            Severity.INFO,
            f"the file does not tell {key}: {value}, the default of the older system, is assumed",
            where,
            fix=f"nothing, if that training kept the default; else {or_told.format(key=key)}fine-tune from it: "
            f"{starting_from(where)} --set {key}=VALUE",
        )
        for key, value in meta.get("assumed", {}).items()
        if key not in map(key_of, told or ())
    )


def told_of(checkpoint: Checkpoint, settings: Sequence[str]) -> list[str]:
    """Return the ``section.key=value`` strings whose keys a checkpoint of the older system does not tell.

    Raises:
        UsageError: One cannot be: a head shows whether it predicts a width.
    """
    told = [setting for setting in settings if key_of(setting) in untold(checkpoint)]
    for setting in told:
        value = parse_value(setting.partition("=")[2], f"--set {setting}")
        if key_of(setting).endswith(".loss_fn") and value == GAUSSIAN_NLL:
            raise UsageError(
                f"{key_of(setting)} was not {GAUSSIAN_NLL}: the head of this network predicts no width",
                where=f"--set {setting}",
                fix=f"leave out --set {setting}",
            )
    return told


def untold(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the keys that a checkpoint of the older system does not tell; none of ours."""
    if checkpoint.origin == FORMAT_NAME:
        return ()
    tasks = {name: task for name, task in checkpoint.config.get("tasks", {}).items() if task.get("enabled")}
    losses = [f"tasks.{name}.{key}" for name, task in tasks.items() for key in _untold_of_task(name, task)]
    return (*(losses if checkpoint.base_kind == "regressor" else _OF_SENSORS), *checkpoint.meta.get("assumed", {}))


def _untold_of_task(name: str, task: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys that are not told of a task: its head shows a width, and a logarithm needs positive targets."""
    if name not in SIGNED_TASKS:
        yield "log_transform"
    if task["loss_fn"] != GAUSSIAN_NLL:
        yield "loss_fn"
    yield from ("loss_beta", "weight")


def assumed_losses(loaded: LoadedModel, where: str, outputs_alone: bool = False) -> tuple[Finding, ...]:
    """Return what is said of the losses of a checkpoint of the older system that nobody has told.

    Args:
        loaded: The network.
        where: How the user named its file.
        outputs_alone: Only of what changes the network's outputs; without, of ``val/loss`` too.
    """
    said = {*loaded.checkpoint.meta.get("assumed", {}), *map(key_of, loaded.told)}
    keys = [key for key in untold(loaded.checkpoint) if key not in said]
    of_outputs = [key for key in keys if key.endswith(".log_transform")]
    keys = of_outputs if outputs_alone else keys
    if not keys:
        return ()
    values = dotted_values(loaded.config.to_dict())
    lines: dict[str, list[str]] = {}
    for section, _, key in (key.rpartition(".") for key in keys):
        lines.setdefault(section, []).append(f"{key} {inline_yaml(values[f'{section}.{key}'])}")
    logarithm = [f"no logarithm for {', '.join(key.split('.')[1] for key in of_outputs)}"] if of_outputs else []
    means = ", and ".join([*([] if outputs_alone else ["the defaults are assumed for val/loss"]), *logarithm])
    return (
        Finding(
            "XT-CKPT-ASSUMED",
            Severity.INFO,
            f"the file does not tell its losses: {means}",
            where,
            tuple(f"{section}: {', '.join(told)}" for section, told in lines.items()),
            f"nothing, if that training kept the defaults; else tell each: --set {(of_outputs or keys)[0]}=VALUE",
        ),
    )


def events_at_once(loaded: LoadedModel, asked: int | None) -> int:
    """Return the events of one forward pass: those asked for, else the fastest by ``benchmarks.prediction``.

    On a CPU the numbers between two layers should stay in its cache: a batch of 256 takes 1.3 to 1.7 times the time.
    """
    if asked is not None:
        return asked
    if loaded.execution.device.type != "cpu":
        return _EVENTS_AT_ONCE
    return max(_FEWEST_ON_CPU, min(_MOST_ON_CPU, _WIDTHS_ON_CPU // loaded.config.model.encoder_dim))


def served_in_order(loaded: LoadedModel, source: EventSource, batch_size: int) -> EventLoader:
    """Return a loader of all events in file order, whose memory does not follow the training's window.

    A training shuffles inside ``data.chunksize`` events; a prediction that held as many would need more memory for
    200 000 events than for 2000.
    """
    window = {"num_workers": 0, "num_shards": 1, "chunksize": max(2 * batch_size, _WINDOW_EVENTS)}
    if loaded.execution.device.type == "cpu":  # one thread reads ahead ten times faster than a network predicts there
        window["num_threads"] = 1
    # Options of worker processes mean nothing without any, and the schema does not need to be asked again.
    config = loaded.config.model_copy(update={"data": loaded.config.data.model_copy(update=window)})
    return sequential_loader(source, config, loaded.execution, Ranks(), batch_size)
