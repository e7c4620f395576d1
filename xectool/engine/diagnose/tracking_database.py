"""``diagnose mlflow``: who holds the database, whether it is sound, and how to bring it up to date."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from xectool.config.document import CONFIG_FILE
from xectool.diagnosis.environment.places import databases
from xectool.diagnosis.evidence.files import (
    TRACKER_SETTINGS,
    TRACKER_STATE,
    setting,
    tolerant_json,
    tolerant_yaml,
)
from xectool.diagnosis.tracking_store import Holder, StoreState, look_at
from xectool.errors import UsageError, counted, in_shell
from xectool.runlog.manifest import MANIFEST_FILE
from xectool.training.tracking.settings import (
    ENVIRONMENT_URI,
    default_uri,
    load_settings,
    resolve_uri,
    sqlite_path,
    without_password,
)

DEFAULT_ROOT = "artifacts"


@dataclass(frozen=True)
class TrackingHealth:
    """State of a tracking database.

    Attributes:
        uri: The database, without any password.
        ok: Whether runs can be mirrored into it.
        verdict: One line.
        why: What it rests on.
        holder: Process that holds the lock, or None.
        users: All processes that have the file open.
        journal_mode: Journal mode of sqlite.
        quick_check: What sqlite says of the file.
        file_system: Type of the file system.
        other_databases: Further databases in reach, between which the history is split.
        behind: Runs whose mirror has records left.
        replay: Commands that bring the database up to date.
        next: Line to go on with.
    """

    uri: str
    ok: bool
    verdict: str
    why: tuple[str, ...]
    holder: Holder | None
    users: tuple[Holder, ...]
    journal_mode: str
    quick_check: str
    file_system: str
    other_databases: tuple[str, ...]
    behind: tuple[str, ...]
    replay: tuple[str, ...]
    next: str


def mlflow(uri: str | None = None, *, root: Path | str = DEFAULT_ROOT) -> TrackingHealth:
    """Look at a tracking database from outside; nothing is changed.

    Args:
        uri: Tracking URI, sqlite file, or directory of a run or of runs, of which the newest says which database; by
            default ``MLFLOW_TRACKING_URI``, else that of the newest run below ``root``.
        root: Directory of the runs whose mirrors are looked at.

    Raises:
        ConfigError: The URI names a directory of files, which MLflow refuses.
        UsageError: The run was trained without tracking.
    """
    given = Path(uri).expanduser() if uri and "://" not in uri else None
    is_runs = given is not None and _has_runs(given)
    place = given if given and is_runs else Path(root).expanduser()
    named = None if is_runs else uri
    address = _used_by_runs(place) if is_runs else _address(uri, place)
    shown = without_password(address)
    path = sqlite_path(address)
    own, others = _behind(place, address)
    behind = tuple(map(str, own))
    replay = tuple(f"xectool runs sync {in_shell(run)}" for run in behind)
    aside = tuple(f"another database lacks records of {run}: xectool diagnose mlflow {in_shell(run)}" for run in others)
    if path is None:
        return _server(shown, behind, replay, aside)
    state = look_at(path)
    ok, verdict, why, following = _named(named, state) or _judged(state, behind)
    return TrackingHealth(
        uri=shown,
        ok=ok,
        verdict=verdict,
        why=(*why, *aside),
        holder=state.holder,
        users=state.users,
        journal_mode=state.journal_mode,
        quick_check=state.check,
        file_system=state.file_system,
        other_databases=state.others,
        behind=behind,
        replay=replay,
        next=following or (replay[0] if replay else ""),
    )


def _address(uri: str | None, root: Path) -> str:
    if uri and "://" not in uri and not uri.startswith("databricks") and not Path(uri).is_dir():
        return f"sqlite:///{Path(uri).expanduser().resolve()}"
    of_runs = not uri and not os.environ.get(ENVIRONMENT_URI) and _settings(root)
    return _used_by_runs(root) if of_runs else resolve_uri(uri, root)


def _server(uri: str, behind: tuple[str, ...], replay: tuple[str, ...], aside: tuple[str, ...]) -> TrackingHealth:
    why = ("it is no sqlite file, so no lock can be seen from here", *aside)
    verdict = f"{uri}: {counted(len(behind), 'run')} behind" if behind else f"{uri}: no run is behind"
    nothing: tuple[str, ...] = ()
    return TrackingHealth(
        uri, not behind, verdict, why, None, (), "", "", "", nothing, behind, replay, replay[0] if replay else ""
    )


def _named(uri: str | None, state: StoreState) -> tuple[bool, str, tuple[str, ...], str] | None:
    """Return what to say of a database that was asked for by name and is none of MLflow's; None where it is one."""
    if not (state.is_foreign or (uri and not state.exists)):
        return None
    here = [other for other in databases((Path(state.path).parent, Path.cwd())) if Path(other) != Path(state.path)]
    other = f"xectool diagnose mlflow {in_shell(here[0])}" if here else "find . -name 'ml*.db'"
    shown = ", ".join(sorted(state.tables)[:4])
    verdict = f"this is no database of MLflow: its tables are {shown}" if state.exists else "no such database"
    return False, f"{state.path}: {verdict}", (f"file system {state.file_system or 'unknown'}",), other


