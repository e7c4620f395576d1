"""The encoder: six faces (or seven) to one token each, mixed by a transformer.

Axes: B events, S sensors (4760), T tokens, D encoder width, C channels, H, W image, N hexagon nodes (73).

Parameter names and shapes, the order in which they are created and, with ``geometry: compat``, every number are those
of the older system. ``geometry: physical`` keeps the parameters and corrects what the faces show.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xectool.config.model import EncoderConfig
from xectool.detector import faces, hexgrid
from xectool.models.backbones import FaceBackbone, HexEncoder
from xectool.models.fusion import FusionLayer, FusionTransformer
from xectool.models.outer_grid import FaceImage, outer_grid

NUM_ATTENTION_HEADS = 8
TOKENS = {
    "finegrid": ("inner", "us", "ds", "outer_fine", "top", "bot"),
    "split": ("inner", "outer_coarse", "outer_center", "us", "ds", "top", "bot"),
}
"""Order of the tokens for each ``outer_mode``."""


class Encoder(nn.Module):
    """Normalised sensors to tokens (B, T, D).

    Args:
        settings: The ``model`` section.
        sentinels: Fill values of npho and time, for pooling the outer face.
        drop_path_rate: Stochastic depth of every block.
    """

    top_hex_indices: Tensor
    bottom_hex_indices: Tensor
    hex_edge_index: Tensor

    def __init__(
        self, settings: EncoderConfig, sentinels: tuple[float, float] = (-1.0, -1.0), drop_path_rate: float = 0.0
    ) -> None:
        super().__init__()
        self.geometry = settings.geometry
        self.token_names = TOKENS[settings.outer_mode]
        self.width = settings.encoder_dim
        self.outer = outer_grid(self.geometry, settings.outer_fine_pool, sentinels)
        sizes = self._register_maps()
        self.backbone = FaceBackbone(self.width // 32, sizes, self.geometry, drop_path_rate)
        self.hex_encoder = HexEncoder(self.width, self.geometry, drop_path_rate)
        layer = FusionLayer(
            self.width, NUM_ATTENTION_HEADS, settings.dim_feedforward or 4 * self.width, settings.dropout
        )
        self.fusion_transformer = FusionTransformer(layer, settings.num_fusion_layers)
        self.pos_embed = nn.Parameter(torch.zeros(1, len(self.token_names), self.width))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.register_load_state_dict_pre_hook(_refuse_other_geometry)  # type: ignore[no-untyped-call]  # torch's own

    def _register_maps(self) -> list[tuple[int, int]]:
        """Register the index map of every face and return the sizes of all images."""
        for name, face in (("top_hex_indices", "top"), ("bottom_hex_indices", "bottom")):
            self.register_buffer(name, torch.from_numpy(faces.index_map(face).copy()))
        self.register_buffer("hex_edge_index", torch.from_numpy(hexgrid.edge_index(self.geometry).copy()))
        sizes = [self.outer.shape] if "outer_fine" in self.token_names else []
        for name in ("inner", "us", "ds", "outer_coarse", "outer_center"):
            if name not in self.token_names:
                continue
            ids = faces.index_map(name, self.geometry)
            # All physical images have azimuth along the rows, so that the shared kernels see one orientation.
            ids = ids.T if name.startswith("outer") and self.geometry == "physical" else ids
            self.register_buffer(f"{name}_indices", torch.from_numpy(ids.copy()), persistent=False)
            sizes.append((ids.shape[0], ids.shape[1]))
        return sizes

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_names)

    def set_activation_checkpointing(self, mode: str) -> None:
        """Recompute the stages in the backward pass (``stages``) or keep their activations (``none``)."""
        self.backbone.recompute = self.hex_encoder.recompute = mode == "stages"

    def forward(self, x: Tensor, mask: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Return tokens (B, T, D).

        Args:
            x: Network units, shape (B, S, 2).
            mask: True or 1 where a sensor is hidden from the encoder, shape (B, S); None hides nothing.
            valid: Whether a reading is valid, bool (B, S, 2); None takes a reading equal to its sentinel for missing.
        """
        hidden = None if mask is None else mask.to(x.dtype)
        tokens = self._rectangular(x, hidden, valid) | self._hexagonal(x, hidden)
        stacked = torch.stack([tokens[name] for name in self.token_names], dim=1) + self.pos_embed
        mixed: Tensor = self.fusion_transformer(stacked)
        return mixed

    def face_image(self, name: str, x: Tensor, mask: Tensor | None = None, valid: Tensor | None = None) -> FaceImage:
        """Return the image of one rectangular face, by its token name; arguments as for :meth:`forward`."""
        if name == "outer_fine":
            image: FaceImage = self.outer(x, mask, valid)
            return image
        ids: Tensor = self.get_buffer(f"{name}_indices")
        return FaceImage(x[:, ids], None if mask is None else mask[:, ids])

    def _rectangular(self, x: Tensor, mask: Tensor | None, valid: Tensor | None) -> dict[str, Tensor]:
        """Return the tokens of the rectangular faces, the equal end faces in one pass."""
        images = {
            name: self.face_image(name, x, mask, valid) for name in self.token_names if name not in ("top", "bot")
        }
        ends = _joined([images.pop("us"), images.pop("ds")])
        upstream, downstream = self.backbone(*ends).reshape(2, x.shape[0], self.width)
        tokens: dict[str, Tensor] = {name: self.backbone(*image) for name, image in images.items()}
        return tokens | {"us": upstream, "ds": downstream}

    def _hexagonal(self, x: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        sides = [
            FaceImage(x[:, ids], None if mask is None else mask[:, ids])
            for ids in (self.top_hex_indices, self.bottom_hex_indices)
        ]
        top, bottom = self.hex_encoder(*_joined(sides)).reshape(2, x.shape[0], self.width)
        return {"top": top, "bot": bottom}


def _joined(images: list[FaceImage]) -> FaceImage:
    hidden = [image.hidden for image in images if image.hidden is not None]
    return FaceImage(torch.cat([image.values for image in images]), torch.cat(hidden) if hidden else None)


def _refuse_other_geometry(module: nn.Module, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
    """Report a state dict whose stored index maps are not this model's: its weights belong to another geometry."""
    errors = rest[4]
    for name in ("top_hex_indices", "bottom_hex_indices", "hex_edge_index"):
        stored = state.get(prefix + name)
        own = module.get_buffer(name)
        if stored is not None and not (stored.shape == own.shape and bool((stored.to(own.device) == own).all())):
            assert isinstance(errors, list)
            errors.append(f"'{prefix}{name}' is of another model.geometry than '{getattr(module, 'geometry', '')}'")
