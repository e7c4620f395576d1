"""Light decoders of the masked autoencoder: one token to all readings of a face.

Axes: B events, D encoder width, C channels, H, W image, N hexagon nodes (73).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xectool.detector import hexgrid
from xectool.models.backbones import TOKEN_SHAPE
from xectool.models.blocks import HexNeXtBlock, neighbour_tables

NUM_GRAPH_BLOCKS = 2


class FaceDecoder(nn.Module):
    """Transposed convolutions from a 4 x 4 to a 16 x 16 map, then interpolation to the face.

    Args:
        width: D.
        decoder_dim: Channels after the first of three convolutions.
        channels: C.
        size: H and W.
    """

    def __init__(self, width: int, decoder_dim: int, channels: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size
        first, half = 2 * decoder_dim, decoder_dim // 2
        height, breadth = TOKEN_SHAPE
        self.linear = nn.Linear(width, first * height * breadth)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(first, decoder_dim, kernel_size=3, stride=2, padding=1, output_padding=1),
            nn.LayerNorm([decoder_dim, 2 * height, 2 * breadth]),
            nn.GELU(),
            nn.ConvTranspose2d(decoder_dim, half, kernel_size=3, stride=2, padding=1, output_padding=1),
            nn.LayerNorm([half, 4 * height, 4 * breadth]),
            nn.GELU(),
            nn.ConvTranspose2d(half, channels, kernel_size=3, padding=1),
        )

    def forward(self, token: Tensor) -> Tensor:
        """Return the image (B, C, H, W) of a token (B, D)."""
        image = self.decoder(self.linear(token).unflatten(1, (-1, *TOKEN_SHAPE)))
        return F.interpolate(image, size=self.size, mode="bilinear", align_corners=False)


class GraphFaceDecoder(nn.Module):
    """Hexagonal blocks over a position embedding and the token.

    Args:
        width: D.
        decoder_dim: Channels of the blocks.
        channels: C.
        geometry: Which neighbours count; see :func:`xectool.detector.hexgrid.edge_index`.
    """

    adj_matrix: Tensor
    senders: Tensor
    receivers: Tensor

    def __init__(self, width: int, decoder_dim: int, channels: int, geometry: str) -> None:
        super().__init__()
        edges = hexgrid.edge_index(geometry)
        senders, receivers = neighbour_tables(edges, hexgrid.NUM_NODES)
        self.pos_embed = nn.Parameter(torch.zeros(1, hexgrid.NUM_NODES, decoder_dim))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.register_buffer("adj_matrix", torch.from_numpy(edges.copy()))
        self.register_buffer("senders", senders, persistent=False)
        self.register_buffer("receivers", receivers, persistent=False)
        self.proj_in = nn.Linear(width, decoder_dim)
        self.blocks = nn.ModuleList(HexNeXtBlock(decoder_dim) for _ in range(NUM_GRAPH_BLOCKS))
        self.head = nn.Sequential(nn.LayerNorm(decoder_dim), nn.Linear(decoder_dim, channels))

    def forward(self, token: Tensor) -> Tensor:
        """Return the readings (B, C, N) of a token (B, D)."""
        nodes = self.proj_in(token).unsqueeze(1) + self.pos_embed
        for block in self.blocks:
            nodes = block(nodes, (self.senders, self.receivers))
        readings: Tensor = self.head(nodes)
        return readings.transpose(1, 2)
