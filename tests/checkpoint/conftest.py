"""Sound checkpoints of every family, written by the programs that write them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.config.root import KINDS, base_of
from xectool.engine.inspection import CheckpointInspected
from xectool.models import build_model
from xectool.training.optimization.optim import build_optimizer
from xectool.training.stepping.state import Progress, _random_state

SMALL: dict[str, Any] = {"encoder_dim": 32, "num_fusion_layers": 1}
OWN: dict[str, dict[str, Any]] = {"regressor": {"hidden_dim": 8}, "mae": {"decoder_dim": 8}, "inpainter": {}}
TASKS: dict[str, Any] = {
    "tasks": {"energy": {"enabled": True, "loss_fn": "gaussian_nll", "scale": 0.01}, "uvwFI": {"enabled": True}}
}


def ours(kind: str, **model: Any) -> Checkpoint:
    """One optimizer step of a run of ours, whole."""
    sections = TASKS if base_of(kind) == "regressor" else {}
    config = KINDS[kind](model=SMALL | OWN[base_of(kind)] | model, training={"ema_decay": 0.9}, **sections)
    torch.manual_seed(3)
    network = build_model(config)
    optimizer = build_optimizer([network], 1e-3, 1e-4)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter) * 1e-3
    optimizer.step()
    progress = Progress(epoch=2, step=1, history=[{"val/loss": 0.5}], best_loss=0.5, best_epoch=1)
    meta = {
        "kind": kind, "config": config.to_dict(), "progress": asdict(progress), "epoch": 2, "step": 1,
        "num_averaged": 1, "guard": {}, "schedule": {}, "versions": {"torch": str(torch.__version__)},
        "train_files": [{"name": "train.root", "events": 24, "entries": 24}],
    }  # fmt: skip
    weights = {name: value.detach().clone() for name, value in network.state_dict().items()}
    average = {name: v * 1.01 if v.is_floating_point() else v for name, v in weights.items()}
    training = {"optimizer": optimizer.state_dict(), "scaler": {}, "task": {}, "rng": _random_state()}
    return Checkpoint(meta, weights, average, training)


def plain_network() -> nn.Module:
    torch.manual_seed(5)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    network(torch.randn(16, 4))
    return network.eval()


def vision_transformer() -> dict[str, torch.Tensor]:
    """Names and layout of a timm vision transformer, very small."""
    torch.manual_seed(6)
    shapes = {
        "cls_token": (1, 1, 8), "pos_embed": (1, 5, 8), "patch_embed.proj.weight": (8, 3, 2, 2),
        "patch_embed.proj.bias": (8,), "blocks.0.norm1.weight": (8,), "blocks.0.attn.qkv.weight": (24, 8),
        "blocks.0.mlp.fc1.weight": (32, 8), "norm.weight": (8,), "head.weight": (10, 8), "head.bias": (10,),
    }  # fmt: skip
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def _lightning() -> dict[str, Any]:
    network = plain_network()
    weights = {f"model.{name}": value for name, value in network.state_dict().items()}
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    return {
        "epoch": 3, "global_step": 30, "pytorch-lightning_version": "2.5.5", "state_dict": weights,
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {"ModelCheckpoint": {"best_model_path": "a.ckpt", "kth_value": torch.tensor(torch.inf)}},
        "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [], "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 1e-3, "name": "small"},
    }  # fmt: skip


def _write(directory: Path) -> dict[str, Path]:
    network = plain_network()
    weights = network.state_dict()
    paths = {name: directory / file for name, file in FAMILIES.items()}
    for kind in KINDS:
        store.save(paths[kind], ours(kind))
    torch.save(weights, paths["state dict"])
    torch.save({f"module.{name}": value for name, value in weights.items()}, paths["ddp"])
    torch.save({f"_orig_mod.{name}": value for name, value in weights.items()}, paths["compiled"])
    torch.save(weights, paths["legacy"], _use_new_zipfile_serialization=False)
    torch.save(_lightning(), paths["lightning"])
    torch.save({"arch": "vit_tiny", "state_dict": vision_transformer(), "epoch": 7, "version": 2}, paths["timm"])
    safetensors.torch.save_file(weights, paths["safetensors"], {"format": "pt"})
    safetensors.torch.save_file(vision_transformer(), paths["timm safetensors"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its own exporters deprecated
        torch.jit.script(network).save(paths["torchscript"])
        torch.onnx.export(network, (torch.randn(2, 4),), paths["onnx"], dynamo=True, external_data=False, verbose=False)
    return paths


FAMILIES = {
    "regressor": "regressor.pt", "mae": "mae.pt", "inpainter": "inpainter.pt", "state dict": "plain.pt",
    "ddp": "ddp.pth", "compiled": "compiled.pth", "legacy": "legacy.pth", "lightning": "lightning.ckpt",
    "timm": "timm.pth.tar", "safetensors": "model.safetensors", "timm safetensors": "vit.safetensors",
    "torchscript": "scripted.torchscript", "onnx": "model.onnx",
}  # fmt: skip


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound file of every family, by its name in FAMILIES."""
    return _write(tmp_path_factory.mktemp("families"))


@pytest.fixture
def inspected(tmp_path: Path) -> Callable[..., CheckpointInspected]:
    """Inspect changed bytes under a file name."""

    def run(content: bytes, name: str = "changed.pt", **options: Any) -> CheckpointInspected:
        path = tmp_path / name
        path.write_bytes(content)
        return engine.inspect_ckpt(path, **options)

    return run
