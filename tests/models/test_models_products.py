"""Products, depthwise convolution, narrow norm and transformer against PyTorch's own layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from xectool.detector import hexgrid
from xectool.models import event_parts
from xectool.models.blocks import HexDepthwiseConv, neighbour_tables
from xectool.models.channel_norm import ChannelNorm
from xectool.models.depthwise import DepthwiseConv
from xectool.models.fusion import FusionLayer, FusionTransformer
from xectool.models.mixing import mix_channels
from xectool.models.products import input_gradient, linear, weight_gradient

# few rows (the weight is the image), many rows, rows that cannot be cut, one row, none
SHAPES = [((5, 6), 32, 256), ((3, 200), 8, 24), ((521,), 4, 16), ((1,), 4, 16), ((0, 6), 4, 16)]


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def _close(ours: Any, plain: Any, tolerance: float) -> None:
    torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance)


def _gradients(run: Callable[..., Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    leaves = [value.detach().requires_grad_() for value in inputs]
    out = run(*leaves)
    return torch.autograd.grad(out, leaves, _random(*out.shape, dtype=out.dtype))


@pytest.mark.parametrize(("rows", "features", "outputs"), SHAPES)
def test_products_are_those_of_a_linear_layer(rows: tuple[int, ...], features: int, outputs: int) -> None:
    x, weight, bias = _random(*rows, features), _random(outputs, features), _random(outputs)
    plain = F.linear(x.double(), weight.double(), bias.double())
    ours = linear(x, weight, bias)
    assert ours.is_contiguous()
    _close(ours.double(), plain, 1e-5)
    expected = _gradients(F.linear, [x.double(), weight.double(), bias.double()])
    _close([g.double() for g in _gradients(linear, [x, weight, bias])], list(expected), 5e-5)
    pull = _random(*plain.shape)
    _close(input_gradient(pull, x, weight).double(), expected[0], 5e-5)
    _close(weight_gradient(pull, x, weight).double(), expected[1], 5e-5)


def test_products_follow_the_precision_of_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(_random(600, 8), _random(24, 8), _random(24)).dtype is torch.bfloat16


@pytest.mark.parametrize("shape", [(3, 4, 9, 5), (1, 2, 2, 7), (0, 2, 4, 4)])
def test_depthwise_convolution_has_the_gradients_of_its_base_class(shape: tuple[int, ...]) -> None:
    conv = DepthwiseConv(shape[1], 7).double()
    x = _random(*shape, dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()
    plain = F.conv2d(x, conv.weight, conv.bias, padding=3, groups=shape[1])
    leaves, pull = [x, *conv.parameters()], _random(*shape, dtype=torch.float64)
    _close(torch.autograd.grad(conv(x), leaves, pull), torch.autograd.grad(plain, leaves, pull), 1e-12)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_norm_of_few_channels_is_that_of_pytorch(channels: int) -> None:
    norm = ChannelNorm(channels, 1e-6).double()
    nn.init.uniform_(norm.weight)
    x = (_random(3, 5, channels, dtype=torch.float64) + 2).requires_grad_()
    plain = F.layer_norm(x, (channels,), norm.weight, norm.bias, 1e-6)
    _close(norm(x), plain, 1e-12)
    if channels > 1:
        assert torch.autograd.gradcheck(norm, [x])
    leaves, pull = [x, *norm.parameters()], _random(*x.shape, dtype=torch.float64)
    _close(torch.autograd.grad(norm(x), leaves, pull), torch.autograd.grad(plain, leaves, pull), 1e-10)


def test_norm_of_few_channels_hides_no_overflow_and_keeps_it_in_its_event() -> None:
    x = _random(2, 3, 4)
    x[1, 0, 2] = -1e37
    out = ChannelNorm(4, 1e-6)(x)
    assert out[0].isfinite().all()
    assert out[1, 0].isnan().all()


def test_events_in_parts_give_what_they_give_together(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ((5, 40, 12), (12,), (12,), (3, 12), (3,))
    inputs = [_random(*shape, dtype=torch.float64) for shape in shapes]
    conv, norm = DepthwiseConv(3, 7).double(), ChannelNorm(3, 1e-6).double()
    image = _random(5, 3, 8, 5, dtype=torch.float64)
    hexagon, tables = HexDepthwiseConv(3).double(), neighbour_tables(hexgrid.edge_index(), hexgrid.NUM_NODES)
    nodes = _random(5, hexgrid.NUM_NODES, 3, dtype=torch.float64).requires_grad_()

    def everything() -> list[Tensor]:
        found = [*_gradients(mix_channels, inputs), *_gradients(lambda x: norm(conv(x).permute(0, 2, 3, 1)), [image])]
        found += torch.autograd.grad(norm(conv(image).permute(0, 2, 3, 1)).square().sum(), list(conv.parameters()))
        found += torch.autograd.grad(hexagon(nodes, tables).square().sum(), [nodes, *hexagon.parameters()])
        return found

    used = []
    for parts in ([slice(0, 5)], [slice(0, 2), slice(2, 4), slice(4, 6)]):
        monkeypatch.setattr(event_parts, "of", lambda values, most_bytes, parts=parts: parts)
        used.append(everything())
    _close(used[1], used[0], 1e-11)


def test_parts_hold_every_event_once_and_little_memory() -> None:
    values = torch.empty(37, 1000)
    parts = event_parts.of(values, 20_000)
    assert torch.cat([torch.arange(37)[part] for part in parts]).tolist() == list(range(37))
    assert max(values[part].nbytes for part in parts) <= 20_000
    assert len(parts) > 2
    assert event_parts.of(values, 10) == [slice(n, n + 1) for n in range(37)]
    assert event_parts.of(torch.empty(0, 9), 10) == []


def test_transformer_is_that_of_pytorch() -> None:
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(32, 8, 128, dropout=0.1, activation="gelu", batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    torch.manual_seed(5)
    ours = FusionTransformer(FusionLayer(32, 8, 128, 0.1), 2)
    own, other = ours.state_dict(), theirs.state_dict()
    assert list(own) == list(other)
    _close(own, dict(other), 0.0)  # the same draws in the same order
    x = _random(40, 6, 32)
    _close(ours.eval()(x), theirs.eval()(x), 2e-6)
    for layer in ours.train().layers:
        layer.dropout.p = layer.dropout1.p = layer.dropout2.p = 0.0
    assert not torch.equal(ours(x), ours(x))  # the attention's own dropout
