"""The manifest of a run: with what, on what and from what it was trained, one entry an attempt."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

import xectool
from xectool.config.cgroups import num_cores
from xectool.runlog.atomic import read_json, write_json
from xectool.runlog.records import to_json

MANIFEST_FILE: Final = "manifest.json"
_FORMAT: Final = 1
_PACKAGES: Final = ("numpy", "uproot", "awkward", "torch", "mlflow", "pydantic", "scipy")
_CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class DataFileFacts:
    """One input file as it was when the attempt started; sizes and times are -1 for a remote file."""

    path: str
    role: str
    entries: int
    size_bytes: int = -1
    mtime: float = -1.0
    tree: str = ""

    @classmethod
    def of(cls, path: str, role: str, entries: int, tree: str = "") -> DataFileFacts:
        """Return the facts of a file, local or remote, of which a tree serves as ``role`` (train, val)."""
        if "://" in path or not Path(path).exists():
            return cls(path, role, entries, tree=tree)
        facts = Path(path).stat()
        return cls(path, role, entries, facts.st_size, facts.st_mtime, tree)


def replaced_files(before: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the files that are others than before, each with both sizes; the place of a file may be another.

    Files are the same by sample, name and tree. One of the same size is taken for the same: copies have other times.

    Args:
        before: Files as a manifest lists them.
        now: Files as they are.
    """
    earlier = _by_name(before)
    found = []
    for name, file in _by_name(now).items():
        was = earlier.get(name)
        if was is None or _size(was) == _size(file) or -1 in (_size(was)[0], _size(file)[0]):
            continue
        (size, events), (old, entries) = _size(file), _size(was)
        found.append(f"{file.get('path')}: {size} bytes with {events} entries, before {old} with {entries}")
    return found


def _by_name(files: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    """Return the files by sample, name and tree; without those that share all of it."""
    named = [((str(f.get("role")), Path(str(f.get("path"))).name, str(f.get("tree", ""))), f) for f in files]
    counts = Counter(name for name, _ in named)
    return {name: file for name, file in named if counts[name] == 1}


def _size(file: Mapping[str, Any]) -> tuple[int, int]:
    size, entries = (file.get(key, -1) for key in ("size_bytes", "entries"))
    return (size, entries) if isinstance(size, int) and isinstance(entries, int) else (-1, -1)


@dataclass(frozen=True)
class AttemptFacts:
    """What the caller knows of an attempt and this room cannot find out itself."""

    attempt: int
    config: Mapping[str, Any]
    run_name: str = ""
    data_files: Iterable[DataFileFacts] = ()
    seeds: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a resolved configuration, independent of the order of its keys."""
    return hashlib.sha256(_sorted_json(config).encode()).hexdigest()


def write_manifest(run_dir: Path, facts: AttemptFacts) -> Path:
    """Add the entry of an attempt to ``manifest.json`` and return its path; earlier entries are kept.

    Raises:
        DiskError: The disk refuses.
    """
    path = run_dir / MANIFEST_FILE
    earlier = [entry for entry in read_manifest(run_dir).get("attempts", []) if entry["attempt"] != facts.attempt]
    content = {
        "format": _FORMAT,
        "run_name": facts.run_name or run_dir.name,
        "kind": str(facts.config.get("kind", "")),
        "attempts": [*earlier, _entry(facts)],
    }
    write_json(path, content)
    return path


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """Return the manifest of a run, empty where there is none."""
    return read_json(run_dir / MANIFEST_FILE)


def _entry(facts: AttemptFacts) -> dict[str, Any]:
    return {
        "attempt": facts.attempt,
        "created": time.time(),
        "config_sha256": config_digest(facts.config),
        "command": [_without_password(word) for word in sys.argv],
        "directory": str(Path.cwd()),
        "git_commit": git_commit(),
        "versions": _versions(),
        "machine": machine(),
        "seeds": dict(facts.seeds),
        "data_files": [asdict(item) for item in facts.data_files],
        "extra": dict(facts.extra),
    }


def _versions() -> dict[str, str]:
    # Read from the package metadata, so that nothing heavy is imported for its version.
    found = {"xectool": xectool.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def machine() -> dict[str, Any]:
    """Return host, system, usable cores and memory in bytes (the limit is the control group's, or None)."""
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "architecture": platform.machine(),
        "cpu": _cpu_name(),
        "cores": num_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_limit_bytes": _memory_limit(),
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor()


def _memory_limit() -> int | None:
    for name in _CGROUP_LIMITS:
        path = Path(name)
        text = path.read_text(encoding="utf-8").strip() if path.exists() else ""
        # The older interface writes a number beyond any memory where there is no limit.
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def git_commit() -> str | None:
    """Return the commit of the checkout that xectool runs from, ``+`` appended where files differ from it.

    None where xectool is installed as a package, or git is absent.
    """
    root = Path(xectool.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return None
    return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")


def _git(root: Path, *argv: str) -> str:
    """Return what git says, or an empty string where it is absent, slow or fails.

    It writes nothing: a run that starts must not get in the way of a commit that is being made. ``describe --dirty``
    would, whatever its options: it takes the index lock, and leaves it behind when it is killed.
    """
    command = ["git", "--no-optional-locks", "-C", str(root), *argv]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=False, encoding="utf-8", errors="replace"
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _without_password(word: str) -> str:
    return re.sub(r"://[^/@\s]+@", "://***@", word)


def _sorted_json(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{to_json(str(key))}:{_sorted_json(value[key])}" for key in sorted(value, key=str)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_sorted_json(item) for item in value) + "]"
    return to_json(value)
