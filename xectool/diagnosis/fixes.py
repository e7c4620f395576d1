"""Lines to paste: every command names keys and options that exist, and the run it is about."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Final

from xectool.diagnosis.evidence import Evidence
from xectool.diagnosis.files import CONFIG_FILE

LR_DIVISOR: Final = 10.0  # F033: training.lr: OLD/10
RECOVERY_CLIP: Final = 0.5  # F042
LEAST_LR: Final = 1e-9
LARGEST_LR: Final = 1e-2  # CFG-29
DEFAULT_LR: Final = 3e-4  # defaults of training.lr, of the regressor and of the sensor-level kinds
DEFAULT_LR_SENSORS: Final = 1e-4
_BEST, _LAST = "checkpoint_best.pt", "checkpoint_last.pt"


def train_again(evidence: Evidence, *settings: str, name: str = "") -> str:
    """Return the command that starts the run anew under another name with other settings."""
    chosen = " ".join(f"--set {item}" for item in settings)
    return f"xectool train {config_path(evidence)} --run-name {run_name(evidence, name or 'again')} {chosen}".strip()


def resume(evidence: Evidence, *settings: str) -> str:
    """Return the command that goes on with the run where it stands."""
    chosen = " ".join(f"--set {item}" for item in settings)
    return f"xectool train {config_path(evidence)} --resume {quoted(evidence)} {chosen}".strip()


def sweep_lr(evidence: Evidence) -> str:
    """Return the command that finds a rate for the configuration of the run."""
    return f"xectool lr-sweep {config_path(evidence)}"


def continue_from_best(evidence: Evidence, *settings: str, step: int = 0, name: str = "recovered") -> str:
    """Return the command that goes on from a checkpoint older than the fault, or anew where there is none.

    Args:
        evidence: The run.
        settings: ``key=value`` lines.
        step: First step of the fault; 0 where no step belongs to it.
        name: What is appended to the name of the run.
    """
    source = sound_checkpoint(evidence, step)
    if source is None:
        return train_again(evidence, *settings, name=name)
    chosen = " ".join(f"--set {item}" for item in settings)
    checkpoint = shlex.quote(str(evidence.run_dir / source))
    return (
        f"xectool train {config_path(evidence)} --resume {checkpoint} --run-name {run_name(evidence, name)} {chosen}"
    ).strip()


def sound_checkpoint(evidence: Evidence, step: int) -> str | None:
    """Return the name of the newest checkpoint that was saved before a step, the best one first; None without any.

    Only names, sizes and the record are looked at: the best checkpoint is that of the epoch of the lowest validation
    loss, a numbered one that of its epoch.
    """
    names = {item.name for item in evidence.checkpoints}
    ends = {epoch.epoch: epoch for epoch in evidence.epochs if not step or epoch.step < step}
    measured = {
        epoch.epoch: epoch.metrics["val/loss"]
        for epoch in evidence.epochs
        if math.isfinite(epoch.metrics.get("val/loss", math.nan))
    }
    best = min(measured, key=lambda epoch: measured[epoch], default=None)
    if _BEST in names and best in ends:
        return _BEST
    numbered = [f"checkpoint_epoch_{epoch}.pt" for epoch in sorted(ends, reverse=True)]
    found = next((name for name in numbered if name in names), None)
    saved = evidence.of("checkpoint")
    given_up = [event.time for event in evidence.given_up if event.kind == "checkpoint"]
    stands = bool(saved) and saved[-1].time >= max(given_up, default=0.0)
    if found is None and _LAST in names and stands and (not step or max(event.step for event in saved) < step):
        return _LAST
    return found


def nan_batch(evidence: Evidence) -> str:
    """Return the command that finds event, sensor and module."""
    return f"xectool diagnose nan-batch {config_path(evidence)} --run {quoted(evidence)}"


def search_data(evidence: Evidence, which: str) -> str:
    """Return the command that looks at all events of the training or validation files."""
    return f"xectool diagnose nan-batch {config_path(evidence)} --data {which}"


def lower_lr(evidence: Evidence, lr: float) -> str:
    """Return the setting of a tenth of a learning rate, or of the default where that is still beyond AdamW."""
    configured = evidence.setting("training.lr")
    now = float(configured) if isinstance(configured, int | float) and configured > 0 else lr
    return f"training.lr={plausible_lr(evidence, now / LR_DIVISOR):g}"


def lower_clip(evidence: Evidence) -> float:
    """Return the limit of the gradient norm to recover with, which is never above that of the run."""
    own = evidence.setting("training.grad_clip")
    return min(RECOVERY_CLIP, float(own)) if isinstance(own, int | float) and own > 0 else RECOVERY_CLIP


def plausible_lr(evidence: Evidence, lr: float) -> float:
    """Return a learning rate, or the default of the kind where AdamW cannot take it."""
    if not lr < LARGEST_LR:
        return default_lr(evidence)
    return max(lr, LEAST_LR)


def default_lr(evidence: Evidence) -> float:
    """Return the default learning rate of the run's kind."""
    started = evidence.last("run_start")
    kind = (started.data.get("kind") if started else None) or evidence.setting("kind", "regressor")
    return DEFAULT_LR if kind == "regressor" else DEFAULT_LR_SENSORS


def quoted(evidence: Evidence) -> str:
    """Return the run directory as a shell word."""
    return shlex.quote(str(evidence.run_dir))


def config_path(evidence: Evidence) -> str:
    """Return the resolved configuration of the run as a shell word."""
    return shlex.quote(str(evidence.run_dir / CONFIG_FILE))


def run_name(evidence: Evidence, suffix: str) -> str:
    """Return a name for a run that goes on from this one."""
    return shlex.quote(f"{evidence.run_dir.resolve().name[:100]}-{suffix}")


def events_named(events: Sequence[tuple[int, ...]], most: int = 3) -> str:
    """Return event identities as text, e.g. ``file 0 entry 17 (run 1, event 18)``."""
    shown = [
        f"file {row[0]} entry {row[1]} (run {row[2]}, event {row[3]})" if len(row) >= 4 else str(row)
        for row in events[:most]
    ]
    more = f" and {len(events) - most} more" if len(events) > most else ""
    return "; ".join(shown) + more
