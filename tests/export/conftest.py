"""Small networks with checkpoints, and files exported from them."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.config.load import config_from_dict
from xectool.engine.exporting import ExportResult
from xectool.models.build import build_model

Lean = Callable[[], AbstractContextManager[None]]
TASKS = {
    "angle": {"enabled": True, "scale": 12.0, "shift": 90.0},
    "energy": {"enabled": True, "scale": 0.014, "shift": 0.037, "loss_fn": "gaussian_nll", "loss_beta": 0.5},
    "timing": {"enabled": True, "scale": 1e-9, "shift": -2e-10},
}
RESOLUTIONS = {"angle_resolution_68pct": 4.0, "energy_res_68pct": 0.001, "timing_res_68pct": 1e-10}


def configuration(kind: str, **model: Any) -> dict[str, Any]:
    """A small network of a kind; ``model`` goes before what makes it small."""
    small: dict[str, Any] = {"encoder_dim": 32, "outer_fine_pool": [5, 3], "num_fusion_layers": 1}
    own = {"regressor": {"hidden_dim": 8}, "mae": {"decoder_dim": 8}, "inpainter": {}}[kind]
    found: dict[str, Any] = {
        "kind": kind,
        "data": {"train_path": "train.root", "val_path": "val.root", "batch_size": 8},
        "model": small | own | model,
        "mlflow": {"enabled": False},
    }
    return found | ({"tasks": TASKS} if kind == "regressor" else {})


def random_network(config: dict[str, Any], seed: int = 0) -> nn.Module:
    """The network with weights in which nothing is zero, so that every path shows in the output."""
    torch.manual_seed(seed)
    model = build_model(config_from_dict(config, "test"))
    with torch.no_grad():
        for value in model.parameters():
            value += 0.02 * torch.randn_like(value)
    return model.eval()


def save_checkpoint(path: Path, config: dict[str, Any], seed: int = 0, **meta: Any) -> Path:
    """A checkpoint of a random network, with an average that is another network."""
    weights = dict(random_network(config, seed).state_dict())
    average = dict(random_network(config, seed + 1).state_dict())
    resolved = config_from_dict(config, "test").to_dict()
    facts = {"kind": config["kind"], "config": resolved, "progress": {"history": [RESOLUTIONS]}, "epoch": 1, "step": 1}
    store.save(path, Checkpoint(facts | meta, weights, average))
    return path


@dataclass(frozen=True)
class Sample:
    """A checkpoint and what was exported from it."""

    checkpoint: Path
    result: ExportResult

    @property
    def path(self) -> Path:
        """The exported file."""
        return Path(self.result.path)


@pytest.fixture(autouse=True)
def _few_blocks(request: pytest.FixtureRequest, lean: Lean) -> Iterator[None]:
    """An exporter takes a second a block: only the older system's networks, and those of the pages, have them all."""
    with nullcontext() if "reference_dir" in request.fixturenames else lean():
        yield


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory, lean: Lean) -> Callable[..., Path]:
    def make(kind: str, seed: int = 0, **model: Any) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        with lean():
            return save_checkpoint(folder / "checkpoint_best.pt", configuration(kind, **model), seed)

    return make


@pytest.fixture(scope="session")
def make_sample(tmp_path_factory: pytest.TempPathFactory, lean: Lean) -> Callable[..., Sample]:
    """Export a small network: once, also where several processes share the tests; ``told`` goes to the export."""
    place = tmp_path_factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place

    def make(name: str, kind: str, told: dict[str, Any], **model: Any) -> Sample:
        source, result = place / name / "checkpoint_best.pt", place / name / "result.pickle"
        with (place / f"{name}.lock").open("w") as lock, lean():
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not result.exists():
                source.parent.mkdir(exist_ok=True)
                save_checkpoint(source, configuration(kind, **model))
                result.write_bytes(pickle.dumps(engine.export(source, output=source.with_name(name), **told)))
        return Sample(source, pickle.loads(result.read_bytes()))

    return make


@pytest.fixture(scope="session")
def onnx_regressor(make_sample: Callable[..., Sample]) -> Sample:
    return make_sample("regressor.onnx", "regressor", {})


@pytest.fixture(scope="session")
def script_regressor(make_sample: Callable[..., Sample]) -> Sample:
    return make_sample("regressor.torchscript", "regressor", {})


@pytest.fixture(scope="session")
def script_inpainter(make_sample: Callable[..., Sample], few: dict[str, Any]) -> Sample:
    return make_sample("inpainter.torchscript", "inpainter", few, predict_channels=["npho", "time"])


@pytest.fixture(scope="session")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty simulated events with truth."""
    path = tmp_path_factory.mktemp("events") / "events.root"
    engine.simulate(str(path), events=20, seed=9)
    return path


@pytest.fixture(scope="session")
def few(events: Path) -> dict[str, Any]:
    """What an export of sensors is told: to be compared on eight events, not 64 at 40 ms each and five times."""
    return {"verify_on": [str(events)], "max_events": 8}


@pytest.fixture(scope="session")
def networks() -> Callable[..., Any]:
    known: dict[str, nn.Module] = {}

    def network(kind: str, **model: Any) -> nn.Module:
        key = f"{kind} {sorted(model.items())}"
        if key not in known:
            known[key] = random_network(configuration(kind, **model))
        return known[key]

    return network


@pytest.fixture(scope="session")
def make_network() -> Callable[..., nn.Module]:
    """A fresh network that a test may spoil."""
    return lambda kind, settings=None, **model: random_network(
        configuration(kind, **model) | {"normalization": settings or {}}
    )
