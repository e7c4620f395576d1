from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.errors import ConfigError, UsageError
from xectool.tasks.losses import LOSSES

EDGES = [0.0, 1.0, -1.0, 1e-8, 90.0, 180.0, 1e4, -1e4]


@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_values_agree_with_the_older_system(reference_dir: Path, name: str, beta: float) -> None:
    stored = np.load(reference_dir / "units.npz")
    prediction, target = torch.from_numpy(stored["loss_pred"]), torch.from_numpy(stored["loss_true"])
    if LOSSES[name].head_factor == 1:
        prediction = prediction[:, :2]
    expected = torch.from_numpy(stored[f"loss_{name}_{beta}"])
    torch.testing.assert_close(LOSSES[name](prediction, target, beta), expected, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_value_and_gradient_are_finite_at_the_edges(name: str, beta: float) -> None:
    first, second = torch.meshgrid(torch.tensor(EDGES), torch.tensor(EDGES), indexing="ij")
    target = torch.stack([second.flatten(), first.flatten()], dim=1)
    prediction = torch.stack([first.flatten(), second.flatten()], dim=1).repeat(1, LOSSES[name].head_factor)
    prediction.requires_grad_()
    values = LOSSES[name](prediction, target, beta)
    values.sum().backward()
    assert values.isfinite().all()
    assert prediction.grad is not None
    assert prediction.grad.isfinite().all()


@pytest.mark.parametrize("width", [2, 3])
def test_cosine_is_zero_with_finite_gradient_where_directions_agree(width: int) -> None:
    target = torch.full((4, width), 0.6)
    prediction = target.clone().requires_grad_()
    values = LOSSES["cosine"](prediction, target, 1.0)
    values.sum().backward()
    assert values.abs().max() < 1e-6
    assert prediction.grad is not None
    assert prediction.grad.isfinite().all()


def test_cosine_of_a_zero_vector_has_a_finite_gradient() -> None:
    prediction = torch.zeros(2, 3, requires_grad=True)
    LOSSES["cosine"](prediction, torch.ones(2, 3), 1.0).sum().backward()
    assert prediction.grad is not None
    assert prediction.grad.isfinite().all()


@settings(max_examples=50, deadline=None)
@given(theta=st.floats(1, 179), phi=st.floats(-180, 180), angle=st.floats(1e-4, 0.1))
def test_cosine_keeps_its_precision_at_small_angles(theta: float, phi: float, angle: float) -> None:
    first = torch.tensor([[theta, phi]], dtype=torch.float64)
    second = first + torch.tensor([[angle, 0.0]], dtype=torch.float64)
    found = float(LOSSES["cosine"](first, second, 1.0))
    assert found == pytest.approx(2 * np.sin(np.radians(angle) / 2) ** 2, rel=1e-6)


def test_cosine_refuses_targets_that_are_no_direction() -> None:
    with pytest.raises(ConfigError, match="not 5 components"):
        LOSSES["cosine"](torch.zeros(2, 5), torch.zeros(2, 5), 1.0)


def test_shape_that_would_broadcast_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"prediction \(64,1\) vs target \(64,\)"):
        LOSSES["mse"](torch.zeros(64, 1), torch.zeros(64), 1.0)


def test_width_mismatch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"prediction \(8,2\) vs target \(8,3\)"):
        LOSSES["l1"](torch.zeros(8, 2), torch.zeros(8, 3), 1.0)
    with pytest.raises(ConfigError, match=r"prediction \(8,1\) vs target \(8,1\)"):
        LOSSES["gaussian_nll"](torch.zeros(8, 1), torch.zeros(8, 1), 1.0)


def test_beta_zero_is_the_absolute_error() -> None:
    prediction, target = torch.randn(20, 2), torch.randn(20, 2)
    torch.testing.assert_close(LOSSES["smooth_l1"](prediction, target, 0.0), (prediction - target).abs())


def test_negative_beta_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"loss_beta -0.1 is negative"):
        LOSSES["smooth_l1"](torch.zeros(1, 1), torch.zeros(1, 1), -0.1)


def test_low_precision_predictions_are_evaluated_in_float32() -> None:
    values = LOSSES["mse"](torch.full((2, 1), 300.0, dtype=torch.float16), torch.zeros(2, 1), 1.0)
    assert values.dtype == torch.float32
    assert values.tolist() == [[90000.0], [90000.0]]


def test_log_variance_far_outside_can_return() -> None:
    log_var = torch.tensor([[0.0, 500.0]], requires_grad=True)
    LOSSES["gaussian_nll"](log_var, torch.zeros(1, 1), 0.0).sum().backward()
    assert log_var.grad is not None
    assert float(log_var.grad[0, 1]) == pytest.approx(0.5)


def test_unknown_loss_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'smooth_l1'"):
        LOSSES["smoothl1"]
