"""A tracking database from outside: who holds its lock, whether it is sound, on what it lies; nothing is changed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xectool.config.file_systems import is_network
from xectool.runlog.file_locks import command_of, lock_holders

PROBE_TIMEOUT_S: Final = 0.5
_NAMES: Final = ("mlflow.db", "mlruns.db")  # of this version of MLflow and of older set-ups
MLFLOW_TABLES: Final = frozenset({"experiments", "runs", "metrics", "params"})
_PENDING_BYTE: Final = 1 << 30  # sqlite: locks lie beyond the first gigabyte, whatever the size of the file


@dataclass(frozen=True)
class Holder:
    """A process that has the database open or locked.

    Attributes:
        pid: Its number.
        cmdline: Its command line.
        lock: ``write`` or ``read`` where it holds a lock, else empty.
    """

    pid: int
    cmdline: str
    lock: str


@dataclass(frozen=True)
class StoreState:
    """What a look at a database file shows.

    Attributes:
        path: The file.
        exists: Whether it is there.
        holder: Process that holds the lock, a writer first; None where nobody does.
        users: All processes that have it open.
        locked: Whether a writer would have to wait.
        journal_mode: ``wal``, ``delete`` and so on; empty where it could not be asked.
        sound: Whether ``PRAGMA quick_check`` says ok; None where it could not be asked.
        check: What it said.
        tables: Tables in it; empty where it could not be asked, or has none yet.
        file_system: Type of the file system.
        size_bytes: Size.
        others: Other databases in reach, between which the history would be split.
    """

    path: str
    exists: bool
    holder: Holder | None = None
    users: tuple[Holder, ...] = ()
    locked: bool = False
    journal_mode: str = ""
    sound: bool | None = None
    check: str = ""
    tables: frozenset[str] = frozenset()
    file_system: str = ""
    size_bytes: int = 0
    others: tuple[str, ...] = ()

    @property
    def is_foreign(self) -> bool:
        """Whether it is a database of something else than MLflow."""
        return bool(self.tables) and not self.tables >= MLFLOW_TABLES

    @property
    def on_network(self) -> bool:
        """Whether the file lies where sqlite locks cannot be relied on."""
        return is_network(self.file_system)


def look_at(path: Path) -> StoreState:
    """Return the state of a sqlite file without changing it or waiting for its lock."""
    if not path.is_file():
        return StoreState(str(path), exists=False, file_system=file_system(path.parent), others=_others(path))
    locks = lock_holders(path)
    users = tuple(Holder(pid, command_of(pid), locks.get(pid, "")) for pid in sorted({*_openers(path), *locks}))
    holding = sorted((user for user in users if user.lock), key=lambda user: user.lock != "write")
    journal, sound, check, locked = _ask(path)
    tables = _tables(path) if sound else frozenset()
    return StoreState(
        path=str(path),
        exists=True,
        holder=holding[0] if holding else None,
        users=users,
        locked=locked,
        journal_mode=journal,
        sound=sound,
        check=check,
        tables=tables,
        file_system=file_system(path),
        size_bytes=path.stat().st_size,
        others=_others(path),
    )


def file_system(path: Path) -> str:
    """Return the type of the file system a path lies on, by the longest mount point above it."""
    place = str(path.resolve())
    best, kind = "", ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
            _, mount, found, *_ = line.split()
            mount = mount.encode().decode("unicode_escape")
            inside = place == mount or place.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, found
    return kind


def _openers(path: Path) -> Iterator[int]:
    """Yield the processes, except this one, that have a file open; those of other users cannot be seen without root."""
    target = path.stat()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        if any(_same(link, target) for link in _descriptors(entry)):
            yield int(entry.name)


def _descriptors(process: Path) -> list[Path]:
    try:
        return list((process / "fd").iterdir())
    except OSError:  # it ended, or belongs to somebody else
        return []


def _same(link: Path, target: os.stat_result) -> bool:
    try:
        facts = link.stat()
    except OSError:
        return False
    return (facts.st_dev, facts.st_ino) == (target.st_dev, target.st_ino)


def _ask(path: Path) -> tuple[str, bool | None, str, bool]:
    """Return journal mode, soundness, what was said, and whether the file is locked; opened read-only."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True,
                                                timeout=PROBE_TIMEOUT_S)) as database:  # fmt: skip
            journal = str(database.execute("PRAGMA journal_mode").fetchone()[0])
            said = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError as error:
        busy = "locked" in str(error) or "busy" in str(error)
        return "", None, str(error), busy
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # a message may quote a damaged schema
        return "", False, str(error), False
    return journal, said == "ok", said, _write_locked(path)


def _tables(path: Path) -> frozenset[str]:
    """Return the names of the tables of a sound file; none where a writer came in between."""
    with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True,
                                            timeout=PROBE_TIMEOUT_S)) as database:  # fmt: skip
        try:
            return frozenset(
                str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            )
        except sqlite3.OperationalError:
            return frozenset()


def _write_locked(path: Path) -> bool:
    return any(kind == "write" and pid != os.getpid() for pid, kind in lock_holders(path).items())


def _others(path: Path) -> tuple[str, ...]:
    """Return further tracking databases beside the file and in the working directory."""
    found: dict[Path, None] = {}
    for directory in (path.parent, Path.cwd()):
        for name in _NAMES:
            other = (directory / name).resolve()
            if other.is_file() and other != path.resolve():
                found[other] = None
    return tuple(str(other) for other in found)
