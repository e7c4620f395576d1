"""The two networks that turn a face into a token: images of the rectangular faces, graphs of the hexagonal ones.

Axes: B events, D encoder width, C channels, H, W image, N hexagon nodes (73).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xectool.detector import hexgrid
from xectool.models.blocks import NORM_EPS, ConvNeXtV2Block, HexNeXtBlock, neighbour_tables
from xectool.models.channel_norm import ChannelNorm
from xectool.models.products import PositionLinear
from xectool.models.resample import Resize

TOKEN_SHAPE = (4, 4)
HEX_CHANNELS = 96
NUM_HEX_LAYERS = 4
STAGE_DEPTHS = (2, 3)


class FaceBackbone(nn.Module):
    """ConvNeXt-V2 network shared by all rectangular faces.

    Args:
        channels: C of the first stage; a token has 2C * 16 numbers.
        image_sizes: Height and width of every image that it will be given.
        geometry: ``physical`` averages each sixteenth of the last map, ``compat`` samples it at 64 points.
        drop_path_rate: Stochastic depth of every block.
    """

    def __init__(
        self, channels: int, image_sizes: Iterable[tuple[int, int]], geometry: str, drop_path_rate: float = 0.0
    ) -> None:
        super().__init__()
        self.recompute = False
        self.stem = nn.ModuleList(
            [nn.Conv2d(2, channels, kernel_size=4, padding=1), ChannelNorm(channels, eps=NORM_EPS)]
        )
        self.stage1 = nn.ModuleList(ConvNeXtV2Block(channels, drop_path_rate) for _ in range(STAGE_DEPTHS[0]))
        self.downsample = nn.ModuleList(
            [ChannelNorm(channels, eps=NORM_EPS), nn.Conv2d(channels, 2 * channels, kernel_size=2, stride=2)]
        )
        self.stage2 = nn.ModuleList(ConvNeXtV2Block(2 * channels, drop_path_rate) for _ in range(STAGE_DEPTHS[1]))
        self.resize = nn.ModuleDict()
        for height, width in sorted(set(image_sizes)):
            last = ((height - 1) // 2, (width - 1) // 2)
            self.resize[f"{last[0]}x{last[1]}"] = Resize(last, TOKEN_SHAPE, geometry)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return one token (B, 32C) for each image x (B, H, W, 2); ``hidden`` (B, H, W) is 1 where a cell is hidden."""
        if hidden is not None:
            x = x * (1 - hidden).unsqueeze(-1)
        conv, norm = self.stem
        x = norm(_channels_first(conv, x))
        x = self._stage(self.stage1, x, hidden)
        norm, conv = self.downsample
        x = self._stage(self.stage2, _channels_first(conv, norm(x)), hidden)
        x = self.resize[f"{x.shape[1]}x{x.shape[2]}"](x)
        return x.permute(0, 3, 1, 2).flatten(1)

    def _stage(self, blocks: nn.ModuleList, x: Tensor, hidden: Tensor | None) -> Tensor:
        keep = None if hidden is None else _visible(hidden, (x.shape[1], x.shape[2]))

        def run(x: Tensor) -> Tensor:
            for block in blocks:
                x = block(x, keep)
            return x

        return _recomputed(run, x) if self.recompute and self.training else run(x)


class HexEncoder(nn.Module):
    """Hexagonal ConvNeXt network shared by the top and bottom faces.

    Args:
        width: D.
        geometry: Which neighbours count; see :func:`xectool.detector.hexgrid.edge_index`.
        drop_path_rate: Stochastic depth of every block.
    """

    senders: Tensor
    receivers: Tensor

    def __init__(self, width: int, geometry: str, drop_path_rate: float = 0.0) -> None:
        super().__init__()
        self.recompute = False
        self.stem = nn.Sequential(nn.Linear(2, HEX_CHANNELS), nn.LayerNorm(HEX_CHANNELS), nn.GELU())
        self.layers = nn.ModuleList(HexNeXtBlock(HEX_CHANNELS, drop_path_rate) for _ in range(NUM_HEX_LAYERS))
        self.proj = nn.Sequential(nn.LayerNorm(HEX_CHANNELS), PositionLinear(HEX_CHANNELS, width))
        senders, receivers = neighbour_tables(hexgrid.edge_index(geometry), hexgrid.NUM_NODES)
        self.register_buffer("senders", senders, persistent=False)
        self.register_buffer("receivers", receivers, persistent=False)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return one token (B, D) for each face x (B, N, 2); ``hidden`` (B, N) is 1 where a node is hidden."""
        keep = None if hidden is None else (1 - hidden).unsqueeze(-1)
        nodes: Tensor = self.stem(x if keep is None else x * keep)

        def run(nodes: Tensor) -> Tensor:
            for layer in self.layers:
                nodes = layer(nodes, (self.senders, self.receivers), keep)
            return nodes

        nodes = _recomputed(run, nodes) if self.recompute and self.training else run(nodes)
        token: Tensor = self.proj(nodes.mean(dim=1))
        return token


def _channels_first(layer: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = layer(x.permute(0, 3, 1, 2))
    return out.permute(0, 2, 3, 1)


def _visible(hidden: Tensor, size: tuple[int, int]) -> Tensor:
    return 1 - F.interpolate(hidden.unsqueeze(1), size=size, mode="nearest").permute(0, 2, 3, 1)


def _recomputed(run: object, x: Tensor) -> Tensor:
    out: Tensor = checkpoint(run, x, use_reentrant=False)
    return out
