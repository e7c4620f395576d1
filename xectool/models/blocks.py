"""Building blocks shared by every network: ConvNeXt-V2 blocks on images and on the hexagonal faces.

Axes: B events, H, W image, N hexagon nodes, P = positions (H*W or N), C channels, K neighbours of a node.
Images are channels-last everywhere, so that norms and linear layers act on the last axis without permuting.
Sources: ConvNeXt V2 (Woo et al. 2023, arXiv:2301.00808) for the blocks and the global response normalisation,
stochastic depth (Huang et al. 2016, arXiv:1603.09382).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xectool.models import event_parts
from xectool.models.channel_norm import ChannelNorm
from xectool.models.depthwise import DepthwiseConv
from xectool.models.mixing import mix_channels
from xectool.models.products import PositionLinear, wants_plain_operations

NORM_EPS = 1e-6
HEX_EDGE_TYPES = 7
CACHED_BYTES = 2**20


class ResponseNorm(nn.Module):
    """Parameters of the global response normalisation; :func:`mix_channels` applies them.

    Args:
        channels: F.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))


class DropPath(nn.Module):
    """Stochastic depth: drops the whole branch of an event with the given probability, in training only."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.keep = 1.0 - rate

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, ...) with events dropped and the kept ones scaled by 1/keep."""
        if not self.training:
            return x
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        return x * x.new_empty(shape).bernoulli_(self.keep).div_(self.keep)


def drop_path(rate: float) -> nn.Module:
    """Return stochastic depth, or an identity without state when the rate is 0."""
    return DropPath(rate) if rate > 0 else nn.Identity()


class ConvNeXtV2Block(nn.Module):
    """Depthwise 7x7 convolution, then a channel MLP with response normalisation, around a residual.

    Args:
        channels: C.
        drop_path_rate: Probability of dropping the branch of an event.
    """

    def __init__(self, channels: int, drop_path_rate: float = 0.0) -> None:
        super().__init__()
        self.dwconv = DepthwiseConv(channels, kernel_size=7)
        self.norm = ChannelNorm(channels, eps=NORM_EPS)
        self.pwconv1 = PositionLinear(channels, 4 * channels)
        self.grn = ResponseNorm(4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.drop_path = drop_path(drop_path_rate)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """Return the block's output for x (B, H, W, C).

        Args:
            x: Image, shape (B, H, W, C).
            keep: 0 where a cell is hidden, else 1; shape (B, H, W, 1). Hidden cells give nothing to the convolution's
                output nor to the residual.
        """
        mixed = self.dwconv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        if keep is not None:
            mixed, x = mixed * keep, x * keep
        hidden = self.pwconv1(self.norm(mixed.flatten(1, 2)))
        mixed = mix_channels(hidden, self.grn.gamma, self.grn.beta, self.pwconv2.weight, self.pwconv2.bias)
        branch: Tensor = self.drop_path(mixed.reshape(x.shape))
        return x + branch


def neighbour_tables(edges: npt.NDArray[np.int64], num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return for every node which node sends to it, and which receives from it, by edge type.

    Args:
        edges: Rows source, destination, type; shape (3, E). A node has at most one edge of a type in each direction.
        num_nodes: N.

    Returns:
        Two int64 tables (K, N); ``num_nodes`` stands for "none" and points at an appended row of zeros.
    """
    source, destination, kind = torch.from_numpy(edges.copy())
    senders = torch.full((HEX_EDGE_TYPES, num_nodes), num_nodes)
    receivers = torch.full((HEX_EDGE_TYPES, num_nodes), num_nodes)
    senders[kind, destination] = source
    receivers[kind, source] = destination
    return senders, receivers


class _NeighbourSum(torch.autograd.Function):
    """Sum over edge types of the sender's value times the type's weight.

    Forward and backward both gather: the gradient of a gather by senders is a gather by receivers, because an edge is
    fixed by its type and either end. Sixteen times faster than scatter-add on two cores, and deterministic everywhere.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, senders: Tensor, receivers: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, receivers)
        padded, total = F.pad(x, (0, 0, 0, 1)), torch.zeros_like(x)
        for part in event_parts.of(x, CACHED_BYTES):
            for k in range(HEX_EDGE_TYPES):
                total[part].addcmul_(padded[part].index_select(1, senders[k]), weight[k])
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, receivers = ctx.saved_tensors
        padded, g_x, g_weight = F.pad(gradients[0], (0, 0, 0, 1)), torch.zeros_like(x), torch.zeros_like(weight)
        for part in event_parts.of(x, CACHED_BYTES):
            for k in range(HEX_EDGE_TYPES):
                received = padded[part].index_select(1, receivers[k])
                g_x[part].addcmul_(received, weight[k])
                g_weight[k] += received.mul_(x[part]).sum((0, 1))
        return g_x, g_weight, None, None


def _weighted_gather(x: Tensor, weight: Tensor, table: Tensor) -> Tensor:
    padded = F.pad(x, (0, 0, 0, 1))
    total = padded.index_select(1, table[0]) * weight[0]
    for k in range(1, HEX_EDGE_TYPES):
        total = torch.addcmul(total, padded.index_select(1, table[k]), weight[k])
    return total


class HexDepthwiseConv(nn.Module):
    """Depthwise convolution over a node and its six neighbours, one weight per direction and channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, HEX_EDGE_TYPES, channels) * 0.02)
        self.bias = nn.Parameter(torch.zeros(1, 1, channels))

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """Return sums over neighbours of x (B, N, C), with the tables of :func:`neighbour_tables`."""
        weight = self.weight[0]
        x = x.to(weight.dtype)
        if wants_plain_operations():
            return _weighted_gather(x, weight, tables[0]) + self.bias
        summed: Tensor = _NeighbourSum.apply(x, weight, *tables)  # type: ignore[no-untyped-call]  # torch's own
        return summed + self.bias


class HexNeXtBlock(nn.Module):
    """The ConvNeXt-V2 block on a hexagonal face.

    Args:
        channels: C.
        drop_path_rate: Probability of dropping the branch of an event.
    """

    def __init__(self, channels: int, drop_path_rate: float = 0.0) -> None:
        super().__init__()
        self.spatial_conv = HexDepthwiseConv(channels)
        self.norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.pwconv1 = PositionLinear(channels, 4 * channels)
        self.grn = ResponseNorm(4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.drop_path = drop_path(drop_path_rate)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], keep: Tensor | None = None) -> Tensor:
        """Return the block's output for nodes x (B, N, C); ``keep`` (B, N, 1) is 0 where a node is hidden."""
        mixed = self.spatial_conv(x, tables)
        if keep is not None:
            mixed, x = mixed * keep, x * keep
        hidden = self.pwconv1(self.norm(mixed))
        mixed = mix_channels(hidden, self.grn.gamma, self.grn.beta, self.pwconv2.weight, self.pwconv2.bias)
        branch: Tensor = self.drop_path(mixed)
        return x + branch
