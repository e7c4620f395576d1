"""The compat geometry against outputs of the older system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from xectool.models import Regressor

ALL_TASKS = ("angle", "energy", "timing", "uvwFI", "angleVec", "n_gamma")
VARIANTS: dict[str, dict[str, Any]] = {
    "variants/reg_pool33": {"outer_fine_pool": [3, 3]},
    "variants/reg_split": {"outer_mode": "split"},
    "variants/reg_pool53_l3_ff96": {"outer_fine_pool": [5, 3], "num_fusion_layers": 3, "dim_feedforward": 96},
}
SMALL = {"geometry": "compat", "encoder_dim": 256, "hidden_dim": 16}
DEFAULT = {"geometry": "compat", "encoder_dim": 1024, "hidden_dim": 256}
PRECISIONS = [(torch.float32, "", 2e-5), (torch.float64, "__f64", 1e-9)]

Build = Callable[..., Regressor]
Stored = Callable[[str], dict[str, Any]]
Fill = Callable[[nn.Module], None]


def _assert_close(ours: Tensor, theirs: np.ndarray, tolerance: float) -> None:
    scale = max(1.0, float(np.abs(theirs).max()))
    np.testing.assert_allclose(ours.double().cpu().numpy(), theirs, rtol=0, atol=tolerance * scale)


@pytest.fixture(params=VARIANTS, scope="module")
def variant(request: pytest.FixtureRequest, build_regressor: Build, fill: Fill) -> tuple[str, Regressor]:
    model = build_regressor(ALL_TASKS, ("uvwFI",), **SMALL | VARIANTS[request.param])
    fill(model)
    return request.param, model


@pytest.mark.parametrize(("dtype", "suffix", "tolerance"), PRECISIONS)
@torch.no_grad()
def test_outputs_and_tokens_equal_the_older_ones(
    variant: tuple[str, Regressor], stored: Stored, device: str, dtype: torch.dtype, suffix: str, tolerance: float
) -> None:
    name, model = variant
    arrays = stored(f"{name}_io.npz")
    model.to(device, dtype)
    x, mask = torch.from_numpy(arrays["x"]).to(device, dtype), torch.from_numpy(arrays["mask"]).to(device)
    for task, output in model.forward_normalized(x).items():
        _assert_close(output, arrays[f"pred_{task}{suffix}"], tolerance)
    _assert_close(model.backbone(x), arrays[f"tokens{suffix}"], tolerance)
    _assert_close(model.backbone(x, mask), arrays[f"tokens_masked{suffix}"], tolerance)


@pytest.mark.parametrize("name", [*VARIANTS, "full/reg_default"])
def test_state_dict_has_the_older_names_shapes_and_order(
    name: str, build_regressor: Build, reference_dir: Path
) -> None:
    nll = () if name.startswith("full") else ("uvwFI",)
    model = build_regressor(nll=nll, **(DEFAULT if name.startswith("full") else SMALL | VARIANTS[name]))
    ours = [(key, str(tuple(value.shape)), str(value.dtype)) for key, value in model.state_dict().items()]
    lines = (reference_dir / f"{name}_keys.tsv").read_text().splitlines()
    assert ours == [tuple(line.split("\t")) for line in lines]


@torch.no_grad()
def test_faces_alone_equal_the_older_ones(build_regressor: Build, stored: Stored, fill: Fill) -> None:
    model = build_regressor(ALL_TASKS, ("uvwFI",), **SMALL | VARIANTS["variants/reg_pool33"])
    fill(model)
    arrays, encoder = stored("variants/reg_pool33_io.npz"), model.backbone
    x, mask = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["mask"]).float()
    _assert_close(encoder.backbone(encoder.face_image("inner", x).values), arrays["face_inner"], 2e-5)
    _assert_close(encoder.backbone(encoder.face_image("us", x).values), arrays["face_us"], 2e-5)
    _assert_close(encoder.backbone(*encoder.face_image("inner", x, mask)), arrays["face_inner_masked"], 2e-5)
    top = encoder.top_hex_indices
    _assert_close(encoder.hex_encoder(x[:, top]), arrays["hex_top"], 2e-5)
    _assert_close(encoder.hex_encoder(x[:, top], mask[:, top]), arrays["hex_top_masked"], 2e-5)


@pytest.mark.parametrize("pool", [None, [3, 3], [5, 3]])
def test_outer_grid_equals_the_older_one(pool: list[int] | None, build_regressor: Build, stored: Stored) -> None:
    units = stored("units.npz")
    grid = build_regressor(geometry="compat", outer_fine_pool=pool).backbone.outer
    image = grid(torch.from_numpy(units["x"]), None, None).values.permute(0, 3, 1, 2)
    _assert_close(image, units["grid_" + ("none" if pool is None else f"{pool[0]}{pool[1]}")], 1e-6)


@torch.no_grad()
def test_a_seed_gives_the_older_weights_at_the_default_size(build_regressor: Build, stored: Stored, fill: Fill) -> None:
    arrays = stored("full/reg_default_io.npz")
    x, mask = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["mask"])
    torch.manual_seed(2024)
    model = build_regressor(**DEFAULT)
    assert model.num_parameters() == 35_583_503
    for prefix in ("seed2024", "recipe"):
        for task, output in model.forward_normalized(x).items():
            _assert_close(output, arrays[f"{prefix}_{task}"], 2e-5)
        _assert_close(model.backbone(x), arrays[f"{prefix}_tokens"], 2e-5)
        fill(model)
    _assert_close(model.backbone(x, mask), arrays["recipe_tokens_masked"], 2e-5)
    _assert_close(model.double().backbone(x.double(), mask), arrays["recipe_tokens_masked__f64"], 1e-9)


def test_every_stored_variant_is_compared(reference_dir: Path) -> None:
    compared = "".join(path.read_text() for path in Path(__file__).parent.glob("test_models_*.py"))
    stored = {path.name.removesuffix("_io.npz") for path in (reference_dir / "variants").glob("*_io.npz")}
    assert len(stored) >= 13
    assert [name for name in sorted(stored) if f'{name}"' not in compared] == []
