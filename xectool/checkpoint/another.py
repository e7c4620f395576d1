"""What to do about a checkpoint that is damaged, with the files that lie beside it."""

from __future__ import annotations

import zipfile
from pathlib import Path

from xectool.checkpoint.names import USE_ANOTHER
from xectool.config.document import CONFIG_FILE
from xectool.errors import CheckpointError, in_shell
from xectool.errors.misnamed import DamagedCheckpoint


def damaged_checkpoint(path: Path, problem: str) -> CheckpointError:
    """Return the refusal of a damaged file; where another one of its run is there, it becomes the command with that."""
    found = _beside(path)
    if not found:
        return CheckpointError(problem, where=str(path), fix=USE_ANOTHER, code="XT-CKPT-CORRUPT")
    error = DamagedCheckpoint(problem, where=str(path), fix=use_another(path), code="XT-CKPT-CORRUPT")
    error.meant = {str(path): str(found[0])}
    error.remark = f"   # {_remark(path, found)}"
    return error


def use_another(path: Path) -> str:
    """Return what to do about a damaged file: a look at another one of its run, where one is there."""
    found = _beside(path)
    return f"xectool inspect-ckpt {in_shell(found[0])}   # {_remark(path, found)}" if found else USE_ANOTHER


def _remark(path: Path, found: list[Path]) -> str:
    config = path.with_name(CONFIG_FILE)
    others = f", as {', '.join(map(str, found[1:4]))}" if found[1:] else ""
    train = f"xectool train {in_shell(config)} --resume {in_shell(path.parent)} --set mlflow.run_name=null"
    return f"another checkpoint of the run{others}" + (f"; to go on from it: {train}" if config.is_file() else "")


def _beside(path: Path) -> list[Path]:
    """Return the other checkpoints in the directory of one that are whole archives, the newest first."""
    if not path.name.startswith("checkpoint"):  # of a run
        return []
    try:
        found = [other for other in path.parent.glob(f"checkpoint*{path.suffix}") if other.name != path.name]
        dated = [(other.stat().st_mtime_ns, other) for other in found if zipfile.is_zipfile(other)]
    except OSError:
        return []
    return [other for _, other in sorted(dated, reverse=True)]
