"""The masked autoencoder: equal to the older one with its geometry, right with the detector's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from xectool.checkpoint import store
from xectool.config.load import config_from_dict
from xectool.config.root import MaeConfig
from xectool.detector import faces
from xectool.models import build_model
from xectool.models.mae import MaskedAutoencoder
from xectool.models.outer_grid import fine_owners
from xectool.models.outer_regions import cell_sensors, sensor_cells

Stored = Callable[[str], dict[str, Any]]
Fill = Callable[[nn.Module], None]
VARIANTS: dict[str, dict[str, Any]] = {
    "mae_fine": {},
    "mae_pool33_npho": {"outer_fine_pool": [3, 3], "predict_channels": ["npho"]},
    "mae_split": {"outer_mode": "split"},
}
PRECISIONS = [(torch.float32, "", 1e-5), (torch.float64, "__f64", 1e-9)]
SHAPES: list[dict[str, Any]] = [
    {},
    {"outer_fine_pool": [5, 3]},
    {"outer_fine_pool": [3, 3]},
    {"outer_mode": "split"},
    {"geometry": "compat"},
    {"geometry": "compat", "outer_fine_pool": [2, 2]},
    {"geometry": "compat", "outer_mode": "split"},
]


def _build(auto: bool = False, **model: Any) -> MaskedAutoencoder:
    cfg = MaeConfig(
        model={"encoder_dim": 32, "decoder_dim": 8, "num_fusion_layers": 1} | model,
        training={"auto_channel_weight": auto},
    )
    network = build_model(cfg).eval()
    assert isinstance(network, MaskedAutoencoder)
    return network


def _deviation(ours: Tensor, theirs: np.ndarray) -> float:
    return float(np.abs(ours.double().cpu().numpy() - theirs).max() / max(1.0, np.abs(theirs).max()))


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_outputs_and_names_equal_the_older_ones(
    name: str, stored: Stored, fill: Fill, reference_dir: Path, device: str
) -> None:
    model = _build(True, geometry="compat", encoder_dim=256, num_fusion_layers=2, **VARIANTS[name])
    ours = [f"{key}\t{tuple(value.shape)}\t{value.dtype}" for key, value in model.state_dict().items()]
    assert ours == (reference_dir / f"variants/{name}_keys.tsv").read_text().splitlines()
    fill(model)
    arrays = stored(f"variants/{name}_io.npz")
    mask = torch.from_numpy(arrays["rmask_seed77"]).to(device)
    for dtype, suffix, tolerance in PRECISIONS:
        x = torch.from_numpy(arrays["x"]).to(device, dtype)
        for prefix, zeroed in (("fcmae", True), ("nomask", False)):
            images = model.to(device, dtype).reconstruct(x, mask, zero_hidden=zeroed)
            for face, image in images.items():
                assert _deviation(image, arrays[f"{prefix}_{face}{suffix}"]) < tolerance


@torch.no_grad()
def test_an_older_checkpoint_gives_its_older_outputs(stored: Stored, reference_dir: Path) -> None:
    checkpoint = store.load(reference_dir / "checkpoints" / "mae_small_checkpoint_best_stripped.pth")
    model = build_model(config_from_dict(checkpoint.config, "older checkpoint")).eval()
    assert isinstance(model, MaskedAutoencoder)
    arrays = stored("mae_small_io.npz")
    mask = torch.from_numpy(arrays["rmask_seed9"])
    for prefix, weights in (("model", checkpoint.model), ("ema", checkpoint.ema)):
        model.float().load_state_dict(weights)
        for dtype, suffix, tolerance in PRECISIONS:
            images = model.to(dtype).reconstruct(torch.from_numpy(arrays["x"]).to(dtype), mask)
            assert max(_deviation(images[face], arrays[f"{prefix}_{face}{suffix}"]) for face in images) < tolerance
    torch.manual_seed(9)
    x = torch.from_numpy(arrays["x"])
    assert torch.equal(model.hider.draw(x, x != -1), mask.bool())


@pytest.mark.parametrize("settings", SHAPES)
def test_forward_returns_what_a_loss_needs(settings: dict[str, Any], events: tuple[Tensor, Tensor]) -> None:
    model = _build(True, **settings).train()
    torch.manual_seed(4)
    outputs = model(*events)
    assert outputs["sensors"].shape == (3, 4760, 2)
    assert torch.equal(outputs["mask"].sum(1), (outputs["maskable"].sum(1).float() * 0.6).floor().long())
    assert not (outputs["mask"] & ~outputs["maskable"]).any()
    assert torch.equal(outputs["hidden"] & outputs["mask"], outputs["mask"])
    targets, masks = model.face_targets(outputs["x"], outputs["valid"]), model.face_values(outputs["mask"].float())
    for face, target in targets.items():
        assert outputs[face].shape == target.shape
        assert masks[face].shape == target.shape[:1] + target.shape[2:]
    (outputs["sensors"].square().mean() + outputs["channel_log_vars"].sum()).backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


@torch.no_grad()
def test_a_seed_or_a_given_mask_repeats_an_event(events: tuple[Tensor, Tensor]) -> None:
    model = _build()
    runs = []
    for _ in range(2):
        torch.manual_seed(8)
        runs.append(model(*events))
    given = model(*events, runs[0]["mask"])
    for outputs in (runs[1], given):
        assert torch.equal(outputs["mask"], runs[0]["mask"])
        assert torch.equal(outputs["sensors"], runs[0]["sensors"])


@pytest.mark.parametrize("settings", SHAPES[:4])
@torch.no_grad()
def test_nothing_leaks_from_a_hidden_sensor(settings: dict[str, Any], events: tuple[Tensor, Tensor]) -> None:
    model, (npho, time) = _build(**settings), events
    mask = model(npho, time)["mask"]
    mask[:, 4742:] = True  # the centre of the outer face, whose mask the older system leaves out
    changed = torch.where(mask, npho * 3 + 17, npho), torch.where(mask, time + 5e-8, time)
    assert torch.equal(model(npho, time, mask)["sensors"], model(*changed, mask)["sensors"])


@pytest.mark.parametrize("settings", SHAPES[:4])
@torch.no_grad()
def test_the_target_image_read_by_sensor_is_the_event_itself(
    settings: dict[str, Any], events: tuple[Tensor, Tensor]
) -> None:
    model = _build(**settings)
    x, valid = model.normalizer.normalize(*events)
    read = model.by_sensor(model.face_targets(x, valid))
    torch.testing.assert_close(read, x, rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_older_image_read_by_sensor_is_the_event_but_for_the_twelve_hidden_ones(stored: Stored) -> None:
    model = _build(geometry="compat")
    x = torch.from_numpy(stored("variants/mae_fine_io.npz")["x"])
    wrong = (model.by_sensor(model.face_targets(x)) - x).abs().amax((0, 2)) > 1e-5
    overwritten = [*range(4174, 4178), *range(4198, 4202), *range(4222, 4226)]
    assert set(wrong.nonzero().flatten().tolist()) <= set(overwritten)


def test_two_token_outer_face_predicts_its_centre_in_the_right_geometry_only() -> None:
    assert _build(outer_mode="split").covered.all()
    missing = (~_build(geometry="compat", outer_mode="split").covered).nonzero().flatten()
    assert missing.tolist() == list(range(4742, 4760))


def test_the_outer_mask_covers_exactly_the_cells_of_hidden_sensors() -> None:
    model, mask = _build(), torch.zeros(1, 4760)
    mask[0, [4744, 4100]] = 1
    image = model.face_values(mask)["outer"][0]
    assert np.array_equal(image.numpy() == 1, np.isin(fine_owners("physical").T, [4744, 4100]))


def test_regions_of_outer_sensors_equal_the_older_ones(stored: Stored) -> None:
    units = stored("units.npz")
    for name, pool in (("none", None), ("33", (3, 3)), ("53", (5, 3))):
        cells, used = sensor_cells("compat", pool)
        assert np.array_equal(cells, units[f"geom_gather_{name}"])
        assert np.array_equal(used, units[f"geom_gathervalid_{name}"])


@pytest.mark.parametrize("pool", [None, (5, 3), (3, 3), (2, 2), (7, 7)])
def test_every_outer_sensor_owns_cells_and_is_shown_by_them(pool: tuple[int, int] | None) -> None:
    cells, used = sensor_cells("physical", pool)
    shown = cell_sensors("physical", pool)
    assert used.any(axis=1).all()
    for local, sensor in enumerate(faces.sensors("outer")):
        assert (shown[cells[local, used[local]]] == sensor).any(axis=1).all()


def test_recomputing_the_encoder_gives_the_same_gradients(events: tuple[Tensor, Tensor]) -> None:
    gradients = []
    for mode in ("none", "stages"):
        torch.manual_seed(0)
        model = _build(dropout=0.0).train()
        model.set_activation_checkpointing(mode)
        torch.manual_seed(1)
        model(*events)["sensors"].square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[0], gradients[1])
