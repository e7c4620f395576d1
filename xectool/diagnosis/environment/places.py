"""Where a run writes: directories, caches and tracking databases, each with its file system."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from xectool.config.platform import Platform
from xectool.diagnosis.environment.facts import Place

# Variables that say where kernels are kept, and where they lie where the variable is not set.
CACHES: Final = {
    "MIOPEN_USER_DB_PATH": "~/.config/miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "~/.cache/miopen",
    "TORCHINDUCTOR_CACHE_DIR": "",
    "TRITON_CACHE_DIR": "~/.triton/cache",
}
TRACKER: Final = "tracking database"
_SQLITE_MAGIC: Final = b"SQLite format 3\x00"
_USUAL: Final = ("mlruns.db", "mlflow.db")


def look_at(role: str, path: Path, platform: Platform) -> Place:
    """Return the facts of one place, which need not exist yet."""
    real = Path(os.path.realpath(path.expanduser()))
    standing = next(parent for parent in (real, *real.parents) if parent.exists())
    try:
        free = shutil.disk_usage(standing).free
    except OSError:
        free = -1
    return Place(role, str(real), platform.file_system(str(real)), real.exists(), os.access(standing, os.W_OK), free)


def caches(environment: Mapping[str, str], rocm: bool) -> Iterator[tuple[str, Path]]:
    """Yield the kernel caches in use: those that are set, and the usual places of the others.

    Args:
        environment: Variables.
        rocm: Whether torch is built for AMD GPUs, without which MIOpen keeps nothing.
    """
    for name, usual in CACHES.items():
        chosen = environment.get(name) or ("" if name.startswith("MIOPEN_") and not rocm else usual)
        if chosen:
            yield f"cache {name}", Path(chosen)


def database_of(uri: str) -> Path | None:
    """Return the file behind a tracking address, None for a server.

    >>> database_of("sqlite:////data/mlruns.db"), database_of("http://host:5000"), database_of("./mlruns")
    (PosixPath('/data/mlruns.db'), None, PosixPath('mlruns'))
    """
    if uri.startswith("sqlite:///"):
        return Path(uri.removeprefix("sqlite:///").partition("?")[0])
    if uri.startswith("file:"):
        return Path(unquote(urlsplit(uri).path))
    return None if not uri or ":" in uri.split("/")[0] or uri == "databricks" else Path(uri)


def databases(directories: Iterator[Path] | tuple[Path, ...]) -> tuple[str, ...]:
    """Return the tracking databases and stores that lie directly in some directories."""
    found: dict[str, None] = {}
    for directory in dict.fromkeys(Path(os.path.realpath(path)) for path in directories):
        if not directory.is_dir():
            continue
        for path in sorted([*directory.glob("*.db"), *directory.glob("*.sqlite")]):
            if _is_tracking_database(path):
                found[str(path)] = None
        store = directory / "mlruns"
        if store.is_dir() and any(store.glob("*/meta.yaml")):
            found[str(store)] = None
    return tuple(found)


def _is_tracking_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.read(16) != _SQLITE_MAGIC:
                return False
        # immutable: no lock is taken, so neither a writer nor this is disturbed
        connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
        try:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE name IN ('experiments', 'runs')").fetchall()
        finally:
            connection.close()
    except (OSError, sqlite3.Error, UnicodeDecodeError):  # the last of a message that quotes a damaged schema
        return path.name in _USUAL
    return len(rows) == 2
