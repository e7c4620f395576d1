"""Reduced precision on a GPU takes more in float32 than on the CPU, on which steps are taped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from xectool import models
from xectool.config.load import config_from_dict
from xectool.training.memory_estimate.child import ask
from xectool.training.memory_estimate.device import WORKSPACE_BYTES, Device
from xectool.training.memory_estimate.gpu_autocast import RECOMPUTING, GpuAutocast
from xectool.training.memory_estimate.request import StepRequest

pytestmark = pytest.mark.deep

# torch.cuda.max_memory_allocated of an H200 with PyTorch 2.11, bytes, and how far the prediction may be off:
# without what GpuAutocast does it is 7.2 and 2.5 %
MEASURED: list[tuple[dict[str, Any], float, float]] = [
    (
        {
            "kind": "regressor",
            "data": {"batch_size": 48},
            "tasks": {name: {"enabled": True, "scale": 1.0, "shift": 0.0} for name in ("energy", "angle", "timing")},
            "model": {
                "encoder_dim": 160,
                "outer_fine_pool": None,
                "num_fusion_layers": 2,
                "dropout": 0.0,
                "outer_mode": "split",
            },
            "training": {"amp": "bf16", "ema_decay": 0.99, "channel_dropout_rate": 0.1},
        },
        282.9e6,
        0.03,
    ),
    (
        {
            "kind": "inpainter",
            "data": {"batch_size": 48},
            "model": {
                "encoder_dim": 256,
                "outer_fine_pool": [5, 3],
                "num_fusion_layers": 4,
                "dropout": 0.0,
                "head_type": "cross_attention",
                "freeze_encoder": True,
                "mask_ratio": 0.05,
                "predict_channels": ["npho"],
            },
            "training": {"amp": "bf16", "ema_decay": None, "grad_accum_steps": 2},
        },
        259.2e6,
        0.02,
    ),
]


@pytest.mark.slow
def test_peaks_in_bf16_are_those_of_an_h200() -> None:
    requests = {}
    for number, (case, _, _) in enumerate(MEASURED):
        config = config_from_dict(case, "test")
        steps = config.training.grad_accum_steps
        request = StepRequest(config.to_dict(), config.data.batch_size, steps, "bf16", 0, 1.0, 1.0, on_gpu=True)
        requests[str(number)] = request
    card = Device("H200", 141 * 10**9, is_gpu=True, at_hand=True)
    for tape, (case, measured, off) in zip(ask(requests, 1).recordings, MEASURED, strict=True):
        assert card.allocated(tape) == pytest.approx(measured, rel=off), case["kind"]


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        (lambda x: F.layer_norm(x, (8,)), torch.float32),
        (lambda x: F.softmax(x, dim=-1), torch.float32),
        (lambda x: x.softmax(dim=-1), torch.float32),
        (lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"), torch.float32),
        (lambda x: x**2, torch.float32),
        (lambda x: 1 / x, torch.float32),
        (lambda x: F.gelu(x), torch.bfloat16),
        (lambda x: x + x, torch.bfloat16),
        (lambda x: F.linear(x, x), torch.bfloat16),
    ],
)
def test_float32_where_autocast_of_a_gpu_takes_it(work: Callable[[Tensor], Tensor], kind: torch.dtype) -> None:
    given = torch.ones(8, 8, dtype=torch.bfloat16)
    with GpuAutocast():
        assert work(given).dtype is torch.bfloat16  # autocast is off
        with torch.autocast("cpu", torch.bfloat16):
            assert work(given).dtype is kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regressor", "inpainter"])
def test_what_is_computed_again_is_as_wide_as_before(kind: str) -> None:
    case: dict[str, Any] = {"kind": kind, "model": {"encoder_dim": 64}}
    case |= {"tasks": {"energy": {"enabled": True, "scale": 1.0, "shift": 0.0}}} if kind == "regressor" else {}
    requests = {}
    for way in ("none", "stages"):
        training = {"amp": "bf16", "activation_checkpointing": way}
        config = config_from_dict(case | {"training": training}, "test")
        requests[way] = StepRequest(config.to_dict(), 4, 1, "bf16", 0, 1.0, 1.0, on_gpu=True)
    whole, again = ask(requests, 1).recordings  # PyTorch refuses what it computes again as another type
    assert again.saved() < whole.saved()


def test_every_module_that_computes_again_is_known() -> None:
    files = [
        path for path in Path(models.__file__).parent.glob("*.py") if "utils.checkpoint" in path.read_text("utf-8")
    ]
    assert {path.stem for path in files} == {module.__name__.rpartition(".")[2] for module in RECOMPUTING}


def test_workspaces_are_counted_where_an_allocator_can_be_asked() -> None:
    tape = ask({"one": _small()}, 1).recordings[0]
    there, here = (Device("H200", 141 * 10**9, is_gpu=True, at_hand=at_hand) for at_hand in (False, True))
    assert here.allocated(tape) - there.allocated(tape) == WORKSPACE_BYTES
    assert there.allocated(tape) == there.tensors(tape)
    assert here.needed(tape) == there.needed(tape)
    cpu = Device("cpu", 8 * 10**9, is_gpu=False, at_hand=True)
    assert cpu.allocated(tape) == cpu.tensors(tape)


def _small() -> StepRequest:
    tasks = {"energy": {"enabled": True, "scale": 1.0, "shift": 0.0}}
    config = config_from_dict({"kind": "regressor", "tasks": tasks, "model": {"encoder_dim": 32}}, "test")
    return StepRequest(config.to_dict(), 2, 1, "off", 0, 1.0, 1.0)
