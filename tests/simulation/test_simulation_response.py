"""Sensors count photons with Poisson statistics and time them with 1 / sqrt(npho)."""

from __future__ import annotations

import numpy as np
import pytest
from xectool.simulation import physics
from xectool.simulation.response import DetectorResponse

S = 4760
SIPMS, PMTS = slice(0, 4092), slice(4092, None)


def read_many(photons: float, count: int = 60) -> tuple[np.ndarray, np.ndarray, DetectorResponse]:
    detector = DetectorResponse.from_seed(1)
    rng = np.random.default_rng(4)
    events = [detector.read_out(rng, np.full(S, photons), np.zeros(S)) for _ in range(count)]
    npho = np.array([event[0] for event in events])
    absolute = np.array([event[1] + event[2] for event in events])
    return npho, absolute, detector


def test_charge_is_calibrated_to_the_stated_error() -> None:
    npho, _, _ = read_many(2000.0)
    mean = npho.mean(axis=0) / 2000
    assert mean[SIPMS].mean() == pytest.approx(1, abs=0.003)
    assert mean[SIPMS].std() == pytest.approx(0.03, abs=0.004)
    assert mean[PMTS].std() == pytest.approx(0.04, abs=0.006)


def test_charge_fluctuates_as_photoelectrons_and_noise_do() -> None:
    npho, _, detector = read_many(2000.0)
    electrons = 2000 * detector.efficiency
    single = np.r_[np.full(4092, physics.SIPM_SINGLE_SPREAD), np.full(668, physics.PMT_SINGLE_SPREAD)]
    noise = np.r_[np.full(4092, physics.SIPM_NOISE_PE), np.full(668, physics.PMT_NOISE_PE)]
    expected = np.sqrt(electrons * (1 + single**2) + noise**2) * detector.photons_per_pe
    assert np.mean(npho.std(axis=0, ddof=1) / expected) == pytest.approx(1, abs=0.01)


def test_sensors_without_light_show_the_noise() -> None:
    npho, absolute, _ = read_many(0.0)
    assert npho[:, SIPMS].mean() == pytest.approx(0, abs=0.1)
    assert npho[:, SIPMS].std() == pytest.approx(10, rel=0.1)
    assert (absolute >= 1e10).all()


def test_time_resolution_falls_with_the_root_of_the_light() -> None:
    spread = {}
    for photons in (400.0, 1600.0, 6400.0):
        _, absolute, detector = read_many(photons)
        spread[photons] = (absolute - detector.time_offset_s).std()
        electrons = photons * 0.15
        assert spread[photons] == pytest.approx(np.hypot(2.5e-9 / np.sqrt(electrons), 0.1e-9), rel=0.08)


def test_times_are_relative_to_the_earliest_used_sensor() -> None:
    detector = DetectorResponse.from_seed(1, dead_fraction=0.02)
    photons = np.geomspace(10, 5000, S)
    npho, relative_s, zero_s = detector.read_out(np.random.default_rng(2), photons, np.full(S, 5e-9))
    used = (npho >= physics.MIN_USED_NPHO) & ~detector.dead
    assert relative_s[used].min() == 0.0
    assert 0 < zero_s < 5e-9
    dim = npho < physics.MIN_TIMED_NPHO
    assert (relative_s[dim | detector.dead] == 1e10).all()
    assert (relative_s[~dim & ~detector.dead] < 1e-6).all()


def test_an_event_without_used_sensors_has_no_times() -> None:
    detector = DetectorResponse.from_seed(1)
    _, relative_s, zero_s = detector.read_out(np.random.default_rng(2), np.zeros(S), np.zeros(S))
    assert zero_s == 1e10
    assert (relative_s == 1e10).all()


def test_dead_sensors_hold_the_sentinel() -> None:
    detector = DetectorResponse.from_seed(3, dead_fraction=0.01)
    npho, relative_s, _ = detector.read_out(np.random.default_rng(2), np.full(S, 500.0), np.zeros(S))
    assert detector.dead.sum() == 48
    assert (npho[detector.dead] == 1e10).all()
    assert (relative_s[detector.dead] == 1e10).all()
    assert (npho[~detector.dead] < 1e6).all()


def test_a_larger_dead_fraction_keeps_the_dead_dead() -> None:
    few, many = DetectorResponse.from_seed(7, 0.01), DetectorResponse.from_seed(7, 0.05)
    assert many.dead[few.dead].all()
    assert np.array_equal(few.efficiency, many.efficiency)


def test_another_seed_is_another_detector() -> None:
    one, two = DetectorResponse.from_seed(1, 0.01), DetectorResponse.from_seed(2, 0.01)
    assert not np.array_equal(one.dead, two.dead)
    assert not np.array_equal(one.efficiency, two.efficiency)
