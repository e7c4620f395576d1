"""Trainings on a GPU: every kind and precision, compiled, interrupted, judged and used afterwards."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uproot
from xectool.runlog.reader import RunReader

Command, Configured = Callable[..., Any], Callable[..., Path]
GENTLE_LR = 1e-5  # at 1e-3 rounding alone sets two runs apart by 10 % within ten steps: AdamW takes signs first
PRECISIONS = [
    ("regressor", "off"),
    ("regressor", "bf16"),
    ("regressor", "fp16"),
    ("mae", "bf16"),
    ("inpainter", "bf16"),
]


def losses(run: str | Path) -> list[float]:
    """Return the loss of every step."""
    return [step.loss for step in RunReader(run).steps()]


@pytest.mark.parametrize(("kind", "amp"), PRECISIONS)
def test_main_job(command: Command, configured: Configured, data: Path, kind: str, amp: str) -> None:
    config = configured(kind, training={"amp": amp, "ema_decay": 0.9, "grad_accum_steps": 2})
    result = command("train", config, "--device", "cuda").result
    steps = list(RunReader(result["run_dir"]).steps())
    assert len(steps) == 2 * 320 // 32
    assert all(math.isfinite(step.loss) for step in steps)
    assert np.mean([step.loss for step in steps[-5:]]) < np.mean([step.loss for step in steps[:5]])
    assert max(step.device_bytes for step in steps) > 0
    assert command("diagnose", "run", result["run_dir"]).result["causes"] == []
    output = Path(result["run_dir"]) / "again.root"
    predicted = command("predict", result["checkpoint_best"], data / "val.root", "-o", output, "--device", "cuda")
    assert predicted.result["events"] == 64


def test_losses_are_those_of_the_cpu(command: Command, configured: Configured) -> None:
    training = {"amp": "off", "channel_dropout_rate": 0.0, "lr": GENTLE_LR}  # devices draw otherwise
    config = configured("regressor", training=training)
    runs = [
        command("train", config, "--device", device, "--run-name", device, "--max-steps", 10).result["run_dir"]
        for device in ("cuda", "cpu")
    ]
    there, here = map(losses, runs)
    np.testing.assert_allclose(there, here, rtol=1e-3)
    np.testing.assert_allclose(there[0], here[0], rtol=1e-4)


def test_predictions_are_those_of_the_cpu(command: Command, configured: Configured, data: Path, tmp_path: Path) -> None:
    trained = command("train", configured("regressor"), "--device", "cuda").result
    values = {}
    for device in ("cuda", "cpu"):
        output = tmp_path / f"{device}.root"
        words = ("predict", trained["checkpoint_best"], data / "val.root", "-o", output, "--device", device)
        assert command(*words).result["events"] == 64
        with uproot.open(output) as file:
            values[device] = file["tree"].arrays(["pred_energy", "pred_uvwFI"], library="np")
    for name, of_gpu in values["cuda"].items():
        spread = values["cpu"][name].std()
        assert np.abs(of_gpu - values["cpu"][name]).max() < 0.01 * spread, name


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("kind", ["regressor", "mae", "inpainter"])
def test_compiled_steps_are_those_of_eager_ones(command: Command, configured: Configured, kind: str, mode: str) -> None:
    config = configured(kind, training={"amp": "off", "lr": GENTLE_LR})
    runs = []
    for way in (mode, "none"):
        words = ("--max-steps", 12, "--run-name", way, "--set", f"training.compile={way}")
        runs.append(command("train", config, "--device", "cuda", *words).result["run_dir"])
    compiled, eager = map(losses, runs)
    np.testing.assert_allclose(compiled, eager, rtol=2e-3)


def test_an_interrupted_run_goes_on_as_if_nothing_had_been(command: Command, configured: Configured) -> None:
    config = configured("regressor", training={"amp": "off", "ema_decay": 0.9, "deterministic": True})
    whole = command("train", config, "--device", "cuda", "--run-name", "whole").result["run_dir"]
    part = ("train", config, "--device", "cuda", "--run-name", "part")
    assert command(*part, "--max-steps", 13).result["steps"] == 13
    gone_on = command(*part, "--resume", "auto").result["run_dir"]
    np.testing.assert_array_equal(losses(gone_on), losses(whole))
    assert len(losses(whole)) == 40


def test_a_step_that_does_not_repeat_says_why(command: Command, configured: Configured) -> None:
    run = command("train", configured("regressor", training={"amp": "off"}), "--device", "cuda").result["run_dir"]
    ended = command("diagnose", "replay", run, "--step", 25, "--device", "cuda")
    again = json.loads(ended.out)["result"]
    assert again["modules"]
    assert again["reproduced"] or "training.deterministic" in " ".join(again["why"]), again


def test_a_deterministic_run_is_reproduced_bit_for_bit(command: Command, configured: Configured) -> None:
    config = configured("regressor", training={"amp": "off", "deterministic": True})
    run = command("train", config, "--device", "cuda").result["run_dir"]
    again = command("diagnose", "replay", run, "--step", 25, "--device", "cuda").result
    assert again["reproduced"], again
    twice = command("diagnose", "reproducibility", config, "--device", "cuda", "--steps", 3).result
    assert twice["identical"], twice


def test_a_poisoned_event_is_named(command: Command, configured: Configured, data: Path, tmp_path: Path) -> None:
    with uproot.open(data / "train.root") as file:
        columns = file["tree"].arrays(library="np")
    columns["npho"] = np.array(columns["npho"])
    columns["npho"][37, 1234] = np.inf
    poisoned = tmp_path / "poisoned.root"
    with uproot.recreate(poisoned) as file:
        file["tree"] = columns
    config = configured("regressor", data={"train_path": str(poisoned)})
    found = command("diagnose", "nan-batch", config, "--device", "cuda", "--full")
    assert found.code in (0, 1), found.err
    assert '"entry": 37' in found.out, found.out
    assert "1234" in found.out


def test_sweep_of_rates(command: Command, configured: Configured) -> None:
    swept = command("lr-sweep", configured("regressor"), "--device", "cuda", "--steps", 20)
    assert swept.code in (0, 1), swept.err  # 1: nothing to recommend
    result = json.loads(swept.out)["result"]
    assert len(result["rows"]) >= 5, result
    assert all(math.isfinite(row["loss_start"]) for row in result["rows"]), result


@pytest.mark.parametrize("to", ["onnx", "safetensors"])
def test_export_of_what_was_trained_there(command: Command, configured: Configured, data: Path, to: str) -> None:
    trained = command("train", configured("regressor"), "--device", "cuda", "--max-steps", 10).result
    output = Path(trained["run_dir"]) / f"exported.{to}"
    exported = command("export", trained["checkpoint_last"], "--to", to, "--output", output,
                       "--verify-on", data / "val.root").result  # fmt: skip
    assert exported["verified_events"] > 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL takes one rank a GPU")
def test_two_ranks_through_nccl_are_one_with_the_doubled_batch(command: Command, configured: Configured) -> None:
    config = configured("regressor", training={"amp": "off"})
    words = ("train", config, "--device", "cuda", "--max-steps", 8, "--run-name")
    two = command(*words, "two", "--nproc", 2, "--set", "data.batch_size=8").result["run_dir"]
    one = command(*words, "one").result["run_dir"]
    np.testing.assert_allclose(losses(two), losses(one), rtol=1e-3)


def test_more_ranks_than_devices_are_refused(command: Command, configured: Configured) -> None:
    ranks = torch.cuda.device_count() + 1
    refused = command("train", configured("regressor"), "--device", "cuda", "--nproc", ranks, "--max-steps", 4)
    assert refused.code in (2, 3), refused.out + refused.err
    assert "Traceback" not in refused.err
    assert "GPU" in refused.out + refused.err
