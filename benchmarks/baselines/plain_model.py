"""The default regressor in plain PyTorch, as the layers are usually written: images channels first.

The parameters have the names and shapes of `xectool.models.regressor.Regressor`, so weights can be copied over.

Axes: B events, S sensors (4760), D encoder width, C channels, H, W image, N hexagon nodes (73).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from xectool.config.tasks import TASK_NAMES, TASK_WIDTHS
from xectool.detector import faces, hexgrid


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of images (B, C, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, C, H, W), normalised."""
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ResponseNorm(nn.Module):
    """Global response normalisation over the axes between events and channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, ..., C), normalised."""
        response = torch.norm(x, p=2, dim=tuple(range(1, x.ndim - 1)), keepdim=True)
        return self.gamma * (x * (response / (response.mean(dim=-1, keepdim=True) + 1e-6))) + self.beta + x


class ChannelMlp(nn.Module):
    """Norm, expansion, activation, response normalisation and projection of both kinds of blocks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.grn = ResponseNorm(4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)

    def mix(self, x: Tensor) -> Tensor:
        """Return x (B, ..., C), mixed over its channels."""
        mixed: Tensor = self.pwconv2(self.grn(F.gelu(self.pwconv1(self.norm(x)))))
        return mixed


class ImageBlock(ChannelMlp):
    """ConvNeXt-V2 block on images (B, C, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.dwconv = nn.Conv2d(channels, channels, kernel_size=7, padding=3, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output (B, C, H, W)."""
        return x + self.mix(self.dwconv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ImageNetwork(nn.Module):
    """Images of the rectangular faces to tokens."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, channels, kernel_size=4, padding=1), ChannelNorm(channels))
        self.stage1 = nn.Sequential(*(ImageBlock(channels) for _ in range(2)))
        self.downsample = nn.Sequential(
            ChannelNorm(channels), nn.Conv2d(channels, 2 * channels, kernel_size=2, stride=2)
        )
        self.stage2 = nn.Sequential(*(ImageBlock(2 * channels) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (B, D) of images (B, 2, H, W)."""
        x = self.stage2(self.downsample(self.stage1(self.stem(x))))
        return F.interpolate(x, size=(4, 4), mode="bilinear", align_corners=False).flatten(1)


class HexConv(nn.Module):
    """Depthwise convolution over the edges of a graph, one weight for each type of edge."""

    edges: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 7, channels) * 0.02)
        self.bias = nn.Parameter(torch.zeros(1, 1, channels))
        self.register_buffer("edges", torch.from_numpy(hexgrid.edge_index("compat").copy()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return sums over the neighbours of x (B, N, C)."""
        source, destination, kind = self.edges
        messages = x[:, source] * self.weight[:, kind]
        places = destination.view(1, -1, 1).expand_as(messages)
        return torch.zeros_like(x, dtype=messages.dtype).scatter_add(1, places, messages) + self.bias


class HexBlock(ChannelMlp):
    """ConvNeXt-V2 block on hexagonal faces."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.spatial_conv = HexConv(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output (B, N, C)."""
        return x + self.mix(self.spatial_conv(x))


class HexNetwork(nn.Module):
    """Nodes of a hexagonal face to a token."""

    def __init__(self, width: int, channels: int = 96) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(2, channels), nn.LayerNorm(channels), nn.GELU())
        self.layers = nn.Sequential(*(HexBlock(channels) for _ in range(4)))
        self.proj = nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (B, D) of nodes (B, N, 2)."""
        token: Tensor = self.proj(self.layers(self.stem(x)).mean(dim=1))
        return token


class PlainEncoder(nn.Module):
    """Readings to tokens, face by face."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        for name in ("inner", "us", "ds", "outer_coarse", "outer_center", "top", "bottom"):
            ids = faces.index_map(name, "compat")
            self.register_buffer(f"{name}_ids", torch.from_numpy(ids.copy()), persistent=False)
        self.backbone = ImageNetwork(width // 32)
        self.hex_encoder = HexNetwork(width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=dropout, activation="gelu", batch_first=True)
        self.fusion_transformer = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pos_embed = nn.Parameter(torch.zeros(1, 6, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (B, 6, D) of normalised readings x (B, S, 2)."""
        inner, us, ds = (self.backbone(self._image(x, name)) for name in ("inner", "us", "ds"))
        outer = self.backbone(self._outer(x))
        top, bottom = (self.hex_encoder(x[:, self.get_buffer(f"{name}_ids")]) for name in ("top", "bottom"))
        tokens = torch.stack([inner, us, ds, outer, top, bottom], dim=1) + self.pos_embed
        mixed: Tensor = self.fusion_transformer(tokens)
        return mixed

    def _image(self, x: Tensor, name: str) -> Tensor:
        return x[:, self.get_buffer(f"{name}_ids")].permute(0, 3, 1, 2)

    def _outer(self, x: Tensor) -> Tensor:
        """Return the outer image (B, 2, 45, 72), its finer centre put into the repeated coarse cells."""
        coarse = self._image(x, "outer_coarse").repeat_interleave(5, dim=2).repeat_interleave(3, dim=3)
        center = self._image(x, "outer_center").repeat_interleave(3, dim=2).repeat_interleave(2, dim=3)
        coarse = torch.cat([coarse[:, :1] / 15, coarse[:, 1:]], dim=1)
        coarse[:, :, 15:30, 30:42] = torch.cat([center[:, :1] / 6, center[:, 1:]], dim=1)
        return coarse


class PlainRegressor(nn.Module):
    """Readings to the outputs of some tasks; as in the older system every head exists, used or not."""

    def __init__(self, width: int, tasks: tuple[str, ...], hidden: int = 256, dropout: float = 0.1) -> None:
        super().__init__()
        self.tasks = tasks
        self.backbone = PlainEncoder(width, dropout)
        self.heads = nn.ModuleDict(
            {
                name: nn.Sequential(
                    nn.Linear(6 * width, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Dropout(2 * dropout),
                    nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, TASK_WIDTHS[name]),
                )
                for name in TASK_NAMES
            }
        )  # fmt: skip

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return outputs by task of normalised readings x (B, S, 2)."""
        latent = self.backbone(x).flatten(1)
        return {name: self.heads[name](latent) for name in self.tasks}
