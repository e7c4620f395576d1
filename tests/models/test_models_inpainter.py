"""The inpainter: every head equal to the older one with its geometry, right with the detector's."""

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
from xectool.config.root import InpainterConfig
from xectool.detector import faces, geometry
from xectool.errors import DataFileError
from xectool.models import build_model
from xectool.models.inpaint_context import ImageContext
from xectool.models.inpainter import Inpainter
from xectool.models.sensor_neighbours import box_neighbours, hex_neighbours, nearest_sensors, position_waves

Stored = Callable[[str], dict[str, Any]]
Fill = Callable[[nn.Module], None]
BOTH = {"predict_channels": ["npho", "time"]}
SMALL_ATTENTION = {
    "head_type": "cross_attention",
    "cross_attn_k": 8,
    "cross_attn_hidden": 32,
    "cross_attn_latent_dim": 64,
    "cross_attn_pos_dim": 48,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "inp_perface_both": BOTH,
    "inp_perface_global_npho": {"use_local_context": False},
    "inp_perface_pool33": {"outer_fine_pool": [3, 3]},
    "inp_perface_split_npho": {"outer_mode": "split"},
    "inp_maskedattn_npho": {"use_masked_attention": True},
    "inp_xattn_both": {"head_type": "cross_attention"} | BOTH,
    "inp_xattn_split_npho": {"outer_mode": "split"} | SMALL_ATTENTION,
}
HEADS: dict[str, dict[str, Any]] = {
    "per_face": {},
    "per_face_without_prior": {"prior": "none"},
    "per_face_pool": {"outer_fine_pool": [5, 3]},
    "per_face_split": {"outer_mode": "split"},
    "global_only": {"use_local_context": False},
    "masked_attention": {"use_masked_attention": True},
    "masked_attention_split": {"use_masked_attention": True, "outer_mode": "split"},
    "cross_attention": SMALL_ATTENTION,
    "cross_attention_split": {"outer_mode": "split"} | SMALL_ATTENTION,
}


def _build(**model: Any) -> Inpainter:
    settings = {"encoder_dim": 32, "num_fusion_layers": 1, "freeze_encoder": False} | model
    network = build_model(InpainterConfig(model=settings)).eval()
    assert isinstance(network, Inpainter)
    with torch.no_grad():
        for weight in network.parameters():
            if not weight.any():  # layers that start at zero would let everything behind them pass untested
                weight.normal_(0.0, 0.1)
    return network


def _deviation(ours: Tensor, theirs: np.ndarray) -> float:
    return float(np.abs(ours.double().cpu().numpy() - theirs).max() / max(1.0, np.abs(theirs).max()))


def _load_neighbours(model: Inpainter, stored: Stored) -> None:
    """Take the older system's neighbours: among sensors equally far, its library chose."""
    if model.cross_attn_head is None:
        return
    own = model.cross_attn_head.knn_indices
    found = stored("variants/inp_xattn_split_npho_io.npz")["knn8"]
    own.copy_(torch.from_numpy(found if own.shape == found.shape else stored("units.npz")["geom_knn16"]))


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_outputs_and_names_equal_the_older_ones(
    name: str, stored: Stored, fill: Fill, reference_dir: Path, device: str
) -> None:
    settings = {"geometry": "compat", "encoder_dim": 256, "num_fusion_layers": 2} | VARIANTS[name]
    if "head_type" in settings:
        settings["sensor_positions_file"] = str(reference_dir / "sensor_positions.txt")
    model = _build(**settings)
    ours = [f"{key}\t{tuple(value.shape)}\t{value.dtype}" for key, value in model.state_dict().items()]
    assert ours == (reference_dir / f"variants/{name}_keys.tsv").read_text().splitlines()
    _load_neighbours(model, stored)
    fill(model)
    arrays = stored(f"variants/{name}_io.npz")
    mask = torch.from_numpy(arrays["mask"]).to(device)
    # The older masked attention writes float64 results into a float32 tensor.
    exact = 1e-7 if name == "inp_maskedattn_npho" else 1e-9
    for dtype, suffix, tolerance in ((torch.float32, "", 1e-5), (torch.float64, "__f64", exact)):
        output = model.to(device, dtype).fill(torch.from_numpy(arrays["x"]).to(device, dtype), mask)
        assert _deviation(output, arrays[f"full_output{suffix}"]) < tolerance


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("inp_small_perface", "inp_small_perface_checkpoint_best_stripped.pth"),
        ("inp_small_xattn", "inp_small_xattn_checkpoint_best.pth.xz"),
    ],
)
@torch.no_grad()
def test_an_older_checkpoint_gives_its_older_outputs(name: str, file: str, stored: Stored, reference_dir: Path) -> None:
    checkpoint = store.load(reference_dir / "checkpoints" / file)
    model = build_model(config_from_dict(checkpoint.config, "older checkpoint")).eval()
    assert isinstance(model, Inpainter)
    model.load_state_dict(checkpoint.model)
    arrays = stored(f"{name}_io.npz")
    for dtype, suffix, tolerance in ((torch.float32, "", 1e-5), (torch.float64, "__f64", 1e-9)):
        output = model.to(dtype).fill(torch.from_numpy(arrays["x"]).to(dtype), torch.from_numpy(arrays["mask"]))
        assert _deviation(output, arrays[f"model_full_output{suffix}"]) < tolerance


