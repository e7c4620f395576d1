"""What the mirror of a run needs to know, kept in the run so that a later replay knows it too."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from xectool.errors import ConfigError, UsageError, in_shell
from xectool.runlog.atomic import read_json, write_json

TRACKING_DIR: Final = "tracking"
_SETTINGS_FILE: Final = "settings.json"
_STATE_FILE: Final = "state.json"
ENVIRONMENT_URI: Final = "MLFLOW_TRACKING_URI"


@dataclass(frozen=True)
class TrackerSettings:
    """Where and as what a run is mirrored.

    Args:
        uri: Absolute tracking URI, as `resolve_uri` returns it.
        experiment: Name of the experiment.
        run_name: Name of the run.
        params: Parameters of this attempt by name; logged as MLflow params for the first attempt, as
            ``resume_N/<name>`` tags for later ones where they differ, since MLflow refuses changed params.
        tags: Further tags of the run.
        artifacts: Patterns below the run directory of the files to upload.
        step_every: Mirror each n-th step; the local record has all of them.
        poll_s: Seconds between two looks at the record.
        drain_s: Seconds the mirror goes on trying after the training has ended.
        warn_after_s: Seconds of failing after which the user is told; shorter waits are normal where runs share a file.
        attempt: Attempt these settings belong to, from 1.
        run_uid: Identity of the run in every database, given by `save_settings`.
        resumed_params: Parameters of later attempts by attempt number, kept by `save_settings`.
    """

    uri: str
    experiment: str
    run_name: str
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[str, ...] = ("config.yaml", "manifest.json", "plots/**/*")
    step_every: int = 1
    poll_s: float = 2.0
    drain_s: float = 60.0
    warn_after_s: float = 10.0
    attempt: int = 1
    run_uid: str = ""
    resumed_params: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def default_uri(save_dir: Path | str) -> str:
    """Return the URI of the database that all runs below ``save_dir`` share, with an absolute path.

    >>> default_uri("/data/artifacts")
    'sqlite:////data/artifacts/mlflow.db'
    """
    return f"sqlite:///{Path(save_dir).resolve() / 'mlflow.db'}"


def resolve_uri(configured: str | None, save_dir: Path | str) -> str:
    """Return the tracking URI to use: the configured one, else ``MLFLOW_TRACKING_URI``, else `default_uri`.

    A relative sqlite path is made absolute here, before anything changes the working directory.

    Raises:
        ConfigError: The URI names a directory, which MLflow refuses since version 3.13.
    """
    uri = configured or os.environ.get(ENVIRONMENT_URI) or default_uri(save_dir)
    if uri.startswith("file:") or ("://" not in uri and not uri.startswith("databricks")):
        from xectool.config.serialize import inline_yaml  # the process that mirrors a run does without

        where = "mlflow.tracking_uri" if configured else f"environment variable {ENVIRONMENT_URI}"
        database = Path(uri.removeprefix("file://").removeprefix("file:")).resolve().parent
        raise ConfigError(
            f"'{uri}' is a directory of files, which MLflow no longer writes to",
            where=where,
            fix=f"--set {in_shell(f'mlflow.tracking_uri={inline_yaml(default_uri(database))}')}",
            code="CFG-47",
        )
    relative = re.fullmatch(r"sqlite:///(?!/)([^?]+)(\?.*)?", uri)
    return f"sqlite:///{Path(relative[1]).resolve()}{relative[2] or ''}" if relative else uri


def without_password(uri: str) -> str:
    """Return ``uri`` as it may be shown.

    >>> without_password("http://me:secret@host:5000")
    'http://***@host:5000'
    """
    return re.sub(r"://[^/@]+@", "://***@", uri)


def sqlite_path(uri: str) -> Path | None:
    """Return the file of a sqlite URI, None for any other database."""
    found = re.fullmatch(r"sqlite:///(/[^?]+)(\?.*)?", uri)
    return Path(found[1]) if found else None


def tracking_dir(run_dir: Path) -> Path:
    """Return the directory of the mirror's own files, created private where missing."""
    directory = run_dir / TRACKING_DIR
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def save_settings(run_dir: Path, settings: TrackerSettings, *, new_run: bool) -> TrackerSettings:
    """Store the settings of an attempt and return them joined with what earlier attempts left.

    Args:
        run_dir: Directory of the run.
        settings: Settings of the attempt that starts.
        new_run: Give the run a new identity, so that it appears as another run.

    Raises:
        DiskError: The disk refuses.
    """
    earlier = None if new_run or settings.attempt == 1 else _read(run_dir)
    if earlier is None:
        joined = replace(settings, run_uid=os.urandom(16).hex())
    else:
        resumed = {**earlier.resumed_params, str(settings.attempt): settings.params}
        joined = replace(settings, run_uid=earlier.run_uid, params=earlier.params, resumed_params=resumed)
    write_json(tracking_dir(run_dir) / _SETTINGS_FILE, asdict(joined))
    return joined


def load_settings(run_dir: Path) -> TrackerSettings:
    """Return the settings the run was last tracked with.

    Raises:
        UsageError: The run was never tracked.
    """
    found = _read(run_dir)
    if found is None:
        raise UsageError(
            "this run was trained without tracking",
            where=str(run_dir),
            fix="train with --set mlflow.enabled=true; the run record itself is complete",
        )
    return found


def _read(run_dir: Path) -> TrackerSettings | None:
    content = read_json(run_dir / TRACKING_DIR / _SETTINGS_FILE)
    if not content:
        return None
    content["artifacts"] = tuple(content["artifacts"])
    return TrackerSettings(**content)


@dataclass(frozen=True)
class TrackerState:
    """How the mirror is doing; ``status`` is ``starting``, ``mirroring``, ``paused``, ``late``, ``behind`` or ``done``.

    ``late`` and ``behind`` mean that records are still to log: the mirror had no time to, or it gave up.
    """

    status: str = "starting"
    pid: int = 0
    uri: str = ""
    run_id: str = ""
    step: int = 0
    epoch: int = 0
    points: int = 0
    error: str = ""
    fix: str = ""
    failing_since: float = 0.0
    attempt: int = 0


def save_state(run_dir: Path, state: TrackerState) -> None:
    """Store the state of the mirror; the database itself is what a replay trusts."""
    write_json(tracking_dir(run_dir) / _STATE_FILE, asdict(state), durable=False)


def load_state(run_dir: Path) -> TrackerState:
    """Return the last state of the mirror."""
    content: dict[str, Any] = read_json(run_dir / TRACKING_DIR / _STATE_FILE)
    return TrackerState(**content)
