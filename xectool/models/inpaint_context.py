"""What every inpainting head of a face starts from: the face's readings together with its token.

Axes: B events, D encoder width, C predicted channels, H, W image, N hexagon nodes (73), F features of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xectool.detector import hexgrid
from xectool.models.blocks import ConvNeXtV2Block, HexNeXtBlock, neighbour_tables

IMAGE_FEATURES = 64
HEX_FEATURES = 96
NUM_GROUPS = 8
NUM_IMAGE_BLOCKS = 2
NUM_HEX_BLOCKS = 3
NUM_READINGS = 2


class TokenCondition(nn.Sequential):
    """Token (B, D) to the condition (B, F) that every position of the face is told."""

    def __init__(self, width: int, features: int) -> None:
        super().__init__(nn.Linear(width, features), nn.GELU())


class ImageContext(nn.ModuleList):
    """Convolutional features of an image and a condition."""

    def __init__(self, features: int = IMAGE_FEATURES) -> None:
        super().__init__(
            [
                nn.Conv2d(NUM_READINGS + features, features, kernel_size=3, padding=1),
                nn.GroupNorm(NUM_GROUPS, features),
                nn.GELU(),
                *(ConvNeXtV2Block(features) for _ in range(NUM_IMAGE_BLOCKS)),
            ]
        )
        self.recompute = False

    def forward(self, image: Tensor, condition: Tensor) -> Tensor:
        """Return features (B, H, W, F) of an image (B, H, W, 2) and a condition (B, F)."""
        if self.recompute and self.training:
            recomputed: Tensor = checkpoint(self._features, image, condition, use_reentrant=False)
            return recomputed
        return self._features(image, condition)

    def _features(self, image: Tensor, condition: Tensor) -> Tensor:
        conv, norm, activation, *blocks = self
        assert isinstance(conv, nn.Conv2d)
        x = activation(norm(_conditioned(conv, image, condition))).permute(0, 2, 3, 1)
        for block in blocks:
            x = block(x)
        features: Tensor = x
        return features


class HexContext(nn.Module):
    """Mix-in: hexagonal features of nodes and a condition; its parts belong to the head, as in older checkpoints."""

    edge_index: Tensor
    senders: Tensor
    receivers: Tensor

    def add_edges(self, geometry: str) -> None:
        """Register the edges and the tables made of them."""
        edges = hexgrid.edge_index(geometry)
        senders, receivers = neighbour_tables(edges, hexgrid.NUM_NODES)
        self.register_buffer("edge_index", torch.from_numpy(edges.copy()))
        self.register_buffer("senders", senders, persistent=False)
        self.register_buffer("receivers", receivers, persistent=False)

    def add_layers(self) -> None:
        """Register the layers."""
        self.input_proj = nn.Linear(NUM_READINGS + HEX_FEATURES, HEX_FEATURES)
        self.gnn_layers = nn.ModuleList(HexNeXtBlock(HEX_FEATURES) for _ in range(NUM_HEX_BLOCKS))

    def features(self, nodes: Tensor, condition: Tensor) -> Tensor:
        """Return features (B, N, F) of nodes (B, N, 2) and a condition (B, F)."""
        weight = self.input_proj.weight
        told = F.linear(condition, weight[:, NUM_READINGS:], self.input_proj.bias)
        x = F.linear(nodes, weight[:, :NUM_READINGS]) + told.unsqueeze(1)
        for layer in self.gnn_layers:
            x = layer(x, (self.senders, self.receivers))
        return x


def _conditioned(conv: nn.Conv2d, image: Tensor, condition: Tensor) -> Tensor:
    """Return the convolution (B, F, H, W) of an image with its condition at every place, without building that image.

    A constant image, padded with zeros, gives the same value everywhere but along the border: nine values a channel.
    Convolving a 3 x 3 image finds them, at a thirtieth of the cost on the inner face.
    """
    height, width = image.shape[1:3]
    small = condition[:, :, None, None].expand(-1, -1, min(height, 3), min(width, 3))
    told = F.conv2d(small, conv.weight[:, NUM_READINGS:], conv.bias, padding=1)
    told = _stretched(_stretched(told, 2, height), 3, width)
    return F.conv2d(image.permute(0, 3, 1, 2), conv.weight[:, :NUM_READINGS], padding=1) + told


def _stretched(x: Tensor, dim: int, size: int) -> Tensor:
    """Return x with the middle of its three entries along ``dim`` repeated to ``size`` entries in all."""
    if size <= x.shape[dim]:
        return x
    first, middle, last = (x.narrow(dim, place, 1) for place in range(3))
    shape = list(middle.shape)
    shape[dim] = size - 2
    return torch.cat((first, middle.expand(shape), last), dim=dim)
