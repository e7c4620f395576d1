"""Everything a run is at a step boundary, to and from a checkpoint."""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

import xectool
from xectool.checkpoint.format import Checkpoint
from xectool.config.root import KIND_PACKAGES
from xectool.errors import CheckpointError, counted
from xectool.training.stepping.epoch_stats import EpochStats
from xectool.training.stepping.parts import RunParts

_ANEW = "--set checkpoint.init_from=PATH"
_SAVED_CONFIG = "use the configuration saved beside the checkpoint (config.yaml)"


@dataclass
class Progress:
    """Where a run stands; all counters are those after the last finished step.

    Attributes:
        epoch: The epoch in progress, from 1.
        batch: Micro-batches of that epoch already used, as this number of ranks counts them.
        position: Events of that epoch already used or left out, on all ranks; the same whatever their number.
        step: Optimizer steps of the run, skipped ones included.
        stats: Sums of the epoch in progress.
        history: Metrics of the finished epochs.
        best_loss: Lowest validation loss so far.
        best_epoch: Epoch it was reached in; 0 before the first.
        epochs_since_best: Validated epochs without improvement.
        rewinds: Times the run went back to an earlier state.
        grad_clip: Largest gradient norm somebody asked for while the run went on; None for the configuration's.
    """

    epoch: int = 1
    batch: int = 0
    position: int = 0
    step: int = 0
    stats: EpochStats = field(default_factory=EpochStats)
    history: list[dict[str, float]] = field(default_factory=list)
    best_loss: float = float("inf")
    best_epoch: int = 0
    epochs_since_best: int = 0
    rewinds: int = 0
    grad_clip: float | None = None

    def forget_best(self) -> None:
        """Let the next validation set a new best."""
        self.best_loss, self.best_epoch, self.epochs_since_best = float("inf"), 0, 0


def capture(parts: RunParts, progress: Progress, facts: dict[str, Any]) -> Checkpoint:
    """Return the checkpoint of a run between two steps.

    Args:
        parts: What is trained.
        progress: Where it stands.
        facts: Lineage and data identity that the resume verifies.
    """
    meta = {
        "kind": parts.config.kind,
        "kind_package": KIND_PACKAGES.get(parts.config.kind, ""),
        "config": parts.config.to_dict(),
        "progress": asdict(progress),
        "epoch": progress.epoch,
        "step": progress.step,
        "world_size": parts.ranks.world_size,
        "num_averaged": parts.average.num_averaged,
        "guard": parts.guard.state_dict(),
        "spikes": parts.spikes.state_dict(),
        "quarantine": parts.quarantine.state_dict(),
        "schedule": parts.schedule.state_dict(),
        "created": time.time(),
        "versions": {
            "xectool": xectool.__version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        **facts,
    }
    training = {
        "optimizer": parts.stepper.optimizer.state_dict(),
        "scaler": parts.stepper.scaler.state_dict(),
        "task": dict(parts.task.state_dict()),
        "rng": _random_state(),
    }
    return Checkpoint(meta, dict(parts.model.state_dict()), parts.average.weights(), training)


def restore(parts: RunParts, checkpoint: Checkpoint) -> Progress:
    """Continue a run from its checkpoint and return where it stands.

    Raises:
        CheckpointError: Its tensors do not fit the configured model, optimizer or loss.
    """
    load_weights(parts.model, checkpoint.model)
    load_task(parts.task, checkpoint)
    _require_moments(checkpoint)
    load_optimizer(parts.stepper.optimizer, checkpoint.training["optimizer"])
    # A run that trained without gradient scaling saved none; one that turns it on starts from the default scale.
    if checkpoint.training["scaler"]:
        parts.stepper.scaler.load_state_dict(checkpoint.training["scaler"])
    parts.average.load(checkpoint.ema, int(checkpoint.meta["num_averaged"]))
    parts.schedule.load_state_dict(checkpoint.meta["schedule"])
    parts.guard.load_state_dict(checkpoint.meta["guard"])
    # Runs of earlier versions had neither.
    if "spikes" in checkpoint.meta:
        parts.spikes.load_state_dict(checkpoint.meta["spikes"])
        parts.quarantine.load_state_dict(checkpoint.meta["quarantine"], checkpoint.meta.get("train_files", ()))
    _restore_random_state(checkpoint.training["rng"])
    saved = dict(checkpoint.meta["progress"])
    saved["stats"] = EpochStats(**saved["stats"])
    # Runs of earlier versions had one rank and did not count events.
    saved.setdefault("position", int(saved["batch"]) * int(checkpoint.config["data"]["batch_size"]))
    saved["batch"] = int(saved["position"]) // parts.train_loader.plan.global_batch_size
    return Progress(**saved)


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor], fix: str | None = None) -> None:
    """Load weights that must fit exactly.

    Args:
        model: Network to load them into.
        weights: Its state dict.
        fix: What the user does where they do not fit; by default, use the configuration saved beside them.

    Raises:
        CheckpointError: Keys or shapes differ; the message counts and names them.
    """
    own = model.state_dict()
    missing = sorted(own.keys() - weights.keys())
    unexpected = sorted(weights.keys() - own.keys())
    reshaped = [
        f"{key} {tuple(weights[key].shape)} (model: {tuple(own[key].shape)})"
        for key in sorted(own.keys() & weights.keys())
        if own[key].shape != weights[key].shape
    ]
    if missing or unexpected or reshaped:
        raise CheckpointError(
            f"the weights do not fit the configured model: {counted(len(missing), 'key')} missing {missing[:3]}, "
            f"{len(unexpected)} unexpected {unexpected[:3]}, {len(reshaped)} of another shape {reshaped[:3]}",
            where="model section of the configuration",
            fix=fix or _SAVED_CONFIG,
            code="XT-CKPT-MISMATCH",
        )
    model.load_state_dict(weights)


