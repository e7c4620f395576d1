"""Masks: a fixed share of what may be hidden, reproducible, and the older system's own for its seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from xectool.config.model import MaeModelConfig
from xectool.config.normalization import NormalizationConfig
from xectool.config.training import TimeLossConfig
from xectool.detector import faces
from xectool.models.masking import (
    MaskPolicy,
    count_masked,
    draw_mask,
    draw_pattern,
    hide,
    maskable_like_older,
    maskable_sensors,
)
from xectool.models.normalize import Normalizer
from xectool.models.sensor_input import SensorHider, mask_policy

Stored = Callable[[str], dict[str, Any]]
PER_FACE = {"inner": 0.05, "outer": 0.2, "top": 0.1}
OLDER = {
    "005": MaskPolicy(0.05, older=True),
    "perface": MaskPolicy(PER_FACE, older=True),
    "flat": MaskPolicy(0.05, npho_flat=True, older=True),
    "perface_flat": MaskPolicy(PER_FACE, npho_flat=True, older=True),
}
SENTINELS = (-1.0, -1.0)


@pytest.fixture
def readings() -> tuple[Tensor, Tensor]:
    """npho in network units and which sensors may be hidden, of five very different events."""
    generator = torch.Generator().manual_seed(3)
    npho = torch.rand(5, 4760, generator=generator).pow(6)
    share = torch.tensor([1.0, 0.9, 0.3, 0.004, 0.0]).unsqueeze(1)
    return npho, torch.rand(5, 4760, generator=generator) < share


@pytest.mark.parametrize("name", OLDER)
@pytest.mark.parametrize("variant", ["perface_both", "perface_pool33", "maskedattn_npho", "xattn_split_npho"])
def test_a_seed_gives_the_older_inpainter_mask(name: str, variant: str, stored: Stored) -> None:
    arrays = stored(f"variants/inp_{variant}_io.npz")
    x = torch.from_numpy(arrays["x"])
    maskable = maskable_like_older(x, ("npho", "time") if "both" in variant else ("npho",), SENTINELS)
    torch.manual_seed(88)
    mask = draw_mask(x[..., 0], maskable, OLDER[name])
    assert torch.equal(mask, torch.from_numpy(arrays[f"rmask_{name}_seed88"]).bool())


@pytest.mark.parametrize(("name", "scale"), [("rmask_seed77", 1.0), ("rmask_seed77_scale3", 3.0)])
@pytest.mark.parametrize("variant", ["fine", "pool33_npho"])
def test_a_seed_gives_the_older_autoencoder_mask(name: str, scale: float, variant: str, stored: Stored) -> None:
    arrays = stored(f"variants/mae_{variant}_io.npz")
    x = torch.from_numpy(arrays["x"])
    maskable = maskable_like_older(x, ("npho",) if "npho" in variant else ("npho", "time"), SENTINELS)
    torch.manual_seed(77)
    mask = draw_mask(x[..., 0], maskable, MaskPolicy(0.6, bright_scale=scale, bright_threshold=0.0233))
    assert torch.equal(mask, torch.from_numpy(arrays[name]).bool())


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("ratio", [0.05, 0.6, 0.97, PER_FACE, {"bot": 0.9, "us": 0.0}])
def test_every_event_hides_the_counted_number_of_maskable_sensors(
    flat: bool, older: bool, ratio: Any, readings: tuple[Tensor, Tensor]
) -> None:
    npho, maskable = readings
    mask = draw_mask(npho, maskable, MaskPolicy(ratio, flat, older=older), torch.Generator().manual_seed(1))
    assert not (mask & ~maskable).any()
    assert torch.equal(mask.sum(1), count_masked(maskable, ratio))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 4760), st.floats(0.001, 0.999))
def test_the_count_is_the_floor_of_the_share(num: int, ratio: float) -> None:
    maskable = torch.zeros(1, 4760, dtype=torch.bool)
    maskable[0, :num] = True
    count = int(count_masked(maskable, ratio))
    assert num * ratio - 1 - 1e-3 < count <= num * ratio + 1e-3


def test_a_generator_gives_the_same_mask_again_and_leaves_the_global_one_alone(
    readings: tuple[Tensor, Tensor],
) -> None:
    policy = MaskPolicy(0.3, npho_flat=True)
    state = torch.get_rng_state()
    first, again = (draw_mask(*readings, policy, torch.Generator().manual_seed(5)) for _ in range(2))
    other = draw_mask(*readings, policy, torch.Generator().manual_seed(6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_a_face_with_a_ratio_hides_its_own_sensors_only(readings: tuple[Tensor, Tensor]) -> None:
    mask = draw_mask(*readings, MaskPolicy({"outer": 0.5}), torch.Generator().manual_seed(5))
    outside = [face for face in faces.FACES if face != "outer" and mask[:, faces.sensors(face).copy()].any()]
    assert outside == []
    assert mask[0, 4742:].any(), "the extra PMTs of the outer centre are outer sensors"


def test_flat_masks_cover_the_range_of_npho_evenly(readings: tuple[Tensor, Tensor]) -> None:
    npho, maskable = readings[0][:1].clamp_min(0.011), torch.ones(1, 4760, dtype=torch.bool)
    spread = []
    for flat in (False, True):
        mask = draw_mask(npho, maskable, MaskPolicy(0.02, flat), torch.Generator().manual_seed(2))
        spread.append(torch.histc(npho[mask].log(), bins=8, min=math.log(0.01), max=0.0).std().item())
    assert spread[1] < 0.4 * spread[0]


def test_bright_sensors_are_hidden_more_often_with_a_scale(readings: tuple[Tensor, Tensor]) -> None:
    npho, maskable = readings[0][:1], torch.ones(1, 4760, dtype=torch.bool)
    policy = MaskPolicy(0.2, bright_scale=3.0, bright_threshold=0.3)
    mask = draw_mask(npho, maskable, policy, torch.Generator().manual_seed(2))
    bright = npho > 0.3
    assert mask[bright].float().mean() > 2 * mask[~bright].float().mean()


def test_dim_sensors_are_maskable_though_their_time_is_not_valid() -> None:
    hider, older = (
        SensorHider(Normalizer(NormalizationConfig()), ("npho", "time"), geometry, MaskPolicy(0.6))
        for geometry in ("physical", "compat")
    )
    npho, time = torch.full((1, 4760), 20.0), torch.zeros(1, 4760)
    npho[0, :10] = 500.0
    npho[0, 10:12] = 1e10
    x, valid = Normalizer(NormalizationConfig()).normalize(npho, time)
    assert int(hider.maskable(x, valid).sum()) == 4758
    assert int(older.maskable(x, valid).sum()) == 10
    nothing = torch.zeros(1, 4760, dtype=torch.bool)
    assert int(hider.apply(x, nothing, valid).hidden.sum()) == 2, "only sensors without a reading are left out"
    assert int(older.apply(x, nothing, valid).hidden.sum()) == 4750
    assert torch.equal(maskable_sensors(valid, ("time",)), valid[..., 1])


def test_hidden_sensors_show_their_sentinels(readings: tuple[Tensor, Tensor]) -> None:
    npho, mask = readings
    x = torch.stack((npho, npho + 1), dim=-1)
    shown = hide(x, mask, (-7.0, -9.0))
    assert torch.equal(shown[mask], torch.tensor([-7.0, -9.0]).expand(int(mask.sum()), 2))
    assert torch.equal(shown[~mask], x[~mask])


def test_patterns_of_dead_channels_are_repeated_where_there_is_a_reading() -> None:
    patterns = torch.zeros(2, 4760, dtype=torch.bool)
    patterns[0, :40] = patterns[1, 100:130] = True
    maskable = torch.ones(64, 4760, dtype=torch.bool)
    maskable[:, 0] = False
    counts = draw_pattern(patterns, maskable, torch.Generator().manual_seed(0)).sum(1)
    assert set(counts.tolist()) == {39, 30}


@pytest.mark.parametrize("scheme", ["log1p", "anscombe", "sqrt", "linear"])
def test_the_photon_threshold_is_mapped_to_network_units(scheme: str) -> None:
    settings = NormalizationConfig(npho_scheme=scheme)
    model = MaeModelConfig(mask_ratio=0.5, geometry="compat")
    policy = mask_policy(model, settings, TimeLossConfig(npho_threshold=None, mask_ratio_scale=2.0))
    assert Normalizer(settings).inverse_npho(torch.tensor(policy.bright_threshold)).item() == pytest.approx(100.0)
    assert (policy.bright_scale, policy.older) == (2.0, True)
