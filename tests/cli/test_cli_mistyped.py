"""What was mistyped is answered with the whole line to paste: a file, a command, an option, a setting, a key."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
CONFIG = "kind: regressor\ntasks: {energy: {enabled: true}}\ntraining: {epochs: 7}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "val.root").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("train config.yml --max-steps 3", "xectool train config.yaml --max-steps 3"),
        ("check-data vla.root", "xectool check-data val.root"),
        ("trian config.yaml", "xectool train config.yaml"),
        ("diagnose memroy artifacts/r", "xectool diagnose memory artifacts/r"),
        ("config chek config.yaml", "xectool config check config.yaml"),
        ("train config.yaml --maxsteps 3", "xectool train config.yaml --max-steps 3"),
        ("train config.yaml --maxsteps=3", "xectool train config.yaml --max-steps=3"),
        ("train config.yaml --set training.epochs", "--set training.epochs=7"),
        ("train config.yaml --set training.lr", "--set training.lr=0.0003"),
        ("train config.yaml --set 'training.lr: 1e-5'", "--set training.lr=1e-5"),
        ("train config.yaml --set training.lr 1e-5", "xectool train config.yaml --set training.lr=1e-5"),
        (
            "train config.yaml --set training.lr = 1e-5 --set training.epochs: 2 --max-steps 3",
            "xectool train config.yaml --set training.lr=1e-5 --set training.epochs=2 --max-steps 3",
        ),
        ("train config.yaml --set training.lr =1e-5", "xectool train config.yaml --set training.lr=1e-5"),
        (
            "train config.yaml --set normalization.time_shift -0.5",
            "xectool train config.yaml --set normalization.time_shift=-0.5",
        ),
        ("explain training.leraning_rate", "xectool explain training.lr"),
    ],
)
def test_the_fix_is_the_line_that_was_meant(xectool: Run, here: Path, typed: str, meant: str) -> None:
    outcome = xectool(*shlex.split(typed), "--json")
    (found,) = outcome.document["findings"]
    assert (outcome.code, found["fix"].replace(" --json", "")) == (2, meant)


def test_what_is_near_nothing_is_answered_with_the_help(xectool: Run, here: Path) -> None:
    for typed, fix in (
        ("frobnicate", "xectool --help"),
        ("", "xectool --help"),
        ("train --zzzz", "xectool train --help"),
        ("train config.yaml --set training.lr=1 --set x=2 more", "xectool train --help"),
        ("train --set training.lr config.yaml more", "xectool train --help"),
        ("train config.yaml --set training.lr 1e-3 --run-name x more", "xectool train --help"),
    ):
        assert xectool(*typed.split(), "--json").document["findings"][0]["fix"] == fix
