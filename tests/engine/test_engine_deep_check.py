"""`config check --deep` says what a dry run of the training says, whatever that is about."""

from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.config.load import load_config
from xectool.errors import XecError
from xectool.findings import Finding, Severity, findings_of

Usage = namedtuple("Usage", ["total", "used", "free"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("deep")
    for seed, name in enumerate(("train", "val")):
        engine.simulate(place / f"{name}.root", events=24, seed=seed)
    (place / "torn.root").write_bytes((place / "val.root").read_bytes()[:5000])
    (place / "empty.pt").write_bytes(b"")
    (place / "config.yaml").write_text(
        f"kind: regressor\ndata: {{train_path: {place}/train.root, val_path: {place}/val.root, batch_size: 8}}\n"
        "tasks: {energy: {enabled: true}}\nmodel: {encoder_dim: 64}\ntraining: {epochs: 1}\n"
        f"checkpoint: {{save_dir: {place}/runs}}\n"
    )
    return place


def told_by(ask: Callable[[], tuple[Finding, ...]]) -> set[tuple[str, str]]:
    try:
        found = ask()
    except XecError as error:
        found = findings_of(error)
    return {(item.code, item.problem.partition(":")[0]) for item in found}


def full(path: object) -> Usage:
    return Usage(10**12, 10**12, 0)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (["checkpoint.save_dir={}/val.root/runs"], "XT-USAGE"),
        (["checkpoint.save_dir=/proc/runs"], "XT-DISK"),
        (["data.batch_size=64"], "DAT-06"),
        (["data.batch_size=64", "data.drop_last=true"], "XT-DATA-NO-EVENTS"),
        (["data.train_path={}/torn.root"], "XT-DATA-TRUNCATED"),
        (["data.tree_name=sev"], "XT-DATA-TREE"),
        (["data.npho_branch=light"], "XT-DATA-BRANCH"),
        (["data.val_path=[{0}/val.root, {0}/train.root]"], "CFG-37"),
        (["checkpoint.init_from={}/empty.pt"], "XT-CKPT-CORRUPT"),
        (["training.ema_decay=0.9999"], "CFG-65"),
        (["training.grad_accum_steps=50"], "CFG-25"),
        (["training.device=cuda:7"], "XT-DEVICE"),
        (["mlflow.run_name=a b"], "XT-USAGE"),
    ],
)
def test_whatever_a_dry_run_says_a_deep_check_says_too(files: Path, settings: list[str], code: str) -> None:
    """A directory that cannot be written, and data of fewer events than a batch, were called sound."""
    asked = [text.format(files) for text in settings]
    config = files / "config.yaml"
    dry = told_by(lambda: engine.train(config, overrides=asked, dry_run=True).findings)
    deep = told_by(lambda: tuple(engine.config.check(config, asked, deep=True).findings))
    assert code in {name for name, _ in dry}, f"the control: {dry}"
    assert dry <= deep


def test_a_full_disk_and_too_few_events_for_all_ranks_are_told(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = files / "config.yaml"
    shallow = {item.code for item in engine.config.check(config, deep=True).findings}
    assert not {"DAT-06", "CFG-53"} & shallow, "the control"
    found = told_by(lambda: tuple(engine.config.check(config, ["distributed.num_gpus=4"], deep=True).findings))
    assert any(code == "DAT-06" for code, _ in found), (
        "24 events are three batches of one rank, and less than one of four"
    )
    monkeypatch.setattr("shutil.disk_usage", full)
    found = told_by(lambda: tuple(engine.config.check(config, deep=True).findings))
    assert any(code == "CFG-53" for code, _ in found)
    assert not (files / "runs").exists()


def test_a_dry_run_leaves_no_directory_of_a_cache_and_says_that_none_can_be_made(files: Path) -> None:
    """It made the directory, with tables of the files and of what they share."""
    config, before = files / "config.yaml", sorted(files.rglob("*"))
    for cache in (files / "new/cache", files / "new"):
        settings = [f"data.cache={cache}"]
        assert engine.config.check(config, settings, deep=True).findings.errors == ()
        assert engine.train(config, overrides=settings, dry_run=True).status == "dry_run"
    assert sorted(files.rglob("*")) == before
    for nowhere in ("/proc/cache", f"{files}/val.root/cache"):
        found = told_by(
            lambda nowhere=nowhere: engine.config.check(config, [f"data.cache={nowhere}"], deep=True).findings
        )
        assert ("XT-CACHE-PLACE", "the cache directory cannot be used") in found


def test_a_configuration_from_a_pipe_is_tried_as_one_of_a_file(files: Path) -> None:
    """It was read again, and the pipe was empty: `the file is empty`."""
    reading, writing = os.pipe()
    os.write(writing, (files / "config.yaml").read_bytes())
    os.close(writing)
    try:
        found = told_by(lambda: engine.config.check(f"/dev/fd/{reading}", ["data.batch_size=64"], deep=True).findings)
    finally:
        os.close(reading)
    asked = ["data.batch_size=64"]
    assert found == told_by(lambda: engine.config.check(files / "config.yaml", asked, deep=True).findings)
    assert "DAT-06" in {code for code, _ in found}


def test_options_of_train_stand_behind_train(files: Path, tmp_path: Path) -> None:
    """A line to paste had `--run-name`, which `config check` has not."""
    config, bare = files / "config.yaml", tmp_path / "bare.pt"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "some").touch()
    meta = {"kind": "regressor", "config": load_config(config).config.to_dict()}
    store.save(bare, Checkpoint(meta, {"a": torch.zeros(1)}))
    for asked, options in (
        ([f"checkpoint.resume_from={bare}"], " --run-name "),
        (["mlflow.run_name=a b"], " --run-name a_b"),
        (["mlflow.run_name=full"], " --resume auto "),
    ):
        with pytest.raises(XecError) as caught:
            engine.config.check(config, [f"checkpoint.save_dir={tmp_path}", *asked], deep=True)
        (fix,) = {item.fix for item in findings_of(caught.value) if item.severity is Severity.ERROR}
        assert fix.startswith(f"xectool train {config} --set checkpoint.save_dir={tmp_path} "), fix
        assert options in fix
        assert "resume_from=/" not in fix
