"""Inpainting heads that predict every sensor of a face from its readings and its token.

Axes: B events, D encoder width, C predicted channels, H, W image, P sensors of the face, N hexagon nodes (73),
F features of a head, U outer sensors (234), R most cells of one sensor.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xectool.detector import faces
from xectool.models.inpaint_context import (
    HEX_FEATURES,
    IMAGE_FEATURES,
    NUM_GROUPS,
    HexContext,
    ImageContext,
    TokenCondition,
)
from xectool.models.outer_regions import Pool, sensor_cells

BLOCKED = -1e4
"""Logit of what an attention must not look at; finite, so that a row with nothing to look at stays a number."""


class ImageHead(nn.Module):
    """All cells of a rectangular face, by convolutions.

    Args:
        width: D.
        channels: C.
        local: Whether the head sees the face's readings, or its token only.
    """

    def __init__(self, width: int, channels: int, local: bool) -> None:
        super().__init__()
        half = IMAGE_FEATURES // 2
        self.latent_proj = TokenCondition(width, IMAGE_FEATURES)
        self.local_encoder = ImageContext() if local else None
        self.global_decoder = None if local else _image_of_token()
        self.pred_head = nn.Sequential(
            nn.Conv2d(IMAGE_FEATURES, half, kernel_size=3, padding=1), nn.GELU(), nn.Conv2d(half, channels, 1)
        )

    def forward(self, image: Tensor, token: Tensor, mask: Tensor, blocked: Tensor) -> Tensor:
        """Return predictions (B, P, C) of an image (B, H, W, 2) and a token (B, D); the masks have no influence."""
        condition = self.latent_proj(token)
        if self.local_encoder is not None:
            features = self.local_encoder(image, condition).permute(0, 3, 1, 2)
        else:
            assert self.global_decoder is not None
            features = self.global_decoder(condition[:, :, None, None].expand(-1, -1, *image.shape[1:3]))
        predicted: Tensor = self.pred_head(features)
        return predicted.flatten(2).transpose(1, 2)


class OuterSensorHead(nn.Module):
    """All sensors of the outer face: features of its fine image, gathered by attention over each sensor's cells.

    Args:
        width: D.
        channels: C.
        local: Whether the head sees the face's readings, or its token only.
        geometry: Which cells belong to a sensor.
        pool: Pooling of the fine image.
    """

    sensor_ids: Tensor
    gather_indices: Tensor
    valid_positions: Tensor

    def __init__(self, width: int, channels: int, local: bool, geometry: str, pool: Pool) -> None:
        super().__init__()
        cells, used = sensor_cells(geometry, pool)
        self.register_buffer("sensor_ids", torch.from_numpy(faces.sensors("outer").copy()))
        self.register_buffer("gather_indices", torch.from_numpy(cells))
        self.register_buffer("valid_positions", torch.from_numpy(used))
        self.latent_proj = TokenCondition(width, IMAGE_FEATURES)
        self.local_encoder = ImageContext() if local else None
        self.attn_weight = nn.Sequential(nn.Linear(IMAGE_FEATURES, 1)) if local else None
        self.global_decoder = None if local else _layers_of_token(IMAGE_FEATURES)
        first, hidden = (2 * IMAGE_FEATURES, IMAGE_FEATURES) if local else (IMAGE_FEATURES, IMAGE_FEATURES // 2)
        self.pred_head = nn.Sequential(nn.Linear(first, hidden), nn.GELU(), nn.Linear(hidden, channels))

    def forward(self, image: Tensor, token: Tensor, mask: Tensor, blocked: Tensor) -> Tensor:
        """Return predictions (B, U, C) of the fine image (B, H, W, 2) and a token; the masks have no influence."""
        condition = self.latent_proj(token)
        if self.global_decoder is not None:
            same: Tensor = self.pred_head(self.global_decoder(condition))
            return same.unsqueeze(1).expand(-1, len(self.sensor_ids), -1)
        assert self.local_encoder is not None
        assert self.attn_weight is not None
        cells = self.local_encoder(image, condition).flatten(1, 2)
        logits = self.attn_weight(cells).squeeze(-1)[:, self.gather_indices]
        weights = logits.masked_fill(~self.valid_positions, BLOCKED).softmax(dim=-1)
        pooled = torch.einsum("bur,burf->buf", weights.to(cells.dtype), cells[:, self.gather_indices])
        told = condition.unsqueeze(1).expand(-1, pooled.shape[1], -1)
        predicted: Tensor = self.pred_head(torch.cat((pooled, told), dim=-1))
        return predicted


class HexHead(HexContext):
    """All nodes of a hexagonal face.

    Args:
        width: D.
        channels: C.
        local: Whether the head sees the face's readings, or its token only.
        geometry: Which neighbours count.
    """

    def __init__(self, width: int, channels: int, local: bool, geometry: str) -> None:
        super().__init__()
        self.add_edges(geometry)
        self.latent_proj = TokenCondition(width, HEX_FEATURES)
        if local:
            self.add_layers()
        self.global_decoder = None if local else _layers_of_token(HEX_FEATURES)
        self.pred_head = nn.Sequential(
            nn.LayerNorm(HEX_FEATURES),
            nn.Linear(HEX_FEATURES, HEX_FEATURES // 2),
            nn.GELU(),
            nn.Linear(HEX_FEATURES // 2, channels),
        )

    def forward(self, nodes: Tensor, token: Tensor, mask: Tensor, blocked: Tensor) -> Tensor:
        """Return predictions (B, N, C) of nodes (B, N, 2) and a token (B, D); the masks have no influence."""
        condition = self.latent_proj(token)
        if self.global_decoder is None:
            predicted: Tensor = self.pred_head(self.features(nodes, condition))
            return predicted
        same: Tensor = self.pred_head(self.global_decoder(condition))
        return same.unsqueeze(1).expand(-1, nodes.shape[1], -1)


def _image_of_token() -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(IMAGE_FEATURES, IMAGE_FEATURES, kernel_size=3, padding=1),
        nn.GroupNorm(NUM_GROUPS, IMAGE_FEATURES),
        nn.GELU(),
        nn.Conv2d(IMAGE_FEATURES, IMAGE_FEATURES, kernel_size=3, padding=1),
        nn.GELU(),
    )


def _layers_of_token(features: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, features), nn.GELU(), nn.Linear(features, features), nn.GELU())
