"""Where runs are: the directories that hold a record, and what to name instead of one that holds none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xectool.errors import UsageError, in_shell, nearest
from xectool.runlog.storage import RECORD_DIR, attempts

USUAL_DIR: Final = Path("artifacts")  # checkpoint.save_dir where nothing else is set


def run_dirs(root: Path) -> Iterator[Path]:
    """Yield the run directories at a place and up to two levels below it."""
    patterns = (RECORD_DIR, f"*/{RECORD_DIR}", f"*/*/{RECORD_DIR}")
    yield from (path.parent for pattern in patterns for path in sorted(root.glob(pattern)) if any(path.glob("a[0-9]*")))


def newest_run(root: Path) -> Path | None:
    """Return the run at a place or up to two levels below it that was started last, if there is one."""
    return max(run_dirs(root), key=lambda run: (run / RECORD_DIR).stat().st_mtime, default=None)


def require_record(run_dir: Path) -> None:
    """Refuse what is not the directory of a run, or not of a run that may be read.

    Raises:
        UsageError: It holds no record, and the fix names the run that was likely meant; or only its owner may read it.
    """
    try:
        os.scandir(run_dir / RECORD_DIR).close()
    except PermissionError as error:
        raise UsageError(
            "the run belongs to another user, and its record is closed to others",
            where=str(run_dir),
            fix="ask its owner, or log in as the owner",
            code="XT-CTL-USER",
        ) from error
    except OSError:
        pass
    if attempts(run_dir):
        return
    if run_dir.is_dir():
        problem = "this directory holds no run record"
    else:
        problem = "this is a file, not the directory of a run" if run_dir.exists() else "there is no such directory"
    meant = _meant(run_dir)
    fix = f"name {in_shell(meant)}" if meant else "name the directory of a run; `xectool runs` lists them"
    raise UsageError(problem, where=str(run_dir), fix=fix)


def _meant(given: Path) -> Path | None:
    """Return the run around a place, the newest below it, or where it does not exist the one of the nearest name."""
    around = next((parent for parent in given.parents if attempts(parent)), None)
    if around is not None or given.exists():
        return around or newest_run(given)
    beside = (path.parent for path in given.parent.glob(f"*/{RECORD_DIR}"))
    known = {run.name: run for run in (*run_dirs(USUAL_DIR), *beside)}
    return next((known[name] for name in nearest(given.name, known, 1)), None)
