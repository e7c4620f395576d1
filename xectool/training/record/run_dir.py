"""Which directory a run lives in, and which checkpoint it continues from."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.checkpoint.missing import missing_checkpoint
from xectool.config.root import RunConfig
from xectool.config.save_places import nearest_existing, other_save_dir, refusal_to_write, said_of
from xectool.config.serialize import inline_yaml
from xectool.errors import CheckpointError, DiskError, UsageError, in_shell
from xectool.errors.run_names import RUN_NAME_PATTERN, run_name
from xectool.runlog.storage import RECORD_DIR, attempts

AUTO = "auto"


@dataclass(frozen=True)
class RunPlace:
    """Where a run goes on.

    Attributes:
        directory: The run directory.
        checkpoint: What it continues from; None for a new run.
        checkpoint_path: The file of that checkpoint.
        notes: What the user should know about the choice.
    """

    directory: Path
    checkpoint: Checkpoint | None = None
    checkpoint_path: Path | None = None
    notes: tuple[str, ...] = ()


def choose_place(config: RunConfig, resume: str | None) -> RunPlace:
    """Choose the run directory, and the checkpoint when the run is to continue.

    Args:
        config: Gives ``checkpoint.save_dir``, ``mlflow.run_name`` and ``checkpoint.resume_from``.
        resume: ``auto`` (the newest sound checkpoint of this run; a new run where there is none), a checkpoint
            file or a run directory; None starts anew unless the configuration says otherwise.

    Raises:
        UsageError: The name is not a plain directory name.
        CheckpointError: The checkpoint to resume from is missing or damaged, or its run would go on in the directory
            of another.
    """
    resume = resume or config.checkpoint.resume_from
    name, root = config.mlflow.run_name, Path(config.checkpoint.save_dir).expanduser()
    if name is not None and not RUN_NAME_PATTERN.match(name):
        raise UsageError(
            f"'{name}' cannot be the name of a run: letters of English, digits, '.', '_', '+' and '-' only",
            where="--run-name or mlflow.run_name",
            fix=f"--run-name {run_name(name, root=root)}",
        )
    if resume and resume != AUTO:
        place = _resume_from(Path(resume).expanduser(), root / name if name else None, config)
        return _noted(place if config.checkpoint.overwrite else _require_own_or_free(place))
    directory = root / name if name else _unnamed(root, config.kind, resume == AUTO)
    if resume == AUTO:
        return _resume_newest(directory)
    return RunPlace(directory)


def require_writable(place: RunPlace) -> RunPlace:
    """Return a place whose directory can be made and written; nothing is left there.

    Raises:
        UsageError: It would lie below a file.
        DiskError: It cannot.
    """
    made = place.directory / RECORD_DIR
    if error := refusal_to_write(made):
        kind = UsageError if isinstance(error, NotADirectoryError) else DiskError
        raise kind(
            f"the run directory cannot be written: {said_of(error)} ({nearest_existing(made)})",
            where=str(place.directory),
            fix=other_save_dir(place.directory.parent, refusal=error),
        )
    return place


def _resume_newest(directory: Path) -> RunPlace:
    if not any(directory.glob("checkpoint_*.pt")):
        return RunPlace(directory, notes=(f"--resume auto: {directory} has no checkpoint yet, so this is a new run",))
    path, checkpoint, rejected = store.newest(directory)
    notes = [f"passed over {error.where}: {error.problem}" for error in rejected]
    return RunPlace(directory, checkpoint, path, (*notes, f"continuing from {path}"))


def _resume_from(path: Path, directory: Path | None, config: RunConfig) -> RunPlace:
    if path.is_dir():
        place = _resume_newest(path)
        if place.checkpoint is None:
            raise CheckpointError(
                "no checkpoint to resume from",
                where=str(path),
                fix="--resume auto   # starts a new run where there is none",
            )
        return RunPlace(directory or path, place.checkpoint, place.checkpoint_path, place.notes)
    if not path.exists():
        raise missing_checkpoint(path, resuming=config)
    checkpoint = store.load(path)
    return RunPlace(directory or path.parent, checkpoint, path, (f"continuing from {path}",))


def _require_own_or_free(place: RunPlace) -> RunPlace:
    """Refuse to go on in the directory of another run, whose checkpoints would be replaced."""
    assert place.checkpoint_path is not None
    own = place.checkpoint_path.parent.resolve() == place.directory.resolve()
    if own or not any(place.directory.glob("checkpoint_*.pt")):
        return place
    free, stay = run_name(place.directory.name, "-2", place.directory.parent), _staying(place.checkpoint_path.parent)
    more = f"or where it was saved: {stay}; " if stay else ""
    raise CheckpointError(
        f"{place.directory} already holds the checkpoints of another run",
        where=f"--run-name {place.directory.name} with --resume {place.checkpoint_path}",
        fix=f"--run-name {free}   # {more}or give up that run: --set checkpoint.overwrite=true",
        code="CFG-53",
    )


def _noted(place: RunPlace) -> RunPlace:
    """Return a place with what is said where a run goes on elsewhere: it was moved, or is to be kept as it is.

    A checkpoint that was copied alone has no record to be parted from.
    """
    assert place.checkpoint_path is not None
    there = place.checkpoint_path.parent.resolve()
    if there == place.directory.resolve() or not attempts(there):
        return place
    options = _staying(there)
    stay = f" (to go on there: {options})" if options else ""
    note = f"it goes on in {place.directory}; record and checkpoints so far stay in {there}{stay}"
    return replace(place, notes=(*place.notes, note))


def _staying(directory: Path) -> str:
    """Return the options with which a run goes on in its own directory; empty where no run can have its name."""
    there = directory.resolve()
    if not attempts(there) or not RUN_NAME_PATTERN.match(there.name):
        return ""
    return f"--set {in_shell(f'checkpoint.save_dir={inline_yaml(str(there.parent))}')} --run-name {there.name}"


def _unnamed(root: Path, kind: str, continuing: bool) -> Path:
    """Return the directory of a run without a name: a new one, or the one that was saved to last."""
    if continuing:
        saved = sorted(root.glob(f"{kind}_*/{store.LAST_NAME}"), key=lambda path: path.stat().st_mtime_ns)
        if saved:
            return saved[-1].parent
    name = f"{kind}_{time.strftime('%Y%m%d-%H%M%S')}"
    names = (name, *(f"{name}-{count}" for count in range(2, 1000)))
    return next(root / free for free in names if not (root / free).exists())
