"""Inpainting heads that predict hidden sensors only, each from the visible ones around it.

Axes: B events, D encoder width, C predicted channels, H, W image, P positions of a face, F features of a head,
M hidden positions of the whole batch, R most neighbours of a position.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from xectool.detector.faces import IntArray
from xectool.models.hidden_places import Places, at_hidden
from xectool.models.inpaint_context import HEX_FEATURES, IMAGE_FEATURES, HexContext, ImageContext, TokenCondition
from xectool.models.inpaint_faces import BLOCKED
from xectool.models.sensor_neighbours import box_neighbours, hex_neighbours


class NeighbourAttention(nn.Module):
    """Mix-in: attention of hidden positions over their neighbours; its parts belong to the head.

    The older system lets a position whose neighbours are all hidden look at padding, that is at position 0.
    """

    nbr_indices: Tensor
    nbr_counts: Tensor

    def add_neighbours(self, tables: tuple[IntArray, IntArray], older: bool) -> None:
        """Register neighbours and their number."""
        self.padding_logit = BLOCKED if older else -math.inf
        self.register_buffer("nbr_indices", torch.from_numpy(tables[0]))
        self.register_buffer("nbr_counts", torch.from_numpy(tables[1]))

    def add_attention(self, features: int, channels: int) -> None:
        """Register the layers."""
        self.attn_weight = nn.Linear(features, 1)
        self.masked_pred_head = nn.Sequential(
            nn.Linear(2 * features, features), nn.GELU(), nn.Linear(features, channels)
        )

    def predict(self, features: Tensor, condition: Tensor, mask: Tensor, blocked: Tensor) -> Tensor:
        """Return predictions (B, P, C) at masked positions, 0 elsewhere.

        Args:
            features: Shape (B, P, F).
            condition: Shape (B, F).
            mask: Positions to predict, bool (B, P).
            blocked: Positions that no attention may look at, bool (B, P).
        """

        def predict_at(places: Places) -> Tensor:
            event, position = places
            neighbours = self.nbr_indices[position]
            padding = torch.arange(neighbours.shape[1], device=mask.device) >= self.nbr_counts[position].unsqueeze(1)
            logits = self.attn_weight(features).squeeze(-1)[event.unsqueeze(1), neighbours]
            logits = logits.masked_fill(blocked[event.unsqueeze(1), neighbours], BLOCKED)
            weights = logits.masked_fill(padding, self.padding_logit).softmax(dim=-1)
            seen = torch.einsum("mr,mrf->mf", weights.to(features.dtype), features[event.unsqueeze(1), neighbours])
            predicted: Tensor = self.masked_pred_head(torch.cat((seen, condition[event]), dim=-1))
            return predicted

        return at_hidden(mask, predict_at)


class MaskedImageHead(NeighbourAttention):
    """Hidden cells of a rectangular face.

    Args:
        width: D.
        channels: C.
        size: H and W.
        geometry: ``compat`` repeats the older attention, padding included.
    """

    def __init__(self, width: int, channels: int, size: tuple[int, int], geometry: str) -> None:
        super().__init__()
        self.add_neighbours(box_neighbours(size), geometry == "compat")
        self.latent_proj = TokenCondition(width, IMAGE_FEATURES)
        self.local_encoder = ImageContext()
        self.add_attention(IMAGE_FEATURES, channels)

    def forward(self, image: Tensor, token: Tensor, mask: Tensor, blocked: Tensor) -> Tensor:
        """Return predictions (B, P, C) of an image (B, H, W, 2) and a token (B, D); see :meth:`predict`."""
        condition = self.latent_proj(token)
        features = self.local_encoder(image, condition).flatten(1, 2)
        return self.predict(features, condition, mask, blocked)


class MaskedHexHead(HexContext, NeighbourAttention):
    """Hidden nodes of a hexagonal face; arguments as for :class:`MaskedImageHead`."""

    def __init__(self, width: int, channels: int, geometry: str) -> None:
        super().__init__()
        self.add_edges(geometry)
        self.add_neighbours(hex_neighbours(geometry), geometry == "compat")
        self.latent_proj = TokenCondition(width, HEX_FEATURES)
        self.add_layers()
        self.add_attention(HEX_FEATURES, channels)

    def forward(self, nodes: Tensor, token: Tensor, mask: Tensor, blocked: Tensor) -> Tensor:
        """Return predictions (B, N, C) of nodes (B, N, 2) and a token (B, D); see :meth:`predict`."""
        condition = self.latent_proj(token)
        return self.predict(self.features(nodes, condition), condition, mask, blocked)
