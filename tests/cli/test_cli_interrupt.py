"""A stopped training ends in one document, exit code 130, and a run that goes on; plain output is plain."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

XECTOOL = [sys.executable, "-m", "xectool"]
PLAIN = ["--set", "checkpoint.save_artifacts=false"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_in_one_document_and_a_run_that_goes_on(
    files: Path, xectool: Callable[..., Any], number: signal.Signals
) -> None:
    name = f"stopped{number}"
    argv = [
        *XECTOOL,
        "train",
        str(files / "config.yaml"),
        "--run-name",
        name,
        "--json",
        *PLAIN,
        "--set",
        "training.epochs=500",
    ]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(files / "runs" / name / "checkpoint_last.pt")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    document = json.loads(out)
    assert (document["status"], document["result"]["status"]) == ("error", "interrupted")
    assert [found["code"] for found in document["findings"]] == ["XT-INTERRUPTED"]
    assert "--resume" in document["findings"][0]["fix"]
    epochs = document["result"]["epochs"]
    more = ["--run-name", name, "--json", "--resume", "auto", *PLAIN, "--set", f"training.epochs={epochs + 1}"]
    assert xectool("train", files / "config.yaml", *more).document["result"]["epochs"] == epochs + 1


def test_no_color_on_a_terminal_means_no_escape_codes_at_all(files: Path) -> None:
    main, terminal = pty.openpty()
    argv = [
        *XECTOOL,
        "train",
        str(files / "config.yaml"),
        "--run-name",
        "uncoloured",
        *PLAIN,
        "--set",
        "training.lr=1.0",
    ]
    environment = {**os.environ, "NO_COLOR": "1"}
    process = subprocess.Popen(argv, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    shown = b""
    while block := read(main):
        shown += block
    assert process.wait() == 0, shown
    assert b"epoch 1" in shown
    assert b"CFG-29" in shown
    assert b"\x1b" not in shown


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end of the terminal is closed
        return b""


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} did not appear")
