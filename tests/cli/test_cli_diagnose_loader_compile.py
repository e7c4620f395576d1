"""``diagnose loader`` and ``diagnose compile`` keep their contract: result keys, exit codes, one document."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xectool.cli.diagnose.compile import _next
from xectool.engine.diagnose.compiling import _again
from xectool.findings import Finding, Severity

Run = Callable[..., Any]


def test_loader_that_keeps_up_is_healthy_and_keeps_its_settings(files: Path, xectool: Run) -> None:
    arguments = ("diagnose", "loader", str(files / "config.yaml"), "--seconds", "3", "--step-ms", "60000")
    outcome = xectool(*arguments, "--json")
    assert outcome.code == 0
    result = outcome.document["result"]
    assert list(result["stages"]) == ["read", "decompress", "convert", "transfer"]
    assert result["events_per_s"] > 0
    assert result["limit_events_per_s"] > 0
    assert result["recommended"] == {"data.chunksize": 16, "data.num_workers": 0, "data.num_threads": 2}
    assert result["config_lines"] == []
    assert result["data_wait_share"] < 0.2
    assert result["epoch_s"] == pytest.approx(180, rel=0.05)


def test_loader_that_holds_training_up_is_told_with_a_cure(files: Path, xectool: Run) -> None:
    outcome = xectool("diagnose", "loader", str(files / "config.yaml"), "--seconds", "3", "--step-ms", "0.001")
    assert outcome.code == 1
    assert "XT-LOADER-SLOW" in outcome.err
    assert "input-bound" in outcome.err
    told = " ".join(outcome.err.split()).partition("Next ")[2]
    assert told.startswith(("xectool train ", "xectool diagnose environment ")), "settings alone are no line to paste"


@pytest.mark.parametrize(
    "option", [("--max-events", "0"), ("--seconds", "0"), ("--step-ms", "-1")], ids=lambda option: option[0]
)
def test_loader_refuses_what_cannot_be_measured(files: Path, xectool: Run, option: tuple[str, str]) -> None:
    outcome = xectool("diagnose", "loader", str(files / "config.yaml"), *option, "--json")
    assert outcome.code == 2
    assert outcome.document["findings"][0]["where"] == option[0]


def test_hidden_compiler_is_named_and_eager_is_recommended(
    files: Path, xectool: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    arguments = ("diagnose", "compile", str(files / "config.yaml"), "--steps", "1", "--device", "cpu")
    outcome = xectool(*arguments, "--json")
    assert outcome.code == 1
    document = outcome.document
    assert [found["code"] for found in document["findings"]] == ["XT-COMPILE-TOOLCHAIN"]
    assert "/nonexistent" in document["findings"][0]["problem"]
    result = document["result"]
    assert result["graph_breaks"] == []
    assert result["fullgraph"] is True
    assert [mode["mode"] for mode in result["modes"]] == ["none"]
    assert {"compile_s", "step_ms", "peak_bytes"} <= result["modes"][0].keys()
    assert result["recommended"] == "none"
    assert result["threads"]["training"] >= 1


def test_unknown_mode_is_refused_with_those_there_are(files: Path, xectool: Run) -> None:
    outcome = xectool("diagnose", "compile", str(files / "config.yaml"), "--modes", "fastest", "--json")
    assert outcome.code == 2
    assert "default" in outcome.document["findings"][0]["fix"]


def test_interruption_shows_what_was_measured_by_then(files: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "xectool", "diagnose", "compile", str(files / "config.yaml"), "--device", "cpu"]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "kernels")}
    process = subprocess.Popen(
        [*argv, "--set", "training.epochs=7", "--steps", "1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what runs in the background ignores it
    )
    assert process.stderr is not None
    told = []
    for line in process.stderr:
        told.append(line)
        if line.startswith("measuring default"):
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert [line.partition(":")[0] for line in told if line.startswith("none")] == ["none"]
    document = json.loads(out)
    assert [found["code"] for found in document["findings"]] == ["XT-INTERRUPTED"]
    again = f"xectool diagnose compile {files / 'config.yaml'} --set=training.epochs=7 --device cpu"
    again += " --steps 1 --timeout 600 --modes default,max-autotune-no-cudagraphs"
    assert document["findings"][0]["fix"] == again
    result = document["result"]
    assert [(mode["mode"], mode["error"]) for mode in result["modes"]] == [("none", "")]
    assert (result["interrupted"], result["config_lines"], result["graph_breaks"]) == (True, [], [])


def test_an_interrupted_mode_that_was_asked_for_alone_is_not_proposed_again() -> None:
    assert _again("C", ("none", "default"), 1) == "--set training.compile=none"
    assert _again("C", ("none", "default", "max-autotune"), 1) == "C --modes default,max-autotune"
    assert _again("C", ("none", "default", "max-autotune"), 2) == "C --modes max-autotune"


@pytest.mark.parametrize(("severity", "expected"), [(Severity.INFO, ""), (Severity.WARNING, "longer")])
def test_what_is_only_to_be_known_is_not_what_comes_next(severity: Severity, expected: str) -> None:
    result: Any = SimpleNamespace(
        config_lines=(), findings=(Finding("XT-COMPILE-TIMEOUT", severity, "p", fix="longer"),)
    )
    assert _next(result, "xectool train C") == expected
    assert _next(SimpleNamespace(config_lines=("training.compile: none",)), "xectool train C") == "xectool train C"
