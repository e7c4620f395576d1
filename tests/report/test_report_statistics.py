from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.report.energy_fit import EnergyFit, NoFit, Term, fit_energy_resolution, resolution
from xectool.report.statistics import bootstrap_error, contained_width, effective_width, mean, profile


def test_effective_width_of_a_gaussian_is_its_sigma() -> None:
    values = 3.0 * np.random.default_rng(0).standard_normal(200_000) + 17.0
    assert effective_width(values) == pytest.approx(3.0, rel=0.015)


def test_effective_width_finds_the_core_beside_a_tail() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.standard_normal(9000), rng.uniform(-50, 0, 1000)])
    assert effective_width(values) < 1.4
    assert values.std() > 8


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.floats(-1e3, 1e3), st.floats(0.1, 10))
def test_effective_width_moves_and_scales_with_the_values(values: list[float], shift: float, scale: float) -> None:
    array = np.array(values)
    expected = scale * effective_width(array)
    assert effective_width(scale * array + shift) == pytest.approx(
        expected, abs=1e-6 * (1 + np.abs(array).max()) * scale
    )


def test_bootstrap_error_of_the_mean_is_sigma_over_root_n() -> None:
    for count in (500, 20_000):
        values = np.random.default_rng(1).standard_normal(count)
        assert bootstrap_error(values, mean) == pytest.approx(1 / np.sqrt(count), rel=0.2)


def test_profile_holds_every_event_once() -> None:
    rng = np.random.default_rng(2)
    quantity = rng.exponential(5, 1000)
    found = profile(quantity, quantity, lambda values: float(len(values)))
    assert found.value.sum() == 1000
    assert (found.low[1:] >= found.high[:-1]).all()


def test_profile_of_a_constant_is_one_bin() -> None:
    found = profile(np.full(500, 52.8), np.random.default_rng(0).standard_normal(500), contained_width)
    assert len(found.value) == 1
    assert found.centre[0] == pytest.approx(52.8)


@pytest.mark.parametrize("count", [0, 9])
def test_profile_of_too_few_events_is_empty(count: int) -> None:
    assert len(profile(np.zeros(count), np.zeros(count), mean).value) == 0


def test_energy_fit_recovers_its_terms_within_their_errors() -> None:
    rng = np.random.default_rng(0)
    energy = np.geomspace(0.005, 0.1, 14)
    true = (0.004, 0.011, 0.0004)
    error = 0.01 * resolution(energy, *true)
    fit = fit_energy_resolution(energy, resolution(energy, *true) + error * rng.standard_normal(14), error)
    assert isinstance(fit, EnergyFit)
    for term, expected in zip((fit.stochastic, fit.constant, fit.noise), true, strict=True):
        assert term.resolved
        assert abs(term.value - expected) < 3.5 * max(term.high - term.value, term.value - term.low)
        assert term.low < term.value < term.high < term.limit
    assert fit.chi2 / fit.ndof < 2.5
    assert "a = 0." in fit.text()
    assert "95 %" not in fit.text()


@pytest.mark.parametrize("true", [(0.0, 0.02, 0.0), (0.004, 0.0, 0.0), (0.0, 0.0, 0.001), (0.003, 0.015, 0.0001)])
def test_energy_fit_covers_terms_at_and_near_their_bounds(true: tuple[float, float, float]) -> None:
    energy, covered, limited = np.linspace(0.02, 0.06, 10), 0, 0
    for seed in range(20):
        exact = resolution(energy, *true)
        fit = fit_energy_resolution(
            energy, exact * (1 + 0.05 * np.random.default_rng(seed).standard_normal(10)), 0.05 * exact
        )
        assert isinstance(fit, EnergyFit)
        terms = (fit.stochastic, fit.constant, fit.noise)
        covered += sum(term.low <= value <= term.high for term, value in zip(terms, true, strict=True))
        limited += sum(value <= term.limit for term, value in zip(terms, true, strict=True))
        # No error is wider than what the data allow the term alone to be.
        assert all(term.high < 0.01 for term in (fit.stochastic, fit.noise))
    assert covered >= 0.6 * 60
    assert limited >= 0.88 * 60


def test_a_term_at_its_bound_is_an_upper_limit_and_not_a_wide_error() -> None:
    energy = np.linspace(0.02, 0.06, 10)
    fit = fit_energy_resolution(energy, np.full(10, 0.02), np.full(10, 0.0005))
    assert isinstance(fit, EnergyFit)
    assert not fit.stochastic.resolved
    assert fit.stochastic.limit < 0.003
    assert fit.text().startswith("$a < ")
    assert "(95 % CL)" in fit.text()
    assert fit.constant.resolved


def test_energy_fit_needs_four_points() -> None:
    energy = np.array([0.01, 0.02, 0.03])
    for of in (energy, np.full(6, 0.05)):
        relative = np.full(3, 0.02) if of is energy else np.full(6, np.nan)
        found = fit_energy_resolution(of, relative, np.full(len(of), 0.001))
        assert isinstance(found, NoFit)
        assert "4 energies that it needs" in found.reason


def test_a_fit_that_does_not_describe_the_points_tells_no_terms() -> None:
    energy = np.array([0.018, 0.025, 0.033, 0.041, 0.049, 0.057])
    relative = np.array([0.12, 0.05, 0.09, 0.03, 0.08, 0.02])  # neither falls nor rises
    fit = fit_energy_resolution(energy, relative, np.full(6, 0.004))
    assert isinstance(fit, EnergyFit)
    assert not fit.describes
    assert fit.text().startswith("does not describe the points")
    assert "MeV" not in fit.text()
    assert f"p = {fit.p_value:.2g}" in fit.text()


def test_the_p_value_is_that_of_the_chi2_distribution() -> None:
    term = Term(1.0, 0.9, 1.1, 1.2)
    assert EnergyFit(term, term, term, 11.345, 3).p_value == pytest.approx(0.01, rel=1e-3)  # any table of chi2
    assert EnergyFit(term, term, term, 11.3, 3).describes
    assert not EnergyFit(term, term, term, 11.4, 3).describes


def test_energy_fit_at_its_bounds_gives_no_warning() -> None:
    energy = np.linspace(0.015, 0.06, 8)
    fit = fit_energy_resolution(energy, 0.05 * energy / energy[0], np.full(8, 0.001))
    assert isinstance(fit, EnergyFit)
    assert fit.constant.resolved
    assert not fit.noise.resolved
