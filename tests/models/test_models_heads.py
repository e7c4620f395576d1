"""Target transforms and heads."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.errors import ConfigError
from xectool.models.heads import TargetTransform


@given(scale=st.floats(1e-10, 1e3), shift=st.floats(-10, 10), log=st.booleans(), value=st.floats(1e-3, 100))
@settings(deadline=None)
def test_decode_inverts_encode(scale: float, shift: float, log: bool, value: float) -> None:
    transform = TargetTransform(1, scale, shift * scale, log).double()
    target = torch.tensor([[value]], dtype=torch.float64)
    torch.testing.assert_close(transform.decode(transform.encode(target)), target, rtol=1e-6, atol=1e-12)


def test_a_head_that_has_not_learnt_yet_predicts_what_a_file_may_hold() -> None:
    transform = TargetTransform(1, log_transform=True)
    value, log_variance = torch.tensor([[1.0], [200.0]]), torch.tensor([[0.0], [400.0]])
    assert not torch.isfinite(value.exp()).all(), "the control"
    assert transform.decode(value).flatten().tolist() == pytest.approx([math.e, 9e9])
    sigma = transform.decode_sigma(value, log_variance)
    assert torch.isfinite(sigma).all()
    assert float(sigma[0, 0]) == pytest.approx(math.e)


def test_nanoseconds_become_numbers_of_order_one() -> None:
    encoded = TargetTransform(1, 2e-9, 1e-9).encode(torch.tensor([[3e-9], [-1e-9]]))
    torch.testing.assert_close(encoded, torch.tensor([[1.0], [-1.0]]))


def test_without_scale_and_shift_it_is_the_identity() -> None:
    target = torch.randn(4, 3)
    transform = TargetTransform(3)
    torch.testing.assert_close(transform.encode(target), target, rtol=0, atol=0)
    assert not transform.state_dict()


def test_sigma_scales_and_follows_the_logarithm_to_first_order() -> None:
    mean, log_variance = torch.tensor([[0.5]]), torch.tensor([[2 * math.log(0.01)]])
    assert float(TargetTransform(1, 4.0, 1.0).decode_sigma(mean, log_variance)) == pytest.approx(0.04)
    log = TargetTransform(1, 2.0, 0.0, log_transform=True)
    assert float(log.decode_sigma(mean, log_variance)) == pytest.approx(0.02 * math.e)


def test_an_unmeasured_scale_refuses_to_guess() -> None:
    transform = TargetTransform(1, "auto")
    with pytest.raises(ConfigError, match=r"scale: 1\.0"):
        transform.encode(torch.ones(1, 1))


def test_a_shift_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="give one number, or 3"):
        TargetTransform(3, None, [1.0, 2.0])


def test_a_scale_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        TargetTransform(1, 0.0)
