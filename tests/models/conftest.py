"""Small networks and the older system's outputs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from xectool.config.root import RegressorConfig
from xectool.models import Regressor, build_model

RegressorBuilder = Callable[..., Regressor]
FillRecipe = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
FOUR_TASKS = ("angle", "energy", "timing", "uvwFI")


@pytest.fixture(scope="session")
def build_regressor() -> RegressorBuilder:
    """Build a small regressor in eval mode; keywords are keys of the ``model`` section."""

    def build(
        tasks: tuple[str, ...] = FOUR_TASKS, nll: tuple[str, ...] = (), checkpointing: str = "none", **model: Any
    ) -> Regressor:
        cfg = RegressorConfig(
            model={"encoder_dim": 128, "hidden_dim": 16} | model,
            tasks={
                name: {"enabled": True, "loss_fn": "gaussian_nll" if name in nll else "smooth_l1"} for name in tasks
            },
            training={"activation_checkpointing": checkpointing},
        )
        network = build_model(cfg).eval()
        assert isinstance(network, Regressor)
        return network

    return build


@pytest.fixture(scope="session")
def fill(reference_dir: Path) -> Callable[[nn.Module], None]:
    """Give a network the weights that the older system's outputs were made with."""
    spec = importlib.util.spec_from_file_location("fill_recipe", reference_dir / "fill_recipe.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)

    def load(network: nn.Module) -> None:
        network.load_state_dict(recipe.fill_state_dict(network.state_dict()))

    return load


@pytest.fixture(scope="session")
def stored(reference_dir: Path) -> Callable[[str], dict[str, Any]]:
    """Read one file of the older system's outputs."""

    def read(name: str) -> dict[str, Any]:
        with np.load(reference_dir / name) as arrays:
            return {key: arrays[key] for key in arrays.files}

    return read


@pytest.fixture
def events() -> tuple[Tensor, Tensor]:
    """Raw npho and time of three events, with dead channels and missing times."""
    generator = torch.Generator().manual_seed(11)
    npho = torch.rand(3, 4760, generator=generator).pow(4) * 5000
    npho[:, ::97] = 1e10
    time = torch.randn(3, 4760, generator=generator) * 1e-8
    return npho, torch.where(npho < 1, 1e10, time)