@pytest.mark.parametrize("head", HEADS)
def test_every_head_predicts_every_hidden_sensor_and_learns(head: str, events: tuple[Tensor, Tensor]) -> None:
    model = _build(mask_ratio=0.2, **BOTH | HEADS[head]).train()
    torch.manual_seed(5)
    outputs = model(*events)
    mask = outputs["mask"]
    assert outputs["sensors"].shape == (3, 4760, 2)
    assert model.covered.all()
    assert mask[:, 4742:].any(), "the extra PMTs of the outer centre are hidden too"
    assert (outputs["sensors"][mask] != 0).all()
    (outputs["sensors"] * mask.unsqueeze(-1)).square().mean().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_nothing_leaks_from_a_hidden_sensor(head: str, events: tuple[Tensor, Tensor]) -> None:
    model, (npho, time) = _build(**BOTH | HEADS[head]), events
    mask = model(npho, time)["mask"]
    mask[:, 4742:] = True
    changed = torch.where(mask, npho * 3 + 17, npho), torch.where(mask, time + 5e-8, time)
    assert torch.equal(model(npho, time, mask)["sensors"], model(*changed, mask)["sensors"])


@pytest.mark.parametrize("head", ["masked_attention", "cross_attention"])
@torch.no_grad()
def test_a_face_without_hidden_sensors_is_left_alone(head: str, events: tuple[Tensor, Tensor]) -> None:
    model = _build(mask_ratio={"inner": 0.05}, **HEADS[head])
    outputs = model(*events)
    assert not outputs["sensors"][:, 4092:].any()
    nothing = model(*events, torch.zeros(3, 4760, dtype=torch.bool))
    assert not nothing["sensors"].any()


@torch.no_grad()
def test_a_repaired_event_differs_at_the_dead_channels_only(events: tuple[Tensor, Tensor]) -> None:
    model, (npho, time) = _build(), events
    dead = torch.zeros(4760, dtype=torch.bool)
    dead[::50] = True
    repaired = model.inpaint(npho, time, dead)
    for name, before in (("npho", npho), ("time", time)):
        assert torch.equal(repaired[name][:, ~dead], before[:, ~dead])
    x, _ = model.normalizer.normalize(npho, time)
    photons = model.normalizer.inverse_npho(model.fill(x, dead.expand(3, -1))[..., 0])
    torch.testing.assert_close(repaired["npho"][:, dead], photons[:, dead])
    assert (repaired["time"][:, dead] == 1e10).all(), "a time that was not predicted is not available"


@torch.no_grad()
def test_times_are_repaired_in_seconds(events: tuple[Tensor, Tensor]) -> None:
    model, (npho, time) = _build(**BOTH), events
    repaired = model.inpaint(npho, time, torch.ones(3, 4760))
    assert repaired["time"].abs().max() < 1e-5


@torch.no_grad()
def test_the_older_outer_face_in_two_parts_leaves_its_centre_unrepaired(events: tuple[Tensor, Tensor]) -> None:
    model = _build(geometry="compat", outer_mode="split")
    dead = torch.zeros(4760, dtype=torch.bool)
    dead[4742:] = True
    assert (model.inpaint(*events, dead)["npho"][:, 4742:] == 1e10).all()


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_encoder_stays_in_evaluation_and_gets_no_gradient(frozen: bool, events: tuple[Tensor, Tensor]) -> None:
    model = _build(freeze_encoder=frozen).train()
    assert model.encoder.training is not frozen
    assert model.get_submodule("head_inner").training
    model(*events)["sensors"].square().mean().backward()
    assert all((p.grad is None) is frozen for p in model.encoder.parameters())
    assert all(p.grad is not None for p in model.get_submodule("head_inner").parameters())