def _judged(state: StoreState, behind: tuple[str, ...]) -> tuple[bool, str, tuple[str, ...], str]:
    """Return whether all is well, the verdict, what it rests on, and what to do first."""
    why = _evidence(state, behind)
    if not state.exists:
        return not behind, f"{state.path} does not exist yet", tuple(why), ""
    why.append("do not delete the file or its -wal and -shm companions: the history of all runs is in them")
    target = f"{state.path}.backup".replace("\\", "\\\\").replace('"', '\\"')  # sqlite3 has quotes of its own
    backup = shlex.join(["sqlite3", state.path, f'.backup "{target}"'])
    if state.holder is not None and (state.locked or state.holder.lock == "write"):
        holder = state.holder
        why.insert(0, f"held by process {holder.pid}: {holder.cmdline}")
        text = f"the database is locked by process {holder.pid}"
        return False, text, tuple(why), f"ps -fp {holder.pid}   # wait for it, or end this one process"
    if state.locked:
        return False, "the database is locked by a process that cannot be seen from here", tuple(why), backup
    if state.sound is False:
        return False, f"the database is damaged: {state.check}", tuple(why), backup
    if state.on_network:
        return False, f"the database lies on {state.file_system}", tuple(why), backup
    return not behind, "the database is sound and nobody holds its lock", tuple(why), ""


def _evidence(state: StoreState, behind: tuple[str, ...]) -> list[str]:
    why = [f"journal mode {state.journal_mode or 'unknown'}, quick_check {state.check or 'not asked'}"]
    why.append(f"file system {state.file_system or 'unknown'}, {state.size_bytes / 1e6:.1f} MB")
    if state.on_network:
        why.append(f"sqlite locks are unreliable on {state.file_system}: move the database to a local disk")
    if state.others:
        why.append(f"history is split: {', '.join(state.others)}")
    if behind:
        why.append(f"{counted(len(behind), 'run')} not mirrored to the end; all records are in the run directories")
    return why


def _behind(root: Path, address: str) -> tuple[list[Path], list[Path]]:
    """Return the runs below a directory whose mirror has ended or stands still with records left.

    Returns:
        Those of a database, and those of others.
    """
    runs = sorted({path.parents[1] for path in _settings(root)})
    late = [run for run in runs if tolerant_json(run / TRACKER_STATE).get("status") in ("late", "behind", "paused")]
    own = [run for run in late if _is_same(_told_by(run / TRACKER_SETTINGS) or _configured(run), address)]
    return own, [run for run in late if run not in own]


def _used_by_runs(root: Path) -> str:
    """Return the database that the newest run of a directory, or the run it is itself, writes to.

    Raises:
        UsageError: It was trained without tracking.
    """
    newest = sorted(_settings(root), key=lambda path: path.stat().st_mtime, reverse=True)
    if not newest and (root / MANIFEST_FILE).is_file():
        return load_settings(root).uri
    if not newest:
        return _of_untracked(root)
    told = next(filter(None, map(_told_by, newest)), "")
    return told or _configured(newest[0].parents[1])


def _told_by(settings: Path) -> str:
    """Return the database in the settings of a run, empty where that file is damaged."""
    return str(tolerant_json(settings).get("uri") or "")


def _configured(run: Path) -> str:
    """Return the database that a run with these settings writes to."""
    named = setting(tolerant_yaml(run / CONFIG_FILE), "mlflow.tracking_uri", None)
    return resolve_uri(str(named) if named else None, run.resolve().parent)


def _of_untracked(root: Path) -> str:
    """Return the database that lies beside runs that were trained without tracking.

    Raises:
        UsageError: There is none.
    """
    uri = default_uri(root)
    if (path := sqlite_path(uri)) is None or not path.is_file():
        raise UsageError(
            "the runs of this directory were trained without tracking",
            where=str(root),
            fix="train with --set mlflow.enabled=true; the run records themselves are complete",
        )
    return uri


def _is_same(first: str, second: str) -> bool:
    """Return whether two addresses are one database, whatever links lead to it and whoever asks."""
    paths = [sqlite_path(uri) for uri in (first, second)]
    if None not in paths:
        return len({os.path.realpath(str(path)) for path in paths}) == 1
    return len({without_password(uri).replace("***@", "").rstrip("/") for uri in (first, second)}) == 1


def _has_runs(place: Path) -> bool:
    return bool(_settings(place) or (place / MANIFEST_FILE).is_file() or [*place.glob(f"*/{MANIFEST_FILE}")])


def _settings(root: Path) -> list[Path]:
    return [*root.glob(TRACKER_SETTINGS), *root.glob(f"*/{TRACKER_SETTINGS}")]
