import json
import os
import stat
import subprocess
import sys

import pytest
from xectool.errors import DiskError
from xectool.runlog import manifest as module
from xectool.runlog.atomic import read_json, write_json
from xectool.runlog.manifest import AttemptFacts, DataFileFacts, config_digest, read_manifest, write_manifest

CONFIG = {"kind": "regressor", "training": {"lr": 1e-4, "seed": 42}, "tasks": {"energy": {"enabled": True}}}


def test_manifest_tells_what_ran_where_on_which_data(tmp_path):
    data = tmp_path / "events.root"
    data.write_bytes(b"x" * 10)
    files = [DataFileFacts.of(str(data), "train", 7), DataFileFacts.of("root://far/away.root", "val", 3)]
    write_manifest(tmp_path, AttemptFacts(1, CONFIG, "first", files, {"seed": 42}, {"device": "cpu"}))
    manifest = read_manifest(tmp_path)
    (entry,) = manifest["attempts"]
    assert (manifest["run_name"], manifest["kind"]) == ("first", "regressor")
    assert {"xectool", "python", "numpy", "torch", "uproot"} <= entry["versions"].keys()
    assert entry["machine"]["cores"] > 0
    assert entry["machine"]["memory_bytes"] > 2**28
    assert [item["size_bytes"] for item in entry["data_files"]] == [10, -1]
    assert entry["seeds"] == {"seed": 42}
    assert entry["command"] == sys.argv
    assert stat.S_IMODE((tmp_path / "manifest.json").stat().st_mode) == 0o600


def test_each_attempt_keeps_its_entry(tmp_path):
    for attempt in (1, 2, 2):
        write_manifest(tmp_path, AttemptFacts(attempt, {**CONFIG, "attempt": attempt}))
    entries = read_manifest(tmp_path)["attempts"]
    assert [entry["attempt"] for entry in entries] == [1, 2]
    assert entries[0]["config_sha256"] != entries[1]["config_sha256"]


def test_config_digest_does_not_depend_on_key_order():
    turned = {name: CONFIG[name] for name in reversed(CONFIG)}
    assert config_digest(turned) == config_digest(CONFIG)
    assert config_digest({**CONFIG, "kind": "mae"}) != config_digest(CONFIG)


def test_password_in_the_command_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["xectool", "--set", "mlflow.tracking_uri=http://me:secret@host:5000"])
    write_manifest(tmp_path, AttemptFacts(1, CONFIG))
    assert "secret" not in (tmp_path / "manifest.json").read_text()
    assert "http://***@host:5000" in (tmp_path / "manifest.json").read_text()


def test_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "state.json"
    write_json(path, {"step": 1})
    with pytest.raises(DiskError, match="df -h"):
        write_json(tmp_path / "absent" / "state.json", {"step": 2})
    assert read_json(path) == {"step": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["state.json"]


def test_json_file_is_standard_json_with_any_float(tmp_path):
    write_json(tmp_path / "state.json", {"loss": float("nan")})
    assert json.loads((tmp_path / "state.json").read_text()) == {"loss": "NaN"}


def test_recorder_room_is_free_of_torch():
    code = (
        "import sys, xectool.runlog.reader, xectool.runlog.writer, xectool.runlog.manifest;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_asking_for_the_commit_never_touches_the_index(tmp_path, monkeypatch):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "xectool").mkdir()
    source = tmp_path / "xectool" / "__init__.py"
    source.write_text("")
    for argv in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *argv], check=True, capture_output=True)
    monkeypatch.setattr(module.xectool, "__file__", str(source))
    index = tmp_path / ".git" / "index"
    before = index.read_bytes(), index.stat().st_mtime_ns
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    os.utime(source)  # the index no longer knows its times, so a refresh would write it
    assert module.git_commit() == commit
    source.write_text("changed = True\n")
    assert module.git_commit() == f"{commit}+"
    assert (index.read_bytes(), index.stat().st_mtime_ns) == before
    index.with_name("index.lock").touch()
    assert module.git_commit() == f"{commit}+"
