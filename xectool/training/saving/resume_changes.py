"""What a run that goes on does in another way than before, said once as it goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from xectool.checkpoint.format import Checkpoint
from xectool.config.document import CONFIG_FILE
from xectool.config.root import RunConfig
from xectool.config.serialize import inline_yaml
from xectool.errors import counted, in_shell
from xectool.errors.run_names import run_name
from xectool.findings import Finding, Severity
from xectool.runlog.manifest import read_manifest, replaced_files
from xectool.training.record.description import data_files
from xectool.training.saving.nothing_left import nothing_left
from xectool.training.saving.resume import as_saved, differences, is_idle
from xectool.training.saving.step_size import step_size_change
from xectool.training.stepping.build import RunData

_DECAY: Final = "training.ema_decay"
_OF_THIS_CALL: Final = ("checkpoint.resume_from", "checkpoint.overwrite")  # how it was called, not how it learns
_LONGEST: Final = 80
_MOST_FILES: Final = 8  # told of those that are others now


def resume_changes(
    config: RunConfig, checkpoint: Checkpoint, path: Path, ranks: int, running: Path | None = None
) -> Iterator[Finding]:
    """Yield each key with another value than in the checkpoint, and what becomes of the average and of the steps.

    Args:
        config: What the run goes on with, ``auto`` resolved.
        checkpoint: What it goes on from, which fits.
        path: Its file.
        ranks: How many ranks it goes on with.
        running: The directory of a run that goes on at once; None where it is only looked at.
    """
    changed = list(_changed(checkpoint.config, config.to_dict()))
    if changed:
        told = "; ".join(f"{key} {_short(before)} -> {_short(now)}" for key, before, now in changed)
        yield Finding("XT-RESUME-CHANGES", Severity.INFO, f"the run goes on with other values: {told}", where=str(path))
    if config.checkpoint.reset_epoch or nothing_left(config, checkpoint):  # it begins anew with its weights, or is over
        return
    yield from _average(config, checkpoint, path)
    if change := step_size_change(config, checkpoint, ranks):
        fix = change.fix_before() if running is None else change.fix_running(running)
        yield Finding("XT-RESUME-BATCH", Severity.WARNING, change.problem, where="data.batch_size", fix=fix)


def other_files(data: RunData, path: Path) -> Iterator[Finding]:
    """Yield that files are others than those the run has learned from, as the manifest beside its checkpoint has them.

    Args:
        data: What the run goes on with.
        path: The file of the checkpoint.
    """
    attempts = [item for item in read_manifest(path.parent).get("attempts") or () if isinstance(item, dict)]
    before = [item for item in (attempts[-1].get("data_files") if attempts else None) or () if isinstance(item, dict)]
    found = replaced_files(before, map(asdict, data_files(data)))
    if not found:
        return
    more = f" and {counted(len(found) - 1, 'other file')}" if len(found) > 1 else ""
    run = Path(os.path.abspath(path)).parent
    name = run_name(run.name, "-new-data", run.parent)
    yield Finding(
        "XT-RESUME-DATA",
        Severity.WARNING,
        f"the run goes on with other data than it has learned from: {found[0]}{more}",
        where=str(path),
        evidence=tuple(found[:_MOST_FILES]),
        fix=f"xectool train {in_shell(path.parent / CONFIG_FILE)} --run-name {name} "
        f"--set {in_shell(f'checkpoint.init_from={path}')}   # a new run from its weights, with scales of these data; "
        "or put the earlier files back",
    )


def _changed(saved: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the leaves that differ; a key that is newer than the checkpoint has no other value there."""
    for section in sorted(saved.keys() & now.keys()):
        for key, before, after in differences(saved[section], now[section], section):
            if key not in _OF_THIS_CALL and _is_stored(saved, key) and not is_idle(key, saved, now):
                yield key, before, after


def _is_stored(saved: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(saved, dict) or part not in saved:
            return False
        saved = saved[part]
    return True


def _average(config: RunConfig, checkpoint: Checkpoint, path: Path) -> Iterator[Finding]:
    """Yield a warning where the average of the weights is dropped, or begins in mid-run."""
    decay, step = config.training.ema_decay, int(checkpoint.meta["progress"]["step"])
    averaged = int(checkpoint.meta["num_averaged"])
    if averaged and decay is None:
        before = as_saved(_DECAY, checkpoint.config.get("training", {}).get("ema_decay"))
        yield Finding(
            "XT-RESUME-AVERAGE",
            Severity.WARNING,
            f"the average of the weights over {counted(averaged, 'step')} is dropped, as {_DECAY} is null: validation, "
            "predict and export take the last weights from here on",
            where=str(path),
            fix=f"{before}   # keeps it; the next checkpoint of this run is without it",
        )
    if step and not averaged and decay is not None:
        yield Finding(
            "XT-RESUME-AVERAGE",
            Severity.WARNING,
            f"a new average of the weights begins at step {step}, as the checkpoint holds none: {_DECAY} "
            f"{inline_yaml(decay)}; validation, predict and export take it from here on",
            where=str(path),
            fix=f"--set {_DECAY}=null   # goes on without an average",
        )


def _short(value: Any) -> str:
    text = inline_yaml(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]} …"
