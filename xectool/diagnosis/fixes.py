"""Lines to paste: every command names keys and options that exist, and the run it is about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from xectool.config import rates
from xectool.config.document import CONFIG_FILE
from xectool.config.host_memory import reader_settings
from xectool.config.left_out import KEY
from xectool.config.order_keys import ORDER_KEYS
from xectool.diagnosis.evidence.evidence import MAX_EVENTS_PER_KIND, Evidence
from xectool.diagnosis.evidence.files import train_files
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.left_out import kept_out
from xectool.diagnosis.evidence.run_place import beside, inside
from xectool.errors import event_named, in_shell, run_names

RECOVERY_CLIP: Final = 0.5  # F042
MOST_FILES: Final = 8  # in a line to paste
_BEST, _LAST = "checkpoint_best.pt", "checkpoint_last.pt"


def train_again(evidence: Evidence, *settings: str, name: str = "") -> str:
    """Return the command that starts the run anew under another name with other settings."""
    anew = ("checkpoint.resume_from=null",) if evidence.setting("checkpoint.resume_from") else ()
    return _train(evidence, f"--run-name {run_name(evidence, name or 'again')}", (*anew, *settings))


def resume(evidence: Evidence, *settings: str) -> str:
    """Return the command that goes on with the run; another one where that would be refused or train nothing.

    A finished run starts anew where there are settings to try, one without a checkpoint at its beginning. Inside an
    epoch nothing may change which events a batch holds: then it goes on from the end of one, or starts anew.
    """
    if has_finished(evidence):
        nothing_left = f"xectool diagnose status {quoted(evidence)}   # it has finished: nothing is left to resume"
        return train_again(evidence, *settings) if settings else nothing_left
    if not evidence.checkpoints:
        named = "" if evidence.setting("mlflow.run_name") else f"--run-name {run_name(evidence)} "
        return _train(evidence, f"{named}--resume auto", settings)
    if _stands_in_an_epoch(evidence) and any(item.partition("=")[0] in ORDER_KEYS for item in settings):
        return continue_from_best(evidence, *settings, name="again")
    return _train(evidence, f"--resume {quoted(evidence)}", settings)


def workers(evidence: Evidence, count: int) -> tuple[str, ...]:
    """Return the settings for so many reading processes."""
    data = evidence.setting("data")
    return reader_settings(data if isinstance(data, Mapping) else {}, count)


def has_finished(evidence: Evidence) -> bool:
    """Return whether the run has trained all it was to, not only up to a limit of steps."""
    end = evidence.last("finished")
    return evidence.status.state == "finished" and (end is None or end.data.get("status") != "max_steps")


def sweep_lr(evidence: Evidence) -> str:
    """Return the command that finds a rate for the configuration of the run."""
    return " ".join(["xectool lr-sweep", config_path(evidence), *(f"--set {item}" for item in kept_out(evidence))])


def continue_from_best(evidence: Evidence, *settings: str, step: int = 0, name: str = "recovered") -> str:
    """Return the command that goes on from a checkpoint older than the fault, or anew where there is none.

    Args:
        evidence: The run.
        settings: ``key=value`` lines.
        step: First step of the fault; 0 where no step belongs to it.
        name: What is appended to the name of the run.
    """
    source = sound_checkpoint(evidence, step)
    reorders = any(item.partition("=")[0] in ORDER_KEYS for item in settings)
    if source is None or (source == _LAST and reorders and _stands_in_an_epoch(evidence)):
        return train_again(evidence, *settings, name=name)
    checkpoint = in_shell(evidence.run_dir / source)
    return _train(evidence, f"--resume {checkpoint} --run-name {run_name(evidence, name)}", settings)


def sound_checkpoint(evidence: Evidence, step: int) -> str | None:
    """Return the name of the newest checkpoint that was saved before a step, the best one first; None without any.

    Only names, sizes and the record are looked at: the best checkpoint is that of the epoch of the lowest validation
    loss, a numbered one that of its epoch.
    """
    names = {item.name for item in evidence.checkpoints}
    finished, all_epochs = has_finished(evidence), number(evidence.setting("training.epochs"))
    ends = {
        epoch.epoch: epoch
        for epoch in evidence.epochs
        if not (epoch.step >= step if step else epoch.epoch >= all_epochs)
    }
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
    earlier = max((event.step for event in saved), default=0) < step if step else not finished
    if found is None and _LAST in names and stands and earlier:
        return _LAST
    return found


def nan_batch(evidence: Evidence) -> str:
    """Return the command that finds event, sensor and module."""
    return f"xectool diagnose nan-batch {config_path(evidence)} --run {quoted(evidence)}"


def search_data(evidence: Evidence, which: str) -> str:
    """Return the command that looks at all events of the training or validation files."""
    return f"xectool diagnose nan-batch {config_path(evidence)} --data {which}"


def check_files(run_dir: Path, files: Iterable[str]) -> str:
    """Return the command that reads all events of some files and judges them for a run."""
    named = " ".join(in_shell(path) for path in sorted(set(files))[:MOST_FILES])
    return f"xectool check-data {named} --config {in_shell(run_dir / CONFIG_FILE)} --deep"


def check_named_files(evidence: Evidence, sample: str) -> str:
    """Return the command that judges the files of ``train`` or ``val``, each beside the others."""
    files = evidence.setting(f"data.{sample}_path")
    return check_files(evidence.run_dir, [files] if isinstance(files, str) else files or ["DATA"])


class RecordedRates(NamedTuple):
    """The rates of a run, by the names of their keys."""

    lr: float
    max_lr: float | None
    lr_min: float
    lr_scheduler: str


def recorded_rates(evidence: Evidence, lr: float = 0.0) -> RecordedRates:
    """Return the rates of a run; ``lr`` stands for one that its configuration does not tell."""

    def rate(key: str) -> float | None:
        known = evidence.setting(f"training.{key}")
        return float(known) if isinstance(known, int | float) and known > 0 else None

    scheduler = str(evidence.setting("training.lr_scheduler"))
    return RecordedRates(rate("lr") or lr, rate("max_lr"), rate("lr_min") or 0.0, scheduler)


def lower_lr(evidence: Evidence, lr: float) -> tuple[str, ...]:
    """Return the settings of a tenth of a learning rate, or of the default where that is still beyond AdamW."""
    now = recorded_rates(evidence, lr)
    return rates.lines_of(now, rates.plausible_lr(rates.peak_lr(now) / rates.LR_DIVISOR, _kind(evidence)))


def usual_lr(evidence: Evidence) -> tuple[str, ...]:
    """Return the settings of the default learning rate of the run's kind; none where its own is about that."""
    now, default = recorded_rates(evidence), rates.default_lr(_kind(evidence))
    return () if default / 3 < rates.peak_lr(now) < 3 * default else rates.lines_of(now, default)


