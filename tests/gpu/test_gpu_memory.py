"""Memory of a GPU: estimated as it is taken, refused where it cannot fit, and named where it ran out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from xectool.runlog.reader import RunReader

Command, Configured = Callable[..., Any], Callable[..., Path]
LITTLE = 500_000_000
LARGE = {"encoder_dim": 256, "outer_fine_pool": [5, 3], "num_fusion_layers": 2, "hidden_dim": 128}
HOLD = """
import sys, torch
held = torch.empty(torch.cuda.mem_get_info()[0] - {left}, dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another(left: int) -> Iterator[None]:
    """Take the device's memory but for ``left`` bytes in another process."""
    words = [sys.executable, "-c", HOLD.format(left=left)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield
        finally:
            other.communicate("")


@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_estimate_is_within_a_tenth(command: Command, configured: Configured, amp: str) -> None:
    config = configured("regressor", model=LARGE, data={"batch_size": 64}, training={"amp": amp, "ema_decay": 0.9})
    estimate = command("estimate-memory", config, "--gpu", "h200-141gb").result["gpu"]["peak_bytes"]
    run = command("train", config, "--device", "cuda").result["run_dir"]
    taken = RunReader(run).epochs()[-1].metrics["perf/vram_peak_GB"] * 1e9
    assert abs(estimate / taken - 1) < 0.1, (estimate, taken)


def test_what_cannot_fit_is_refused(command: Command, configured: Configured) -> None:
    batch = torch.cuda.get_device_properties(0).total_memory // 10**7
    config = configured("regressor", model={"encoder_dim": 1024, "outer_fine_pool": None}, data={"batch_size": batch})
    refused = command("train", config, "--device", "cuda")
    assert refused.code == 2, refused.out + refused.err
    assert refused.codes[0] == "CFG-22", refused.out


@pytest.mark.fills_device
def test_memory_that_leaves_no_room_for_a_context_is_named(command: Command, configured: Configured) -> None:
    with held_by_another(100 << 20):
        failed = command("train", configured("regressor"), "--device", "cuda")
    assert (failed.code, failed.codes[0]) == (3, "XT-OOM-FOREIGN"), failed.out + failed.err


@pytest.mark.fills_device
@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_memory_held_by_another_process_is_named(command: Command, configured: Configured, amp: str) -> None:
    config = configured("regressor", model=LARGE, data={"batch_size": 320}, training={"amp": amp})
    with held_by_another(1200 << 20):
        failed = command("train", config, "--device", "cuda", "--run-name", "full")
    assert (failed.code, failed.codes[0]) == (3, "XT-OOM-FOREIGN"), failed.out + failed.err
    told = command("diagnose", "run", config.parent / "runs" / "full")
    assert told.codes[0] == "XT-OOM-FOREIGN", told.out


def test_a_step_too_large_is_named(configured: Configured, command: Command) -> None:
    config = configured("regressor", model=LARGE, data={"batch_size": 320})
    words = ["train", str(config), "--device", "cuda", "--run-name", "large", "--json"]
    program = (
        "import sys, torch; from xectool.cli import boundary; from xectool.cli.app import app; "
        f"torch.cuda.set_per_process_memory_fraction({LITTLE} / torch.cuda.mem_get_info()[1]); "
        f"sys.exit(boundary.run(app, {words}))"
    )
    failed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=400, check=False)
    assert '"XT-OOM-GPU"' in failed.stdout, failed.stdout + failed.stderr
    told = command("diagnose", "run", config.parent / "runs" / "large")
    assert told.codes[0] == "XT-OOM-GPU", told.out
