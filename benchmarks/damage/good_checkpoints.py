"""Good checkpoints of every family: nothing may be said of them above a note, and each is recognised."""

from __future__ import annotations

import lzma
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn
from xectool.checkpoint import store

from benchmarks.damage.catalogue import Question, case
from benchmarks.damage.checkpoint_faults import KINDS
from benchmarks.damage.lab import Lab, words_of

OLDER = Path(__file__).parents[2] / ".." / "shared" / "reference" / "checkpoints"


def _good(name: str, write: Callable[[Lab, Path], object], suffix: str = "pt", **result: object) -> None:
    @case(f"good: {name}", "checkpoints")
    def build(lab: Lab) -> Question:
        path = lab.directory / f"model.{suffix}"
        write(lab, path)
        return Question(words_of("inspect-ckpt", path), result=result)


def _of(kind: str) -> Callable[[Lab, Path], object]:
    return lambda lab, path: path.write_bytes(lab.good.checkpoints[kind].read_bytes())


def _exported(kind: str) -> Callable[[Lab, Path], object]:
    return lambda lab, path: lab.run("export", lab.good.checkpoints[kind], "--to", "safetensors", "--output", path)


def _weights(lab: Lab, kind: str = "regressor") -> dict[str, torch.Tensor]:
    return dict(store.load(lab.good.checkpoints[kind]).model)


def _wrapped(prefix: str) -> Callable[[Lab, Path], object]:
    return lambda lab, path: torch.save({prefix + name: value for name, value in _weights(lab).items()}, path)


def _encoder(lab: Lab, path: Path) -> None:
    held = _weights(lab, "mae").items()
    torch.save({n.removeprefix("encoder."): v for n, v in held if n.startswith("encoder.")}, path)


def _network(lab: Lab) -> nn.Module:
    torch.manual_seed(int(lab.rng.integers(2**31)))
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def _lightning(lab: Lab, path: Path) -> None:
    network = _network(lab)
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    content: dict[str, Any] = {
        "epoch": 3, "global_step": 30, "pytorch-lightning_version": "2.5.5", "loops": {}, "callbacks": {},
        "state_dict": {f"model.{name}": value for name, value in network.state_dict().items()},
        "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [], "hyper_parameters": {"lr": 1e-3},
    }  # fmt: skip
    torch.save(content, path)


def _script(lab: Lab, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its own exporter deprecated
        torch.jit.script(_network(lab)).save(path)


def _onnx(lab: Lab, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(_network(lab), (torch.randn(2, 4),), path, dynamo=True, external_data=False, verbose=False)


for kind in KINDS:
    _good(f"a trained {kind}", _of(kind), kind=kind, format="xectool")
    _good(f"a {kind} as safetensors of ours", _exported(kind), "safetensors", kind=kind, container="safetensors")
_good("bare weights of a regressor", lambda lab, path: torch.save(_weights(lab), path), kind="regressor")
_good("bare weights wrapped by DDP", _wrapped("module."), prefixes=["module."])
_good("bare weights wrapped by compile and DDP", _wrapped("module._orig_mod."), prefixes=["module.", "_orig_mod."])
_good("a bare encoder", _encoder, kind="encoder")
_good("the layout of Lightning", _lightning, "ckpt", format="Lightning 2.5.5")
_good("TorchScript", _script, format="TorchScript", container="torchscript")
_good("ONNX", _onnx, "onnx", container="onnx")
_good(
    "foreign safetensors", lambda lab, path: safetensors.torch.save_file(_network(lab).state_dict(), path),
    "safetensors", format="safetensors",
)  # fmt: skip
_good(
    "the format before zip", lambda lab, path: torch.save(
        _network(lab).state_dict(), path, _use_new_zipfile_serialization=False), container="torch-legacy",
)  # fmt: skip
_good("packed by xz", lambda lab, path: path.write_bytes(lzma.compress(
    lab.good.checkpoints["mae"].read_bytes(), preset=0)), "pt.xz", kind="mae")  # fmt: skip


@case("good: held against its own configuration", "checkpoints")
def own_configuration(lab: Lab) -> Question:
    path = lab.good.checkpoints["regressor"]
    return Question(words_of("inspect-ckpt", path, "--config", path.parent / "config.yaml"))


def _older(path: Path) -> None:
    """Register a checkpoint of the older system, which only a note may be said of."""

    @case(f"good: the older system's {path.name}", "checkpoints")
    def build(lab: Lab) -> Question:
        return Question(words_of("inspect-ckpt", path.resolve()), result={"format": "older system"})


for older in sorted(OLDER.glob("*.pth*")):
    _older(older)
if not OLDER.is_dir():
    print(f"# skipped: the older system's checkpoints are not in {OLDER}")
