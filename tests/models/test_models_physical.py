"""The physical geometry is right where the older one is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from xectool.detector import faces, geometry, hexgrid
from xectool.models import Regressor
from xectool.models.outer_grid import PhysicalOuterGrid, fine_owners, outer_grid
from xectool.models.resample import Resize, area_overlaps, interpolation_weights

Build = Callable[..., Regressor]
POOLS = [None, (5, 3), (3, 3), (2, 2), (4, 7)]
SENTINELS = (-1.0, -1.0)
OUTER = faces.sensors("outer")
NUM_FINE_CELLS = 45 * 72


def _steps_cm(owners: np.ndarray) -> np.ndarray:
    """Return the distances between the sensors of touching cells."""
    positions = geometry.positions_cm()
    pairs = [(owners[1:], owners[:-1]), (owners[:, 1:], owners[:, :-1])]
    distances = np.concatenate([np.linalg.norm(positions[a] - positions[b], axis=-1).ravel() for a, b in pairs])
    return distances[distances > 0]


def test_touching_cells_of_the_outer_image_belong_to_touching_pmts() -> None:
    assert _steps_cm(fine_owners("physical")).max() < 14.2  # the diagonal of the coarse pitches, 9.7 and 10.4 cm
    assert _steps_cm(fine_owners("compat")).max() > 80


@pytest.mark.parametrize("name", ["inner", "us", "ds", "outer_fine"])
def test_every_image_has_azimuth_falling_along_its_rows(name: str, build_regressor: Build) -> None:
    positions = torch.from_numpy(geometry.positions_cm().copy())
    azimuth = torch.atan2(positions[:, 1], -positions[:, 0])
    x = torch.stack([azimuth, positions[:, 2].abs() if name in ("us", "ds") else positions[:, 2]], dim=-1)[None]
    image = build_regressor().double().backbone.face_image(name, x).values[0]
    assert float(image[:, :, 0].diff(dim=0).max()) < 1e-12
    assert float(image[:, :, 1].diff(dim=1).min()) > -1e-12


@pytest.mark.parametrize("pool", POOLS)
def test_every_outer_pmt_counts_once_by_area(pool: tuple[int, int] | None) -> None:
    grid = PhysicalOuterGrid(pool, SENTINELS)
    x = torch.zeros(234, 4760, 2)
    x[torch.arange(234), torch.from_numpy(OUTER.copy()), 0] = 1.0
    image = grid(x, None, torch.ones(1, 4760, 2, dtype=torch.bool)).values[..., 0]
    area = image.sum((1, 2)) * NUM_FINE_CELLS / image[0].numel()
    cells = {
        int(sensor): count
        for sensor, count in zip(*np.unique(fine_owners("physical"), return_counts=True), strict=True)
    }
    np.testing.assert_allclose(area.numpy(), [cells[int(sensor)] for sensor in OUTER], rtol=1e-5)
    assert sorted(set(cells.values())) == [6, 15]


def test_the_older_outer_image_loses_twelve_pmts() -> None:
    assert len(np.unique(fine_owners("compat"))) == 222


def test_hexagon_neighbours_are_the_nearest_pmts() -> None:
    positions = geometry.positions_cm()[faces.index_map("top")]
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    near = {(int(a), int(b)) for a, b in np.argwhere((distance > 0) & (distance < 8.0))}
    for kind, missing in (("physical", 0), ("compat", 92)):
        source, destination, edge_type = hexgrid.edge_index(kind)
        found = set(zip(source[edge_type > 0].tolist(), destination[edge_type > 0].tolist(), strict=True))
        assert len(near - found) == missing


@pytest.mark.parametrize("pool", [None, [5, 3], [3, 3]])
@torch.no_grad()
def test_a_hidden_outer_sensor_cannot_be_seen(
    pool: list[int] | None, build_regressor: Build, events: tuple[Tensor, Tensor]
) -> None:
    npho, time = events
    centre = torch.from_numpy(np.unique(faces.index_map("outer_center")))
    mask = torch.zeros(3, 4760, dtype=torch.bool)
    mask[:, centre] = True
    changed = npho.clone()
    changed[:, centre] = 1e5
    physical = build_regressor(outer_fine_pool=pool)
    torch.testing.assert_close(physical.tokens(npho, time, mask), physical.tokens(changed, time, mask), rtol=0, atol=0)
    compat = build_regressor(geometry="compat", outer_fine_pool=pool)
    assert float((compat.tokens(npho, time, mask) - compat.tokens(changed, time, mask)).abs().max()) > 1e-3


def test_hiding_a_centre_pmt_hides_exactly_its_six_cells() -> None:
    mask = torch.zeros(1, 4760)
    mask[0, 4744] = 1
    hidden = PhysicalOuterGrid(None, SENTINELS)(torch.zeros(1, 4760, 2), mask, None).hidden
    assert hidden is not None
    np.testing.assert_array_equal(hidden[0].numpy() == 1, fine_owners("physical").T == 4744)
    older = outer_grid("compat", None, SENTINELS)(torch.zeros(1, 4760, 2), mask, None).hidden
    assert older is not None
    assert float(older.sum()) == 0


@pytest.mark.parametrize("pool", POOLS)
def test_a_uniform_face_is_a_uniform_image_whatever_is_dead(pool: tuple[int, int] | None) -> None:
    x = torch.full((1, 4760, 2), 0.3)
    dead = torch.from_numpy(OUTER[::7].copy())
    x[:, dead] = -1.0
    image = PhysicalOuterGrid(pool, SENTINELS)(x, None, None).values
    assert float(torch.minimum((image - 0.3).abs(), (image + 1.0).abs()).max()) < 1e-6


def test_a_reading_that_equals_the_sentinel_is_averaged_when_it_is_valid() -> None:
    x = torch.full((1, 4760, 2), -1.0)
    x[..., 0] = 0.5
    x[0, 4092, :] = 2.0
    valid = torch.ones(1, 4760, 2, dtype=torch.bool)
    image = PhysicalOuterGrid((45, 72), SENTINELS)(x, None, valid).values[0, 0, 0]
    share = 15 / NUM_FINE_CELLS
    assert image.tolist() == pytest.approx([0.5 + 1.5 * share, -1.0 + 3.0 * share])


def test_a_cell_without_any_reading_keeps_the_sentinel() -> None:
    grid = PhysicalOuterGrid((5, 3), (-1.0, -5.0))
    image = grid(torch.zeros(1, 4760, 2), None, torch.zeros(1, 4760, 2, dtype=torch.bool)).values
    assert image.reshape(-1, 2).unique(dim=0).tolist() == [[-1.0, -5.0]]


def test_the_token_reads_every_cell_of_a_face_equally() -> None:
    x = torch.zeros(1, 46, 21, 1, requires_grad=True)
    for kind, cells_read in (("physical", 966), ("compat", 64)):
        (weight,) = torch.autograd.grad(Resize((46, 21), (4, 4), kind)(x).sum(), x)
        assert int((weight > 0).sum()) == cells_read
    (weight,) = torch.autograd.grad(Resize((46, 21), (4, 4), "physical")(x).sum(), x)
    torch.testing.assert_close(weight, torch.full_like(weight, 16 / 966))


def test_resampling_keeps_a_constant_and_matches_the_library() -> None:
    for size in (2, 4, 7, 23, 46):
        np.testing.assert_allclose(area_overlaps(size, 4).sum(axis=1), size / 4)
        np.testing.assert_allclose(area_overlaps(size, 4).sum(axis=0), 1.0)
        line = torch.eye(size, dtype=torch.float64)[None]
        library = torch.nn.functional.interpolate(line, size=4, mode="linear", align_corners=False)[0]
        np.testing.assert_allclose(interpolation_weights(size, 4), library.T.numpy(), atol=1e-15)


@torch.no_grad()
def test_light_below_the_time_threshold_is_seen(build_regressor: Build) -> None:
    npho, time = torch.full((1, 4760), 20.0), torch.zeros(1, 4760)
    brighter = npho.clone()
    brighter[0, 2000] = 60.0
    model = build_regressor()
    assert float((model.tokens(npho, time) - model.tokens(brighter, time)).abs().max()) > 1e-6


@torch.no_grad()
def test_a_dropped_channel_is_what_a_dead_channel_is(build_regressor: Build, events: tuple[Tensor, Tensor]) -> None:
    npho, time = events
    dropped, nan = npho.clone(), npho.clone()
    dropped[:, 100:200], nan[:, 100:200] = 1e10, float("nan")
    model = build_regressor()
    torch.testing.assert_close(model.tokens(dropped, time), model.tokens(nan, time), rtol=0, atol=0)
