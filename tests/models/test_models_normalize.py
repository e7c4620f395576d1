"""The one normaliser."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.config.normalization import NormalizationConfig
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.errors import ConfigError
from xectool.models.normalize import SCHEMES, Normalizer, NphoScheme

FLOAT32 = st.floats(width=32, allow_nan=True, allow_infinity=True)


def _normalizer(**changes: Any) -> Normalizer:
    return Normalizer(NormalizationConfig(**changes))


def _one(normalizer: Normalizer, npho: float, time: float = 0.0) -> tuple[list[float], list[bool]]:
    x, valid = normalizer.normalize(torch.tensor([[npho]]), torch.tensor([[time]]))
    return x[0, 0].tolist(), valid[0, 0].tolist()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_older_readings_give_the_older_network_units(scheme: str, stored: Callable[[str], dict[str, Any]]) -> None:
    raw, units = stored("reg_small_io.npz"), stored("units.npz")
    normalizer = _normalizer(npho_scheme=scheme, below_domain="zero")
    x = normalizer(torch.from_numpy(raw["raw_npho"]), torch.from_numpy(raw["raw_time"]))
    np.testing.assert_allclose(x[:, ::7].numpy(), units[f"norm_{scheme}"], rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scheme_and_inverse_agree_with_the_older_system(scheme: str, stored: Callable[[str], dict[str, Any]]) -> None:
    units = stored("units.npz")
    raw = torch.tensor([0, 1, 37.5, 100, 1000, 2.5e4, 1e5], dtype=torch.float64)
    ours = NphoScheme(scheme, 1000.0, 4.08)
    np.testing.assert_allclose(ours(raw).numpy(), units[f"tf_{scheme}"], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ours.inverse(ours(raw)).numpy(), units[f"tfinv_{scheme}"], rtol=1e-9, atol=1e-9)
    assert _normalizer(npho_scheme=scheme).threshold == pytest.approx(float(units[f"tfthr_{scheme}"]), rel=1e-12)


@pytest.mark.parametrize("scheme", ["log1p", "anscombe", "sqrt"])
def test_the_domain_starts_where_the_older_one_does(scheme: str, stored: Callable[[str], dict[str, Any]]) -> None:
    assert NphoScheme(scheme, 1000.0, 4.08).lowest == pytest.approx(float(stored("units.npz")[f"tfmin_{scheme}"]))


@given(npho=FLOAT32, time=FLOAT32, scheme=st.sampled_from(SCHEMES), fill=st.sampled_from(["sentinel", "zero"]))
@settings(max_examples=300, deadline=None)
def test_no_reading_becomes_nan_or_infinite(npho: float, time: float, scheme: str, fill: str) -> None:
    x, _ = _one(_normalizer(npho_scheme=scheme, below_domain=fill, npho_scale=0.58), npho, time)
    assert all(math.isfinite(value) for value in x)


@given(value=st.floats(0, 1e6), scheme=st.sampled_from(SCHEMES), scale=st.floats(0.1, 2e4))
@settings(deadline=None)
def test_inverse_returns_the_photons(value: float, scheme: str, scale: float) -> None:
    ours = NphoScheme(scheme, scale, 4.08)
    back = ours.inverse(ours(torch.tensor(value, dtype=torch.float64)))
    assert float(back) == pytest.approx(value, rel=1e-9, abs=1e-9 * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_prediction_becomes_more_photons_than_a_file_may_hold(scheme: str, dtype: torch.dtype) -> None:
    """A network that has not learnt yet says 25 where 4 is the brightest; its exponential is beyond float32."""
    said = torch.tensor([25.0, 1e3, 1e20, math.inf], dtype=dtype) * 1e11
    photons = NphoScheme(scheme, 1000.0, 4.08).inverse(said)
    assert (photons.float() <= UNKNOWN_ABOVE).all()
    assert torch.equal(photons.float(), torch.full((4,), UNKNOWN_ABOVE))
    assert not torch.isfinite(1000.0 * torch.expm1(4.08 * torch.tensor(25.0))), "the control: what it was"


def test_inverse_time_returns_seconds() -> None:
    normalizer = _normalizer()
    x = normalizer(torch.full((1, 1), 500.0, dtype=torch.float64), torch.full((1, 1), -3.2e-8, dtype=torch.float64))
    assert float(normalizer.inverse_time(x[0, 0, 1])) == pytest.approx(-3.2e-8, rel=1e-12)
    assert float(normalizer.inverse_npho(x[0, 0, 0])) == pytest.approx(500.0, rel=1e-12)


@pytest.mark.parametrize("npho", [1e10, math.nan, math.inf, -math.inf])
def test_a_missing_count_gives_both_sentinels(npho: float) -> None:
    assert _one(_normalizer(sentinel_time=-2.0), npho) == ([-1.0, -2.0], [False, False])


def test_a_count_below_the_domain_is_the_sentinel_unless_the_older_fill_is_asked_for() -> None:
    assert _one(_normalizer(npho_scheme="sqrt"), -3.0) == ([-1.0, -1.0], [False, False])
    assert _one(_normalizer(npho_scheme="sqrt", below_domain="zero"), -3.0) == ([0.0, -1.0], [False, False])


@pytest.mark.parametrize(("npho", "time"), [(99.0, 0.0), (500.0, 1e10), (500.0, math.nan), (500.0, -math.inf)])
def test_a_missing_time_leaves_the_count(npho: float, time: float) -> None:
    x, valid = _one(_normalizer(), npho, time)
    assert x[0] == pytest.approx(math.log1p(npho / 1000) / 4.08, rel=1e-6)
    assert (x[1], valid) == (-1.0, [True, False])


def test_a_valid_time_equal_to_the_sentinel_stays_valid() -> None:
    normalizer = _normalizer()
    x, valid = _one(normalizer, 500.0, (-1.0 - 0.46) * 1.14e-7)
    assert x[1] == pytest.approx(-1.0, abs=1e-6)
    assert valid == [True, True]


def test_it_adds_nothing_to_a_state_dict_and_compiles_as_one_graph() -> None:
    normalizer = _normalizer()
    assert not normalizer.state_dict()
    npho, time = torch.tensor([[0.0, 1e10, 700.0]]), torch.tensor([[0.0, 1e-8, 2e-8]])
    compiled = torch.compile(normalizer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(npho, time), normalizer(npho, time), rtol=0, atol=0)


def test_an_unknown_scheme_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'log1p'"):
        NphoScheme("log1", 1.0)
