"""What runs on a GPU, on a machine that pretends one: every tensor is where the operation on it expects it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "pretend_gpu.py"
MODEL = "model: {encoder_dim: 32, outer_fine_pool: [5, 3], num_fusion_layers: 1"
KINDS = {
    "regressor": f"{MODEL}, hidden_dim: 8}}\ntasks: {{energy: {{enabled: true, scale: auto, shift: auto}}}}",
    "mae": f"{MODEL}, decoder_dim: 8}}",
    "inpainter": f"{MODEL}, head_type: cross_attention, predict_channels: [npho, time]}}",
}


@pytest.fixture
def python(warm: Any) -> Callable[..., Any]:
    """Return what runs a program in a process of its own, which has its imports behind it."""
    run: Callable[..., Any] = warm.run
    return run


@pytest.mark.parametrize("kind", KINDS)
def test_main_job(files: Path, tmp_path: Path, python: Callable[..., Any], kind: str) -> None:
    config, run = tmp_path / "config.yaml", tmp_path / "runs" / "gpu"
    config.write_text(
        f"kind: {kind}\n{KINDS[kind]}\n"
        f"data: {{train_path: {files}/train.root, val_path: {files}/val.root, batch_size: 8}}\n"
        "training: {epochs: 1, grad_accum_steps: 2, ema_decay: 0.9, warmup_epochs: 0}\n"
        f"checkpoint: {{save_dir: {run.parent}}}\nmlflow: {{enabled: false}}\n",
        encoding="utf-8",
    )
    trained = python(str(PROGRAM), "train", str(config), "--run-name", "gpu")
    assert trained.returncode == 0, trained.stderr
    assert "execution  device cuda:0" in trained.stderr + trained.stdout
    predicted = python(str(PROGRAM), "predict", str(run / "checkpoint_best.pt"), str(files / "val.root"), "--json",
                         "--output", str(tmp_path / "p.root"))  # fmt: skip
    assert predicted.returncode == 0, predicted.stderr
    assert json.loads(predicted.stdout)["result"]["events"] == 8


def test_tensors_of_two_devices_fail_as_on_a_gpu(python: Callable[..., Any]) -> None:
    begin = f"import sys, torch; sys.path.insert(0, {str(PROGRAM.parent)!r}); import pretend_gpu; pretend_gpu.start(); "
    mixed = python("-c", begin + "torch.ones(3, device='cuda') + torch.ones(3)")
    assert "found at least two devices, cuda:0 and cpu!" in mixed.stderr
    read = python("-c", begin + "torch.ones(3).to('cuda').numpy()")
    assert "can't convert cuda:0 device type tensor to numpy" in read.stderr
