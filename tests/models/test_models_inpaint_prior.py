"""What an inpainter starts from is the conventional estimate, of visible sensors only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from xectool.config.root import InpainterConfig
from xectool.detector import coordinates, faces
from xectool.detector.neighbours import within_hops
from xectool.detector.solid_angle import solid_angle_fraction
from xectool.models import build_model
from xectool.models.inpaint_prior import LightPrior, prior_kind
from xectool.models.inpainter import Inpainter
from xectool.models.sensor_input import HiddenEvent
from xectool.tasks.neighbour_baselines import NeighbourAverage, NeighbourEstimator, SolidAngleWeighted, default_tables

POINTS_UVW = np.array([[0.0, 0.0, 3.0], [15.0, -40.0, 8.0], [-20.0, 60.0, 15.0], [5.0, 30.0, 1.0]])
BOTH = ["npho", "time"]


def _network(**model: Any) -> Inpainter:
    settings = {"encoder_dim": 32, "num_fusion_layers": 1, "outer_fine_pool": [5, 3], "freeze_encoder": False}
    network = build_model(InpainterConfig(model=settings | model)).eval()
    assert isinstance(network, Inpainter)
    return network


@pytest.fixture(scope="module")
def light() -> tuple[Tensor, Tensor]:
    """Photons in proportion to solid angles from four points, and times that rise along the detector."""
    npho = 2e5 * solid_angle_fraction(coordinates.uvw_to_xyz(POINTS_UVW)) + 5.0
    time = np.tile(np.linspace(1e-9, 9e-9, 4760), (len(npho), 1))
    return torch.from_numpy(npho.astype(np.float32)), torch.from_numpy(time.astype(np.float32))


def _hidden(network: Inpainter, light: tuple[Tensor, Tensor], mask: Tensor) -> HiddenEvent:
    x, valid = network.normalizer.normalize(*light)
    return network.hider.apply(x, mask, valid)


def _random_mask(light: tuple[Tensor, Tensor]) -> Tensor:
    mask = torch.rand(light[0].shape, generator=torch.manual_seed(3)) < 0.1
    mask[0, 500:900] = True  # a dead patch: most of it has no visible neighbour
    return mask


@pytest.mark.parametrize(
    ("kind", "estimator", "spread"), [("neighbours", NeighbourAverage, 1e-4), ("solid_angle", SolidAngleWeighted, 0.02)]
)
@torch.no_grad()
def test_an_untrained_inpainter_is_the_conventional_estimator(
    kind: str, estimator: type[NeighbourEstimator], spread: float, light: tuple[Tensor, Tensor]
) -> None:
    network, mask = _network(prior=kind), _random_mask(light)
    filled = network.inpaint(*light, mask)["npho"].double().numpy()
    wanted = mask.numpy()
    expected = estimator(default_tables()).fill(light[0].double().numpy(), ~wanted, wanted)
    assert np.quantile(np.abs(filled / expected - 1)[wanted], 0.98) < spread
    assert np.array_equal(filled[~wanted], light[0].numpy()[~wanted])


@torch.no_grad()
def test_solid_angles_fill_the_light_of_a_point_better_than_a_mean(light: tuple[Tensor, Tensor]) -> None:
    mask = _random_mask(light)
    off = {
        kind: (_network(prior=kind).inpaint(*light, mask)["npho"] - light[0]).abs()[mask].mean()
        for kind in ("solid_angle", "neighbours")
    }
    assert off["solid_angle"] < 0.5 * off["neighbours"]


@torch.no_grad()
def test_times_start_at_the_mean_of_the_timed_neighbours(light: tuple[Tensor, Tensor]) -> None:
    network = _network(predict_channels=BOTH)
    sensor = int(faces.index_map("inner")[46, 22])  # bright in the first event, and so all around it
    mask = torch.zeros(light[0].shape, dtype=torch.bool)
    mask[:, sensor] = True
    around = torch.from_numpy(within_hops(1).of(sensor).copy())
    filled = network.inpaint(*light, mask)["time"]
    assert filled[0, sensor].item() == pytest.approx(light[1][0, around].mean().item(), rel=1e-3)


@torch.no_grad()
def test_a_face_without_any_reading_is_filled_with_numbers(light: tuple[Tensor, Tensor]) -> None:
    network = _network(predict_channels=BOTH)
    mask = torch.zeros(light[0].shape, dtype=torch.bool)
    mask[:, torch.from_numpy(faces.sensors("top").copy())] = True
    mask[1] = True
    filled = network.inpaint(*light, mask)
    assert all(torch.isfinite(values).all() for values in filled.values())


@torch.no_grad()
def test_dead_sensors_are_neither_asked_nor_left_as_sentinels(light: tuple[Tensor, Tensor]) -> None:
    network = _network(prior="neighbours")
    npho = light[0].clone()
    npho[:, 100:110] = 1e10
    mask = torch.zeros(npho.shape, dtype=torch.bool)
    event = _hidden(network, (npho, light[1]), mask)
    prior = network.prior
    assert isinstance(prior, LightPrior)
    estimates = prior(event)
    shown = prior.fill(event, estimates)
    assert (shown.shown[:, 100:110, 0] > 0).all()
    assert torch.equal(shown.shown[:, 110:, 0], event.shown[:, 110:, 0])
    npho[:, 100:110] = 3e10  # whatever they read
    assert torch.equal(prior(_hidden(network, (npho, light[1]), mask)), estimates)


@torch.no_grad()
def test_half_precision_around_it_leaves_the_estimate_alone(light: tuple[Tensor, Tensor]) -> None:
    network, mask = _network(), _random_mask(light)
    event = _hidden(network, light, mask)
    assert isinstance(network.prior, LightPrior)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = network.prior(event)
    assert torch.equal(inside, network.prior(event))


def test_every_turn_has_a_place_and_the_first_value_found_stays() -> None:
    """PyTorch 2.11 ends where it launches a compiled kernel for no places at all."""
    prior = _network().prior
    assert isinstance(prior, LightPrior)
    where = torch.tensor([0, 0]), torch.tensor([2000, 2500])
    visible = torch.ones(1, 4760, dtype=torch.bool)
    visible[0, where[1]] = False
    asked: list[list[int]] = []

    def around(rows: Tensor, neighbours: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(rows.tolist())
        return torch.full((len(rows),), float(len(asked))), used.sum(dim=1)

    found = prior._nearest(where, visible, torch.zeros(2), around)
    assert asked == [[0, 1], [0], [0]]
    assert found.tolist() == [1.0, 1.0]


class _Repair(nn.Module):
    def __init__(self, network: Inpainter) -> None:
        super().__init__()
        self.network = network

    def forward(self, npho: Tensor, time: Tensor, mask: Tensor) -> Tensor:
        return self.network.inpaint(npho, time, mask)["npho"]


@pytest.mark.filterwarnings("ignore")  # of torch about its own tracers
@torch.no_grad()
def test_an_exported_inpainter_fills_any_number_of_sensors(light: tuple[Tensor, Tensor]) -> None:
    repair, few = _Repair(_network()).eval(), torch.zeros(light[0].shape, dtype=torch.bool)
    few[:, :30:7] = True
    many = _random_mask(light)
    traced = torch.jit.trace(repair, (*light, few), check_trace=False)
    exported = torch.export.export(repair, (*light, few), strict=False).module()
    for mask in (few, many):
        expected = repair(*light, mask)
        torch.testing.assert_close(traced(*light, mask), expected)
        torch.testing.assert_close(exported(*light, mask), expected)


def test_nothing_of_it_is_stored_and_older_networks_have_none() -> None:
    assert not [name for name in _network().state_dict() if name.startswith("prior")]
    settings = InpainterConfig(model={"encoder_dim": 32}).model
    assert prior_kind(settings) == "solid_angle"
    assert prior_kind(settings.model_copy(update={"geometry": "compat"})) == "none"
    assert prior_kind(settings.model_copy(update={"use_local_context": False})) == "none"
    assert _network(geometry="compat", outer_fine_pool=None).prior is None
