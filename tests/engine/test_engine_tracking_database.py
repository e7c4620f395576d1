"""`diagnose mlflow`: which database it looks at, and which runs are behind there."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from xectool import engine
from xectool.errors import UsageError


def tracked_run(root: Path, name: str, database: Path, status: str) -> Path:
    """Write what the mirror of a run leaves in its directory."""
    folder = root / name / "tracking"
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({"uri": f"sqlite:///{database}"}))
    (folder / "state.json").write_text(json.dumps({"status": status}))
    return folder.parent


def test_the_look_at_a_run_is_one_at_its_database(tmp_path: Path, monkeypatch: Any) -> None:
    """The directory of a run was "a directory of files, which MLflow no longer writes to"."""
    root, database = tmp_path / "runs", tmp_path / "there.db"
    with contextlib.closing(sqlite3.connect(database)) as writer:
        for table in ("experiments", "runs", "metrics", "params"):
            writer.execute(f"CREATE TABLE {table} (x)")
    elsewhere = tracked_run(root, "elsewhere", tmp_path / "other.db", "late")
    sound, late = tracked_run(root, "sound", database, "done"), tracked_run(root, "late", database, "behind")
    os.utime(elsewhere / "tracking" / "settings.json", (1, 1))  # of the newest run is what is asked for
    seen = {name: engine.diagnose.mlflow(str(place)) for name, place in (("sound", sound), ("late", late), ("", root))}
    assert {name: (health.uri, health.ok) for name, health in seen.items()} == {
        "sound": (f"sqlite:///{database}", True),
        "late": (f"sqlite:///{database}", False),
        "": (f"sqlite:///{database}", False),
    }
    assert seen[""].behind == (str(late),)
    assert seen[""].replay == (f"xectool runs sync {late}",)
    assert seen[""].why[-1] == f"another database lacks records of {elsewhere}: xectool diagnose mlflow {elsewhere}"
    assert seen[""] == engine.diagnose.mlflow(root=root)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert engine.diagnose.mlflow(root=root).uri == "http://host:5000"
    assert engine.diagnose.mlflow(str(root)).uri == f"sqlite:///{database}"


def test_a_run_without_tracking_says_so(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match="this run was trained without tracking"):
        engine.diagnose.mlflow(str(tmp_path))
    (tmp_path / "tracking").mkdir()
    (tmp_path / "tracking" / "settings.json").write_text("{damaged")
    assert engine.diagnose.mlflow(str(tmp_path)).uri == f"sqlite:///{tmp_path.parent}/mlflow.db"
    (tmp_path / "config.yaml").write_text("mlflow: {tracking_uri: 'sqlite:////data/all.db'}")
    assert engine.diagnose.mlflow(str(tmp_path)).uri == "sqlite:////data/all.db"


def test_a_directory_of_runs_without_tracking_is_no_store_of_files(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    (tmp_path / "night" / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match="trained without tracking"):
        engine.diagnose.mlflow(str(tmp_path))


def test_damaged_settings_of_the_newest_run_lead_to_the_database_of_the_one_before(tmp_path: Path) -> None:
    older, newer = (tracked_run(tmp_path, name, tmp_path / "all.db", "done") for name in ("older", "newer"))
    (newer / "tracking" / "settings.json").write_text("{")
    os.utime(older / "tracking" / "settings.json", (1, 1))
    assert engine.diagnose.mlflow(str(tmp_path)).uri == f"sqlite:///{tmp_path}/all.db"


@pytest.mark.parametrize(("status", "following"), [("late", "xectool runs sync {}"), ("done", "")])
def test_a_run_whose_database_is_gone_is_replayed(tmp_path: Path, status: str, following: str) -> None:
    """Nobody asked for that database by name: the line was to look for another."""
    run = tracked_run(tmp_path, "night", tmp_path / "gone.db", status)
    health = engine.diagnose.mlflow(str(run))
    assert (health.ok, health.next) == (status == "done", following.format(run))
    assert health.verdict == f"{tmp_path}/gone.db does not exist yet"


def test_a_database_is_the_same_whatever_leads_to_it(tmp_path: Path, monkeypatch: Any) -> None:
    """A run behind in it was told to be one of another database, and all was well."""
    (tmp_path / "link").symlink_to(tmp_path)
    run = tracked_run(tmp_path, "night", tmp_path / "link" / "all.db", "behind")
    assert engine.diagnose.mlflow(str(tmp_path / "all.db"), root=tmp_path).behind == (str(run),)
    (run / "tracking" / "settings.json").write_text(json.dumps({"uri": "http://me:secret@host:5000/"}))
    assert engine.diagnose.mlflow("http://host:5000", root=tmp_path).behind == (str(run),)
    (run / "tracking" / "settings.json").write_text("{")
    assert engine.diagnose.mlflow("http://host:5000", root=tmp_path).behind == ()
    monkeypatch.chdir(run)
    assert engine.diagnose.mlflow(".").uri == f"sqlite:///{tmp_path}/mlflow.db"


def test_beside_runs_without_tracking_may_lie_a_database(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    (tmp_path / "night" / "manifest.json").write_text("{}")
    sqlite3.connect(tmp_path / "mlflow.db").close()
    assert engine.diagnose.mlflow(str(tmp_path)).uri == f"sqlite:///{tmp_path}/mlflow.db"
