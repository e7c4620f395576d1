"""What commands print under ``--json`` is what the reference page says they print."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "json-keys.md"
SECTION = re.compile(r"^## xectool (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
LOOKS = ("run", "loss", "memory", "gradients", "status", "stacks", "hang")


@pytest.fixture(scope="module")
def documented() -> dict[str, set[str]]:
    return {
        name: set(re.findall(r"^\| `(.+?)` \|", text, re.MULTILINE)) for name, text in SECTION.findall(PAGE.read_text())
    }


@pytest.mark.usefixtures("warm_estimates")
def test_keys_are_those_of_the_page(
    files: Path, documented: dict[str, set[str]], xectool: Callable[..., Any], tmp_path: Path
) -> None:
    config, run, data = files / "config.yaml", tmp_path / "keys", files / "val.root"
    cache = f"data.cache={tmp_path}/cache"
    places = ("--set", f"checkpoint.save_dir={tmp_path}", "--set", "checkpoint.save_artifacts=false")
    training = ("--run-name", "keys", "--max-steps", "1", *places)
    asked: dict[str, tuple[Any, ...]] = {
        "simulate": (tmp_path / "new.root", "--events", "4"),
        "train": (config, *training),
        "check-data": (data,),
        "convert": (data, "--into", tmp_path / "converted.root", "--scale", "energyTruth=1e-3"),
        "predict": (run / "checkpoint_last.pt", data, "--output", tmp_path / "out.root"),
        "inspect-ckpt": (run / "checkpoint_last.pt",),
        "estimate-memory": (config,),
        "explain": ("nan",),
        "report": (run, "--output", tmp_path / "page.html"),
        "watch": (run, "--once"),
        "prepare": (config, "--set", cache),
        "runs": ("--root", tmp_path),
        "runs compare": (run, run),
        "submit": (config, "--partition", "P", "--time", "1:00:00", "--dry-run"),
        "config init": (),
        "config diff": (config, config),
        "export": (run / "checkpoint_last.pt", "--to", "safetensors", "--output", tmp_path / "weights.safetensors"),
        "diagnose query": (run, "select step from steps"),
        "diagnose environment": (),
        "diagnose mlflow": (f"sqlite:///{tmp_path}/none.db",),
        "diagnose replay": (run, "--step", "1"),
        "diagnose log": (config,),
        **{f"diagnose {name}": (run,) for name in LOOKS},
    }
    for command, words in asked.items():
        document = xectool(*command.split(), *map(str, words), "--json").document
        assert document["status"] != "error", (command, document)
        assert set(document["result"]) - {"findings"} == documented[command], command


def test_every_command_and_key_has_a_line(documented: dict[str, set[str]]) -> None:
    assert len(documented) >= 38
    assert not re.findall(r"^\| `.+?` \|\s*\|$", PAGE.read_text(), re.MULTILINE)
