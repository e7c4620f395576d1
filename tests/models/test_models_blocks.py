"""Building blocks against their textbook form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from xectool.detector import hexgrid
from xectool.models.blocks import ConvNeXtV2Block, DropPath, HexDepthwiseConv, drop_path, neighbour_tables
from xectool.models.mixing import mix_channels


def _textbook(h: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    active = F.gelu(h)
    size = active.norm(dim=1, keepdim=True)
    relative = size / (size.mean(dim=-1, keepdim=True) + 1e-6)
    return F.linear(gamma * (active * relative) + beta + active, weight, bias)


def _inputs(positions: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, positions, 12), (12,), (12,), (3, 12), (3,))
    return [torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]


@pytest.mark.parametrize("positions", [5, 40], ids=["direct", "folded"])
def test_channel_mixing_equals_its_textbook_form(positions: int) -> None:
    inputs = _inputs(positions)
    ours, plain = mix_channels(*inputs), _textbook(*inputs)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    pull = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, inputs, pull)
    for got, wanted in zip(torch.autograd.grad(ours, inputs, pull), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("positions", [2, 9], ids=["direct", "folded"])
def test_channel_mixing_has_the_gradient_of_its_value(positions: int) -> None:
    assert torch.autograd.gradcheck(mix_channels, _inputs(positions))


def test_channel_mixing_survives_a_face_without_any_response() -> None:
    h = torch.full((1, 40, 4), -100.0, requires_grad=True)
    mix_channels(h, *(torch.ones(s) for s in ((4,), (4,), (3, 4), (3,)))).sum().backward()
    assert h.grad is not None
    assert bool(h.grad.isfinite().all())


@pytest.mark.parametrize("geometry", ["physical", "compat"])
def test_hexagon_gather_equals_scatter_add(geometry: str) -> None:
    edges = hexgrid.edge_index(geometry)
    tables = neighbour_tables(edges, hexgrid.NUM_NODES)
    source, destination, kind = torch.from_numpy(edges.copy())
    conv = HexDepthwiseConv(5).double()
    x = torch.randn(2, hexgrid.NUM_NODES, 5, dtype=torch.float64, requires_grad=True)
    messages = x[:, source] * conv.weight[0][kind]
    plain = torch.zeros_like(x).index_add(1, destination, messages) + conv.bias
    ours = conv(x, tables)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    pull = torch.randn_like(plain)
    for got, wanted in zip(
        torch.autograd.grad(ours, [x, conv.weight], pull),
        torch.autograd.grad(plain, [x, conv.weight], pull),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_neighbour_tables_hold_every_edge_once_from_both_ends() -> None:
    edges = hexgrid.edge_index()
    senders, receivers = neighbour_tables(edges, hexgrid.NUM_NODES)
    expected = {tuple(edge) for edge in edges.T.tolist()}
    kinds, nodes = np.nonzero(senders.numpy() < hexgrid.NUM_NODES)
    assert {(int(senders[k, n]), n, k) for k, n in zip(kinds, nodes, strict=True)} == expected
    kinds, nodes = np.nonzero(receivers.numpy() < hexgrid.NUM_NODES)
    assert {(n, int(receivers[k, n]), k) for k, n in zip(kinds, nodes, strict=True)} == expected


def test_hidden_cells_reach_neither_the_convolution_output_nor_the_residual() -> None:
    block = ConvNeXtV2Block(4)
    block.dwconv.weight.data.zero_()  # what a cell sees is then its residual and the convolution's bias only
    x, keep = torch.randn(1, 6, 5, 4), torch.ones(1, 6, 5, 1)
    keep[0, 2, 2] = 0
    expected = block(x * keep, keep)
    torch.testing.assert_close(block(x, keep), expected, rtol=0, atol=0)


def test_drop_path_scales_what_it_keeps_and_rests_outside_training() -> None:
    torch.manual_seed(0)
    layer = DropPath(0.25)
    x = torch.ones(4000, 2)
    out = layer(x)
    assert out.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert float(out.mean()) == pytest.approx(1.0, abs=0.05)
    assert layer.eval()(x) is x
    assert not drop_path(0.0).state_dict()
