"""The masked autoencoder: hidden sensors predicted from the visible ones, to train an encoder without truth.

Axes: B events, S sensors (4760), T tokens, D encoder width, C predicted channels, H, W image, N hexagon nodes (73).
Source: fully convolutional masked autoencoder (Woo et al. 2023, arXiv:2301.00808): hidden cells are zeroed in every
block of the encoder, so nothing of them leaks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from xectool.config.model import CHANNEL_NAMES, MaeModelConfig
from xectool.config.normalization import NormalizationConfig
from xectool.detector import faces
from xectool.models.decoders import FaceDecoder, GraphFaceDecoder
from xectool.models.encoder import Encoder
from xectool.models.face_layout import NUM_COARSE, by_sensor, face_tokens
from xectool.models.masking import MaskPolicy
from xectool.models.normalize import Normalizer
from xectool.models.outer_grid import outer_grid
from xectool.models.outer_regions import Pool, cell_sensors, sensor_shares
from xectool.models.sensor_input import HiddenEvent, SensorHider

IMAGE_FACES = ("inner", "us", "ds", "outer")
HEX_FACES = ("top", "bot")


class MaskedAutoencoder(nn.Module):
    """Normaliser, encoder and one light decoder a face.

    The outer face is decoded as an image, from which :meth:`by_sensor` reads the sensors: the fine one whatever the
    encoder pools, because pooled cells mix the PMTs of the centre; in the older geometry the encoder's own.

    Args:
        model: The ``model`` section.
        normalization: The ``normalization`` section.
        policy: How masks are drawn.
        auto_channel_weight: Whether the losses of the channels are weighted by learnt variances.
    """

    outer_shares: Tensor
    outer_cells: Tensor
    covered: Tensor
    channel_log_vars: nn.Parameter | None

    def __init__(
        self,
        model: MaeModelConfig,
        normalization: NormalizationConfig,
        policy: MaskPolicy,
        auto_channel_weight: bool = False,
    ) -> None:
        super().__init__()
        self.channels = tuple(model.predict_channels)
        self.channel_indices = tuple(CHANNEL_NAMES.index(name) for name in self.channels)
        self.normalizer = Normalizer(normalization)
        self.hider = SensorHider(self.normalizer, self.channels, model.geometry, policy)
        width, depth, num = model.encoder_dim, model.decoder_dim, len(self.channels)
        log_vars = nn.Parameter(torch.zeros(num)) if auto_channel_weight else None
        self.register_parameter("channel_log_vars", log_vars)
        self.encoder = Encoder(model, self.hider.sentinels)
        self.coarse_only = model.geometry == "compat" and model.outer_mode == "split"
        pool = model.outer_fine_pool if model.geometry == "compat" else None
        self.outer_image = outer_grid(model.geometry, pool, self.hider.sentinels)
        for face in IMAGE_FACES:
            self.add_module(f"dec_{face}", FaceDecoder(width, depth, num, self._image_size(face)))
        for face in HEX_FACES:
            self.add_module(f"dec_{face}", GraphFaceDecoder(width, depth, num, model.geometry))
        self._register_outer(model.geometry, pool)

    def _register_outer(self, geometry: str, pool: Pool) -> None:
        covered = torch.ones(faces.NUM_SENSORS, dtype=torch.bool)
        if self.coarse_only:
            covered[faces.sensors("outer")[NUM_COARSE:].copy()] = False
            cells = faces.index_map("outer_coarse", geometry).reshape(-1, 1)
            shares = torch.zeros(0, len(self.channels), 0)
        else:
            cells = cell_sensors(geometry, pool)
            npho = torch.from_numpy(sensor_shares(geometry, pool))
            time = npho / npho.sum(dim=1, keepdim=True)
            shares = torch.stack([npho if name == "npho" else time for name in self.channels], dim=1)
        self.register_buffer("outer_shares", shares.to(torch.get_default_dtype()), persistent=False)
        self.register_buffer("outer_cells", torch.from_numpy(cells.copy()), persistent=False)
        self.register_buffer("covered", covered, persistent=False)

    def forward(self, npho: Tensor, time: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Return the reconstruction of a partly hidden event and all that its loss needs.

        Args:
            npho: Photons, shape (B, S).
            time: Seconds, shape (B, S).
            mask: Sensors to hide, shape (B, S); None draws them with torch's global generator.

        Returns:
            The faces of :meth:`decode`; ``sensors`` (B, S, C), the same by sensor; ``x`` (B, S, 2) in network units;
            ``valid`` (B, S, 2), ``maskable``, ``mask`` and ``hidden`` (B, S), bool, as in
            :class:`~xectool.models.sensor_input.HiddenEvent`; and ``channel_log_vars`` (C,) where they are learnt.
        """
        x, valid = self.normalizer.normalize(npho, time)
        event = self.hider.apply(x, self.hider.draw(x, valid) if mask is None else mask, valid)
        images = self.decode(self.tokens(event))
        outputs = images | {"sensors": self.by_sensor(images)} | event.training_facts()
        if self.channel_log_vars is not None:
            outputs["channel_log_vars"] = self.channel_log_vars
        return outputs

    def reconstruct(
        self, x: Tensor, mask: Tensor, valid: Tensor | None = None, zero_hidden: bool = True
    ) -> dict[str, Tensor]:
        """Return the faces of :meth:`decode` for a given mask.

        Args:
            x: Network units, shape (B, S, 2).
            mask: 1 or True where a sensor is hidden, shape (B, S).
            valid: Whether a reading is valid, bool (B, S, 2); None takes a reading equal to its sentinel for missing.
            zero_hidden: Whether the encoder leaves hidden sensors out; without, it sees their sentinels.
        """
        return self.decode(self.tokens(self.hider.apply(x, mask, valid), zero_hidden))

    def tokens(self, event: HiddenEvent, zero_hidden: bool = True) -> Tensor:
        """Return the encoder's tokens (B, T, D) of what is shown of an event."""
        tokens: Tensor = self.encoder(event.shown, event.hidden if zero_hidden else None, event.shown_valid)
        return tokens

    def decode(self, tokens: Tensor) -> dict[str, Tensor]:
        """Return inner, us, ds, outer (B, C, H, W) and top, bot (B, C, N) in network units, of tokens (B, T, D)."""
        of_face = face_tokens(self.encoder, tokens)
        images: dict[str, Tensor] = {}
        for face in IMAGE_FACES + HEX_FACES:
            images[face] = self.get_submodule(f"dec_{face}")(of_face[face])
        return images

    def by_sensor(self, images: Mapping[str, Tensor]) -> Tensor:
        """Return the predictions by sensor, (B, S, C), of what :meth:`decode` returns.

        An outer sensor is read from its cells: their mean (physical), or in the older geometry their sum for npho and
        their mean for the time. Sensors outside ``covered`` have no prediction and are 0.
        """
        flat = {face: images[face].flatten(2).transpose(1, 2) for face in IMAGE_FACES + HEX_FACES}
        if self.coarse_only:
            flat["outer"] = nn.functional.pad(flat["outer"], (0, 0, 0, len(faces.sensors("outer")) - NUM_COARSE))
        else:
            with torch.autocast(flat["outer"].device.type, enabled=False):
                outer = flat["outer"].to(self.outer_shares.dtype)
                flat["outer"] = torch.einsum("bgc,ucg->buc", outer, self.outer_shares)
        return by_sensor(flat)

    def face_targets(self, x: Tensor, valid: Tensor | None = None) -> dict[str, Tensor]:
        """Return what :meth:`decode` should have returned for x (B, S, 2) with validity, bool (B, S, 2)."""
        targets = {face: self._image(face, x, valid)[..., self.channel_indices] for face in IMAGE_FACES}
        nodes = {"top": self.encoder.top_hex_indices, "bot": self.encoder.bottom_hex_indices}
        targets |= {face: x[:, ids][..., self.channel_indices] for face, ids in nodes.items()}
        return {face: target.movedim(-1, 1) for face, target in targets.items()}

    def face_values(self, values: Tensor) -> dict[str, Tensor]:
        """Return one number a sensor (B, S), a mask or a weight, as images (B, H, W) and nodes (B, N).

        A cell that shows several outer sensors gets their largest number.
        """
        shown = {face: values[:, self.encoder.get_buffer(f"{face}_indices")] for face in ("inner", "us", "ds")}
        shown["outer"] = values[:, self.outer_cells].amax(dim=-1).reshape(-1, *self._image_size("outer"))
        nodes = {"top": self.encoder.top_hex_indices, "bot": self.encoder.bottom_hex_indices}
        return shown | {face: values[:, ids] for face, ids in nodes.items()}

    def set_activation_checkpointing(self, mode: str) -> None:
        """Recompute the encoder's stages in the backward pass (``stages``) or keep their activations (``none``)."""
        self.encoder.set_activation_checkpointing(mode)

    def _image(self, face: str, x: Tensor, valid: Tensor | None) -> Tensor:
        if face != "outer":
            return self.encoder.face_image(face, x).values
        if self.coarse_only:
            return self.encoder.face_image("outer_coarse", x).values
        image: Tensor = self.outer_image(x, None, valid).values
        return image

    def _image_size(self, face: str) -> tuple[int, int]:
        if face == "outer" and not self.coarse_only:
            return self.outer_image.shape[0], self.outer_image.shape[1]
        ids = self.encoder.get_buffer("outer_coarse_indices" if face == "outer" else f"{face}_indices")
        return ids.shape[0], ids.shape[1]
