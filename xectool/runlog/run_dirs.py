"""Where runs are: the directories that hold a record, and what to name instead of one that holds none."""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xectool.errors import MisnamedRun, UsageError, in_shell, nearest
from xectool.runlog.storage import LINES_FILE, RECORD_DIR, attempt_dir, attempts

_PAGE: Final = re.compile(rf"\s(/\S.*)/{RECORD_DIR}/a\d+/rank\d+\.(?:status|workers)$", re.MULTILINE)
_LARGEST_BYTES: Final = 1 << 30  # events.jsonl stops at 64 MiB but for epochs, all steps keep within 256 MiB
_READ: Final = (".yaml", ".json", ".jsonl", ".log")  # beside the record; what else lies in the directory is the user's
_NEAR: Final = 0.7  # likeness of two names; that of run1 and run2 is 0.75
LISTING: Final = "xectool runs   # lists them; those elsewhere: --root DIR"
_LEVELS: Final = 4
_MOST_LOOKED_AT: Final = 2000  # directories; 20 us each
USUAL_DIR: Final = Path("artifacts")  # checkpoint.save_dir where nothing else is set


def run_dirs(root: Path) -> Iterator[Path]:
    """Yield the run directories at a place and up to two levels below it."""
    patterns = (RECORD_DIR, f"*/{RECORD_DIR}", f"*/*/{RECORD_DIR}")
    yield from (path.parent for pattern in patterns for path in sorted(root.glob(pattern)) if any(path.glob("a[0-9]*")))


def places_of_runs(start: Path) -> list[Path]:
    """Return the directories at a place and up to three levels below it that hold run directories, the nearest first.

    Hidden directories and links are passed over, and of a large tree only the first directories are looked at.
    """
    found, level, left = list[Path](), [start], _MOST_LOOKED_AT
    for _ in range(_LEVELS):
        below = [path for place in level for path in _directories(place)][:left]
        runs = {path for path in below if _is_run(path)}
        found += dict.fromkeys(path.parent for path in below if path in runs)
        level, left = [path for path in below if path not in runs], left - len(below)
    return found


def _is_run(path: Path) -> bool:
    try:
        return bool(attempts(path))
    except OSError:  # closed to others
        return False


def _directories(place: Path) -> list[Path]:
    try:
        with os.scandir(place) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith("."))
    except OSError:  # closed to others
        return []
    return [place / name for name in names]


def run_called(name: Path | str, root: Path = USUAL_DIR) -> Path:
    """Return the one run below a place whose name, as the list of runs has it, is given; else what was given.

    A path, and the name of what lies in the working directory, stand for themselves.
    """
    given = Path(name).expanduser()
    if len(given.parts) != 1 or given.exists():
        return given
    found = [run for run in run_dirs(root) if run.resolve().name == given.name]
    return found[0] if len(found) == 1 else given


def newest_run(root: Path) -> Path | None:
    """Return the run at a place or up to two levels below it that was started last, if there is one."""
    return max(run_dirs(root), key=lambda run: (run / RECORD_DIR).stat().st_mtime, default=None)


def runs_in_memory(pid: int) -> tuple[Path, ...]:
    """Return the run directories whose status pages or notes of readers a process has in memory."""
    try:
        found = _PAGE.findall(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return ()
    return tuple(Path(run) for run in dict.fromkeys(found))


def original_of(run_dir: Path, pid: int) -> Path | None:
    """Return the directory that the live process of a run writes to, None where it is this one or not known."""
    attempt = attempts(run_dir)[-1]
    opening = _opening(run_dir, attempt)
    alike = (run for run in runs_in_memory(pid) if _opening(run, attempt) == opening)
    return next((run for run in alike if opening and not run.samefile(run_dir)), None)


def _opening(run_dir: Path, attempt: int) -> bytes:
    """Return the first line of an attempt, which no other has: process and time; empty where there is none."""
    try:
        with (attempt_dir(run_dir, attempt) / LINES_FILE).open("rb") as lines:
            return lines.readline()
    except OSError:
        return b""


def require_record(run_dir: Path, absent: str = "there is no such directory") -> None:
    """Refuse what is not the directory of a run, or not of a run that may be read.

    Args:
        run_dir: The directory.
        absent: What is said where nothing is there.

    Raises:
        UsageError: It holds no record, and the fix names the run that was likely meant; only its owner may read it; or
            something in it would be read for ever.
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
        _require_readable(run_dir)
        return
    if run_dir.is_dir():
        problem = "this directory holds no run record"
    else:
        problem = "this is a file, not the directory of a run" if run_dir.exists() else absent
    meant = _meant(run_dir)
    if meant is not None and problem == absent and meant not in run_dir.parents:
        problem += f", did you mean '{meant.name}'?"
    refusal = MisnamedRun(problem, where=str(run_dir), fix=f"name {in_shell(meant)}" if meant else LISTING)
    refusal.meant = {str(run_dir): str(meant)} if meant else {}
    raise refusal


def _require_readable(run_dir: Path) -> None:
    """Refuse a run with something in it that is no file of a run: a pipe or a device would be read for ever.

    Raises:
        UsageError: There is one.
    """
    record = run_dir / RECORD_DIR
    attempt_dirs = [path for path in record.glob("a[0-9]*") if path.is_dir()]
    for place in (run_dir, run_dir / "tracking", record, *attempt_dirs):
        for path in _inside(place):
            found = _instead(path, is_record=place in attempt_dirs)
            if found:
                raise UsageError(
                    f"the run holds {found} in place of a record",
                    where=str(path),
                    fix=f"ls -ld {in_shell(path)}   # and put the file of the run back, or remove it",
                )


def _inside(place: Path) -> list[Path]:
    """Return what is in a directory; nothing where it is none, or closed to others as that of the tracker is."""
    try:
        return list(place.iterdir())
    except OSError:
        return []


def _instead(path: Path, is_record: bool) -> str:
    try:
        status = path.stat()
    except OSError:  # a live run packs and replaces files meanwhile
        return ""
    is_endless = stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
    if is_endless and (is_record or path.suffix in _READ):
        return "a pipe or a device"
    if is_record and stat.S_ISDIR(status.st_mode):
        return "a directory"
    return "a file of over a gigabyte" if is_record and status.st_size > _LARGEST_BYTES else ""


def _meant(given: Path) -> Path | None:
    """Return the run around a place, the newest below it, or where it does not exist the one of the nearest name."""
    around = next((parent for parent in given.parents if attempts(parent)), None)
    if around is not None or given.exists():
        return around or newest_run(given)
    beside = (path.parent for path in given.parent.glob(f"*/{RECORD_DIR}"))
    known = {run.name: run for run in (*run_dirs(USUAL_DIR), *beside)}
    return next((known[name] for name in nearest(given.name, known, 1) if _is_near(given.name, name)), None)


def _is_near(given: str, name: str) -> bool:
    """Return whether a run may be meant by a name: runs of one series have much in common, and are other runs.

    >>> [_is_near(given, "hugeoff") for given in ("hugeof", "huge", "zerooff")]
    [True, True, False]
    """
    alike = difflib.SequenceMatcher(None, given.lower(), name.lower()).ratio() >= _NEAR
    return alike or name.lower().startswith(given.lower())
