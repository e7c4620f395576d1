"""Large files of the git repository a directory lies in, and core dumps; nothing is changed or locked."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xectool.diagnosis.environment.facts import BigFile, GitFacts

BIG_BYTES: Final = 50 * 10**6  # hosts warn above this and refuse twice as much
_TIMEOUT_S: Final = 20.0
_CORE_NAME: Final = re.compile(r"core(?:\.\d+)?|vgcore\.\d+|core[-_]\S+\.\d+")
_LEAST_CORE_BYTES: Final = 10**6
_MAX_FILES: Final = 20


def look_at_repository(directory: Path) -> GitFacts:
    """Return the large files of the repository around a directory; nothing where there is none or git is slow."""
    root = _git(directory, "rev-parse", "--show-toplevel").strip()
    if not root:
        return GitFacts()
    present = list(_tracked(Path(root)))
    names = {file.path for file in present}
    past = [file for file in _history(Path(root)) if file.path not in names]
    big = sorted([*present, *past], key=lambda file: -file.size_bytes)
    return GitFacts(root, tuple(big[:_MAX_FILES]))


def core_files(*directories: Path) -> tuple[BigFile, ...]:
    """Return the core dumps that lie directly in some directories, largest first."""
    found = {
        str(path): path.stat().st_size
        for directory in dict.fromkeys(directories)
        if directory.is_dir()
        for path in directory.iterdir()
        if _CORE_NAME.fullmatch(path.name) and path.is_file() and path.stat().st_size >= _LEAST_CORE_BYTES
    }
    return tuple(BigFile(path, size) for path, size in sorted(found.items(), key=lambda item: -item[1]))


def _tracked(root: Path) -> Iterator[BigFile]:
    for name in _git(root, "ls-files", "-z").split("\0"):
        path = root / name
        if name and path.is_file() and not path.is_symlink():
            size = path.stat().st_size
            if size > BIG_BYTES or (size >= _LEAST_CORE_BYTES and _CORE_NAME.fullmatch(path.name)):
                yield BigFile(name, size)


def _history(root: Path) -> Iterator[BigFile]:
    objects = _git(root, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectsize) %(objectname)")
    rows = (line.split() for line in objects.splitlines())
    sizes = {row[2]: int(row[1]) for row in rows if len(row) == 3 and row[0] == "blob" and int(row[1]) > BIG_BYTES}
    if not sizes:
        return
    for line in _git(root, "rev-list", "--objects", "--all").splitlines():
        name, _, path = line.partition(" ")
        if name in sizes and path:
            yield BigFile(path, sizes[name], in_history_only=True)


def _git(directory: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    command = ["git", "-C", str(directory), *words]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            env=environment,
            encoding="utf-8",
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