@pytest.mark.parametrize("size", [(93, 44), (24, 6), (3, 3), (2, 5), (1, 4)])
@torch.no_grad()
def test_the_condition_is_convolved_as_if_it_filled_the_image(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    context = ImageContext().double()
    image, condition = torch.randn(2, *size, 2).double(), torch.randn(2, 64).double()
    conv, norm, activation, *blocks = context
    filled = torch.cat((image, condition[:, None, None].expand(-1, *size, -1)), dim=-1)
    expected = activation(norm(conv(filled.permute(0, 3, 1, 2)))).permute(0, 2, 3, 1)
    for block in blocks:
        expected = block(expected)
    torch.testing.assert_close(context(image, condition), expected)


def test_recomputing_the_heads_gives_the_same_gradients(events: tuple[Tensor, Tensor]) -> None:
    gradients = []
    for mode in ("none", "stages"):
        torch.manual_seed(0)
        model = _build(dropout=0.0).train()
        model.set_activation_checkpointing(mode)
        torch.manual_seed(1)
        model(*events)["sensors"].square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_positions_come_from_a_table_or_from_the_ideal_detector(tmp_path: Path) -> None:
    ids = np.arange(4760.0)[:, None]
    table = tmp_path / "positions.txt"
    np.savetxt(table, np.hstack([ids, geometry.positions_cm() + 1.0])[::-1], header="id x y z")
    moved, ideal = (
        _build(sensor_positions_file=file, **SMALL_ATTENTION).cross_attn_head for file in (str(table), None)
    )
    assert moved is not None
    assert ideal is not None
    torch.testing.assert_close(moved.sensor_positions, ideal.sensor_positions + 1.0, rtol=0, atol=1e-4)
    assert torch.equal(moved.knn_indices, ideal.knn_indices)


@pytest.mark.parametrize("content", [None, "1 2 3 4\n", "one two\n"])
def test_a_bad_position_table_names_the_key_and_the_way_out(tmp_path: Path, content: str | None) -> None:
    table = tmp_path / "positions.txt"
    if content is not None:
        table.write_text(content)
    with pytest.raises(DataFileError, match=r"--set model\.sensor_positions_file=null"):
        _build(sensor_positions_file=str(table), **SMALL_ATTENTION)


def test_nearest_sensors_are_those_of_a_full_search() -> None:
    positions = geometry.positions_cm()
    found = nearest_sensors(positions, 16)
    for sensor in (0, 2000, 4200, 4750, 4600):
        distances = np.linalg.norm(positions - positions[sensor], axis=1)
        assert sensor not in found[sensor]
        expected = np.sort(np.delete(distances, sensor))[:16]
        np.testing.assert_allclose(np.sort(distances[found[sensor]]), expected, atol=2e-3)


def test_neighbours_are_as_near_as_the_older_ones(stored: Stored, reference_dir: Path) -> None:
    positions = np.loadtxt(reference_dir / "sensor_positions.txt")[:, 1:]
    theirs, ours = stored("units.npz")["geom_knn16"], nearest_sensors(positions, 16)
    lengths = [np.linalg.norm(positions[table] - positions[:, None], axis=-1) for table in (ours, theirs)]
    np.testing.assert_allclose(lengths[0], lengths[1], rtol=0, atol=2e-3)
    waves = position_waves(torch.from_numpy(positions.astype(np.float32)), 96)[::40]
    assert np.array_equal(waves.numpy(), stored("units.npz")["geom_pos_embed96"])


def test_boxes_and_rings_hold_the_positions_two_steps_away() -> None:
    cells, counts = box_neighbours((93, 44))
    assert (cells.shape, counts.min(), counts.max()) == ((4092, 24), 8, 24)
    assert cells[0, :8].tolist() == [1, 2, 44, 45, 46, 88, 89, 90]
    nodes, ring = hex_neighbours("physical")
    assert (ring.min(), ring.max()) == (5, 18)
    middle = int(np.argmax(ring))
    around = geometry.positions_cm()[faces.index_map("top")]
    distances = np.linalg.norm(around[nodes[middle]] - around[middle], axis=1)
    assert distances.max() < 2 * 7.6