def load_task(task: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Load what the loss has learned, such as the weights of an automatic balance; of foreign layouts nothing is known.

    Raises:
        CheckpointError: The loss learns other things than the one that was saved.
    """
    saved = checkpoint.training.get("task")
    if saved is None:
        return
    if saved.keys() != task.state_dict().keys():
        raise CheckpointError(
            f"the loss of the checkpoint has learned {sorted(saved) or 'nothing'}, the configured one learns "
            f"{sorted(task.state_dict()) or 'nothing'}",
            where="loss_balance",
            fix=f"--set loss_balance={checkpoint.config.get('loss_balance', 'manual')}   # as in the checkpoint; else "
            f"a new run from its weights, without --resume: {_ANEW}",
            code="CFG-46",
        )
    task.load_state_dict(saved)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the moments of an optimizer; rates stay the configuration's.

    Raises:
        CheckpointError: They belong to other parameters.
    """
    sizes = [len(group["params"]) for group in state["param_groups"]]
    if sizes != [len(group["params"]) for group in optimizer.param_groups] or not _shapes_fit(optimizer, state):
        raise CheckpointError(
            "the optimizer state belongs to another set of parameters",
            where="tasks or model section of the configuration",
            fix=f"{_ANEW}   # a new run from the weights, without --resume",
            code="XT-CKPT-OPTIMIZER",
        )
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    # The rate of decay is the configuration's, like the learning rate; the state brings only the moments.
    for group, decay in zip(optimizer.param_groups, decays, strict=True):
        group["weight_decay"] = decay


def _require_moments(checkpoint: Checkpoint) -> None:
    progress = checkpoint.meta["progress"]
    step, epochs = int(progress["step"]), progress.get("history", [])
    skipped = progress.get("stats", {}).get("skipped", 0) + sum(one.get("train/skipped_steps", 0.0) for one in epochs)
    if step > skipped and not checkpoint.training["optimizer"]["state"]:
        raise CheckpointError(
            f"the checkpoint is of step {step} and holds no optimizer state: its moments were lost",
            where="the checkpoint",
            fix=f"{_ANEW}   # a new run from the weights, without --resume; or resume an older checkpoint",
            code="XT-CKPT-OPTIMIZER",
        )


def _shapes_fit(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> bool:
    own = [p for group in optimizer.param_groups for p in group["params"]]
    return all(
        not torch.is_tensor(moment) or moment.ndim == 0 or moment.shape == own[index].shape
        for index, entry in state["state"].items()
        for moment in entry.values()
        if index < len(own)
    )


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Give every source of random numbers of the process its state back at the end."""
    saved = _random_state()
    try:
        yield
    finally:
        _restore_random_state(saved)


def _random_state() -> dict[str, Any]:
    name, keys, position, has_gauss, cached = np.random.get_state()
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached],
        "python": [version, list(internal), gauss_next],
    }


def _restore_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
