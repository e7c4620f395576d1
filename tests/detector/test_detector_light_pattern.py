"""Light that is not where geometry and truth say is told, and sound light is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xectool.detector import coordinates, faces, geometry
from xectool.detector.light_pattern import (
    doubtful,
    energy_elsewhere,
    energy_likeness,
    light_places,
    misplaced,
    truth_elsewhere,
)

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """Let each test draw the same numbers, whichever tests its worker has run before."""
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state


def flashes(events: int, spread: float = 1.0, deepest_cm: float = 30.0) -> tuple[Array, Array]:
    """Photons of point sources anywhere in the detector, and where they are."""
    uvw = np.stack(
        [RNG.uniform(-25, 25, events), RNG.uniform(-60, 60, events), RNG.uniform(2, deepest_cm, events)], axis=-1
    )
    uvw *= (spread, spread, 1.0)
    gaps = coordinates.uvw_to_xyz(uvw)[:, np.newaxis] - geometry.positions_cm()
    return RNG.poisson(5e4 / np.square(gaps).sum(axis=-1)).astype(np.float32), uvw


def test_sound_light_fits_with_dead_sensors_a_dark_face_and_one_place_only() -> None:
    npho, uvw = flashes(48)
    npho[:, RNG.random(4760) < 0.3] = 1e10
    npho[10:20, faces.sensors("us")] = 0.0
    places = light_places(npho)
    assert (misplaced(places), truth_elsewhere(places, uvw)) == ("", "")
    assert np.isnan(places[10:20, 2]).all()
    still = light_places(flashes(48, spread=0.01)[0])
    assert misplaced(still) == "", "a calibration source stands still: there is nothing to compare"


@pytest.mark.parametrize(("low", "high", "axis"), [("us", "ds", "u"), ("bot", "top", "v")])
def test_faces_that_changed_places_are_told(low: str, high: str, axis: str) -> None:
    npho, _ = flashes(16)
    one, other = faces.sensors(low), faces.sensors(high)
    npho[:, one], npho[:, other] = npho[:, other].copy(), npho[:, one].copy()
    said = misplaced(light_places(npho))
    assert said.startswith(f"{axis} by the inner face")
    assert "changed places" in said


def test_another_order_of_sensors_is_told() -> None:
    npho, _ = flashes(64, deepest_cm=5.0)
    assert "do not agree" in misplaced(light_places(npho[:, RNG.permutation(4760)]))


def test_few_events_beside_pile_up_may_disagree_by_chance_and_more_events_decide() -> None:
    told = {}
    for number in (16, 64):
        for likeness in (0.6, 0.0):  # of a narrow cut with pile-up, and of sensors in another order
            drawn = RNG.multivariate_normal([0, 0], [[1, likeness], [likeness, 1]], (200, number)) * (30.0, 0.2)
            places = drawn[..., [0, 0, 1, 1]] * (1, 0, 1, 0)
            told[number, likeness] = np.mean([bool(misplaced(one)) for one in places])
            assert not any(misplaced(one) and doubtful(one) for one in places)
    assert max(told[16, 0.6], told[64, 0.6]) <= 0.03
    assert told[64, 0.0] >= 0.95


def test_a_truth_of_other_events_or_of_something_else_is_told() -> None:
    npho, uvw = flashes(48)
    places = light_places(npho)
    xyz = coordinates.uvw_to_xyz(uvw)
    assert truth_elsewhere(places, uvw[RNG.permutation(48)])
    assert truth_elsewhere(places, xyz)
    assert truth_elsewhere(places, xyz / np.linalg.norm(xyz, axis=1, keepdims=True))
    uvw[::3] = 1e10
    assert truth_elsewhere(places, uvw) == "", "what is not known is no other place"
    uvw[1] = 4000.0
    assert truth_elsewhere(places, uvw) == "", "one position that is far off is one event"


@pytest.mark.parametrize("task", ["angle", "angleVec"])
def test_a_direction_of_other_events_is_told(task: str) -> None:
    """From the target, directions follow places; whether they rise or fall with them is a convention."""
    npho, uvw = flashes(48)
    npho[::2] += flashes(24)[0] / 3  # pile-up
    places, from_target = light_places(npho), coordinates.uvw_to_xyz(uvw) - RNG.normal(0, 3.0, (48, 3))
    unit = from_target / np.linalg.norm(from_target, axis=1, keepdims=True)
    angles = np.degrees(np.stack([np.arccos(unit[:, 2]), np.arctan2(unit[:, 1], -unit[:, 0])], axis=-1))
    truth = {"angle": angles, "angleVec": unit}[task]
    assert truth_elsewhere(places, truth, task) == truth_elsewhere(places, -truth, task) == ""
    assert truth_elsewhere(places, truth[RNG.permutation(48)], task).startswith(f"{task}[")
    if task == "angle":
        for offset in (90.0, 150.0, 180.0, 210.0):
            turned = np.stack([truth[:, 0], (truth[:, 1] + offset + 180) % 360 - 180], axis=-1)
            assert truth_elsewhere(places, turned, task) == ""
    swapped = truth[:, ::-1] if task == "angle" else truth[:, [0, 2, 1]]
    assert truth_elsewhere(places, swapped, task).startswith(f"{task}[")


def test_a_narrow_beam_beside_pile_up_is_no_truth_of_other_events() -> None:
    """In a beam of 6 cm the end faces follow the second gamma of an event; in a wide one they would not."""
    (beam, uvw), (other, _) = flashes(96, spread=0.1), flashes(96)
    piled = beam + np.where(np.arange(96)[:, np.newaxis] % 3 == 0, other, 0.0).astype(np.float32)
    places = light_places(piled)
    assert (places[:, 3] - places[:, 3].mean()).std() > 0.05, "which was all that was asked for"
    assert truth_elsewhere(places[1::3], uvw[1::3][::-1]) == "", "too narrow to tell, either way"


def lights(events: int, share: float) -> tuple[Any, Any]:
    """Energies and their light, to which a second gamma of twice as much at most is added in a share of the events."""
    energies = RNG.uniform(0.015, 0.060, events)
    second = RNG.uniform(0.005, 0.060, events) * (RNG.random(events) < share)
    return 1e6 * (energies + second) * RNG.normal(1.0, 0.05, events), energies


def test_an_energy_of_other_events_does_not_follow_the_light() -> None:
    for events, share in ((192, 0.0), (192, 0.3), (192, 0.7), (48, 0.0)):
        light, energies = lights(events, share)
        assert energy_elsewhere(light, energies) == ""
        assert energy_elsewhere(light, 1000.0 * energies) == "", "in any unit"
        assert energy_elsewhere(light, energies.max() + energies.min() - energies), "the light falls with it"
    light, energies = lights(192, 0.0)
    shuffled = [energy_elsewhere(light, RNG.permutation(energies)) for _ in range(50)]
    assert sum(map(bool, shuffled)) >= 45  # 98 % of permutations
    assert energy_elsewhere(light[:40], -energies[:40]) == "", "too few"
    assert energy_elsewhere(light, np.roll(0.05 + 1e-4 * energies, 1)) == "", "a beam of one energy"
    assert energy_elsewhere(light, np.full(192, 1e10)) == "", "not known"
    wide = light * RNG.lognormal(0, 1.0, 192)
    assert energy_elsewhere(wide, energies[::-1]) == "", "light that is mostly that of other gamma rays"


def test_fewer_energies_tell_beside_events_that_they_should_be_like() -> None:
    """A validation of 40 events had the energies of others, and nothing told of it: alone, 48 are asked for."""
    for share, least in ((0.0, 0.85), (0.2, 0.4)):
        trained = energy_likeness(*lights(120, share))
        told = np.array([_told(*lights(24, share), trained) for _ in range(200)]).mean(axis=0)
        assert told[0] <= 0.01, "of these events"
        assert told[1] >= least, "of others"
        assert told[2] == 0, "with nothing to compare"
    assert energy_likeness(*lights(15, 0.0))[1] == 15
    assert np.isnan(energy_likeness(*lights(15, 0.0))[0])


def _told(light: Any, energies: Any, trained: tuple[float, int]) -> list[bool]:
    other = RNG.permutation(energies)
    few = [energy_elsewhere(light, energies, trained), energy_elsewhere(light, other, trained)]
    return [*map(bool, few), bool(energy_elsewhere(light, other))]


@pytest.mark.parametrize("number", [20, 30, 47])
def test_few_positions_tell_where_chance_does_not_explain_them(number: int) -> None:
    npho, uvw = flashes(48)
    places = light_places(npho)
    assert truth_elsewhere(places[:number], uvw[:number]) == ""
    told = [bool(truth_elsewhere(places[:number], RNG.permutation(uvw[:number]))) for _ in range(100)]
    assert np.mean(told) >= 0.7