def lower_clip(evidence: Evidence) -> float:
    """Return the limit of the gradient norm to recover with, which is never above that of the run."""
    own = evidence.setting("training.grad_clip")
    return min(RECOVERY_CLIP, float(own)) if isinstance(own, int | float) and own > 0 else RECOVERY_CLIP


def _kind(evidence: Evidence) -> str:
    started = evidence.last("run_start")
    return str((started.data.get("kind") if started else None) or evidence.setting("kind", "regressor"))


def quoted(evidence: Evidence) -> str:
    """Return the run directory as a shell word."""
    return in_shell(evidence.run_dir)


def config_path(evidence: Evidence) -> str:
    """Return the resolved configuration of the run as a shell word."""
    return in_shell(evidence.run_dir / CONFIG_FILE)


def run_name(evidence: Evidence, suffix: str = "") -> str:
    """Return a name for a run that goes on from this one; without a suffix its own."""
    run = evidence.run_dir.resolve()
    return run_names.run_name(run.name, f"-{suffix}", run.parent) if suffix else run_names.run_name(run.name)


def events_named(
    evidence: Evidence, events: Sequence[tuple[int, ...]], most: int = 3, attempt: int | None = None
) -> str:
    """Return event identities, of the last attempt or another, as text, e.g. ``a.root entry 17 (run 1 event 18)``."""
    names = dict(enumerate(train_files(evidence.manifest, attempt=attempt)))
    shown = [
        f"{names.get(row[0], f'file {row[0]}')} entry {row[1]} ({event_named(row[2], row[3])})"
        if len(row) >= 4
        else str(row)
        for row in events[:most]
    ]
    more = f" and {len(events) - most} more" if len(events) > most else ""
    return "; ".join(shown) + more


def _train(evidence: Evidence, options: str, settings: Sequence[str]) -> str:
    is_other = "--run-name" in options
    place = (beside if is_other else inside)(evidence.run_dir, evidence.config)
    if is_other and not any(KEY in item for item in settings):
        settings = (*settings, *kept_out(evidence))
    if not any(item.startswith("checkpoint.save_dir=") for item in settings):
        settings = (*settings, *place)
    return " ".join([f"xectool train {config_path(evidence)} {options}", *(f"--set {item}" for item in settings)])


def _stands_in_an_epoch(evidence: Evidence) -> bool:
    """Return whether the newest checkpoint was not saved at the end of an epoch."""
    saved = evidence.of("checkpoint")
    if not saved or len(saved) >= MAX_EVENTS_PER_KIND:  # of more the newest is not known
        return True
    return saved[-1].step not in {epoch.step for epoch in evidence.epochs}
