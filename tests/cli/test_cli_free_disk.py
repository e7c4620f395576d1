"""The rule on free disk is asked by the command, before anything is written."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Usage = namedtuple("Usage", "total used free")


def test_train_refuses_a_disk_without_room(
    xectool: Callable[..., Any], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**6, 10**6, 1000))
    outcome = xectool("train", files / "config.yaml", "--run-name", "full", "--dry-run", "--json")
    (found,) = [item for item in outcome.document["findings"] if item["severity"] == "error"]
    assert outcome.code == 2
    assert found["code"] == "CFG-53"
    assert "below 3 checkpoints" in found["problem"]
