"""The transformer that mixes the tokens of the faces.

Parameters, their names and their first values are those of ``torch.nn.TransformerEncoder`` (post-norm, GELU); its
projections go through :mod:`xectool.models.products`, in training and in evaluation alike.

Axes: B events, T tokens, D width, H attention heads.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xectool.models.products import PositionLinear, linear


class TokenAttention(nn.Module):
    """Self-attention over all tokens.

    Args:
        width: D.
        num_heads: H.
        dropout: Of the attention weights.
    """

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = PositionLinear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, T, D), mixed over its tokens."""
        projected = linear(x, self.in_proj_weight, self.in_proj_bias)
        heads = (*x.shape[:2], self.num_heads, x.shape[-1] // self.num_heads)
        query, key, value = (part.reshape(heads).transpose(1, 2) for part in projected.chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return out


class FusionLayer(nn.Module):
    """One layer: attention, then two linear layers, each around a residual and normalised afterwards.

    Args:
        width: D.
        num_heads: H.
        feedforward: Hidden width of the linear layers.
        dropout: Of attention weights and branches.
    """

    def __init__(self, width: int, num_heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = TokenAttention(width, num_heads, dropout)
        self.linear1 = PositionLinear(width, feedforward)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = PositionLinear(feedforward, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (B, T, D) of tokens (B, T, D)."""
        x = self.norm1(x + self.dropout1(self.self_attn(x)))
        branch = self.linear2(self.dropout(F.gelu(self.linear1(x))))
        out: Tensor = self.norm2(x + self.dropout2(branch))
        return out


class FusionTransformer(nn.Module):
    """Layers that start from the same weights.

    Args:
        layer: The first one; the others are copies.
        num_layers: How many in all.
    """

    def __init__(self, layer: FusionLayer, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (B, T, D) of tokens (B, T, D)."""
        for layer in self.layers:
            x = layer(x)
        return x
