"""The inpainter: what hidden or dead sensors would have read, from the sensors around them and the whole event.

Axes: B events, S sensors (4760), T tokens, D encoder width, C predicted channels, H, W image, N hexagon nodes (73).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xectool.config.model import InpainterModelConfig
from xectool.config.normalization import NormalizationConfig
from xectool.detector import faces
from xectool.detector.constants import DEAD_VALUE
from xectool.models.encoder import Encoder
from xectool.models.face_layout import NUM_COARSE, by_sensor, face_tokens
from xectool.models.inpaint_attention import CrossAttentionHead
from xectool.models.inpaint_context import ImageContext
from xectool.models.inpaint_faces import HexHead, ImageHead, OuterSensorHead
from xectool.models.inpaint_masked import MaskedHexHead, MaskedImageHead
from xectool.models.inpaint_prior import LightPrior, prior_kind, start_at_prior
from xectool.models.masking import MaskPolicy
from xectool.models.normalize import Normalizer
from xectool.models.sensor_input import HiddenEvent, SensorHider

IMAGE_FACES = ("inner", "us", "ds")
HEX_FACES = {"top": "top_hex_indices", "bot": "bottom_hex_indices"}


class Inpainter(nn.Module):
    """Normaliser, encoder, and one head a face or one head for all.

    Args:
        model: The ``model`` section.
        normalization: The ``normalization`` section.
        policy: How masks are drawn.

    Raises:
        DataFileError: ``model.sensor_positions_file`` cannot be used.
    """

    covered: Tensor

    def __init__(self, model: InpainterModelConfig, normalization: NormalizationConfig, policy: MaskPolicy) -> None:
        super().__init__()
        self.channels = tuple(model.predict_channels)
        self.normalizer = Normalizer(normalization)
        self.hider = SensorHider(self.normalizer, self.channels, model.geometry, policy)
        self.frozen = model.freeze_encoder
        self.masked_only = model.use_masked_attention
        self._register_maps(model.geometry)
        self.encoder = Encoder(model, self.hider.sentinels).requires_grad_(not self.frozen)
        # In two parts, the older system predicts the coarse outer face only.
        self.coarse_only = self.hider.older and model.outer_mode == "split" and model.head_type == "per_face"
        covered = torch.ones(faces.NUM_SENSORS, dtype=torch.bool)
        covered[faces.sensors("outer")[NUM_COARSE:].copy()] = not self.coarse_only
        self.register_buffer("covered", covered, persistent=False)
        if model.head_type == "cross_attention":
            self.cross_attn_head: CrossAttentionHead | None = CrossAttentionHead(
                model, self.encoder.token_names, corrects=prior_kind(model) != "none"
            )
        else:
            self.cross_attn_head = None
            self._add_face_heads(model)
        self.prior: LightPrior | None = None
        if prior_kind(model) != "none":
            self.prior = LightPrior(self.normalizer, self.channels, prior_kind(model))
            start_at_prior(self)

    def _register_maps(self, geometry: str) -> None:
        for face in IMAGE_FACES:
            self.register_buffer(f"{face}_idx", torch.from_numpy(faces.index_map(face).copy()))
        coarse = faces.index_map("outer_coarse", geometry)
        self.register_buffer("outer_coarse_idx", torch.from_numpy(coarse.copy()))
        for name, face in (("top_hex_indices", "top"), ("bottom_hex_indices", "bottom")):
            self.register_buffer(name, torch.from_numpy(faces.index_map(face).copy()))

    def _add_face_heads(self, model: InpainterModelConfig) -> None:
        width, num, geometry = model.encoder_dim, len(self.channels), model.geometry
        local, attends = model.use_local_context, model.use_masked_attention
        for face in IMAGE_FACES:
            ids = self.get_buffer(f"{face}_idx")
            size = (ids.shape[0], ids.shape[1])
            head = MaskedImageHead(width, num, size, geometry) if attends else ImageHead(width, num, local)
            self.add_module(f"head_{face}", head)
        if self.coarse_only:
            size = (self.get_buffer("outer_coarse_idx").shape[0], self.get_buffer("outer_coarse_idx").shape[1])
            head = MaskedImageHead(width, num, size, geometry) if attends else ImageHead(width, num, local)
            self.add_module("head_outer", head)
        else:
            outer = OuterSensorHead(width, num, local, geometry, model.outer_fine_pool)
            self.add_module("head_outer_sensor", outer)
        for face in HEX_FACES:
            hexes = MaskedHexHead(width, num, geometry) if attends else HexHead(width, num, local, geometry)
            self.add_module(f"head_{face}", hexes)

    def train(self, mode: bool = True) -> Inpainter:
        """Switch to training or evaluation; a frozen encoder stays in evaluation."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def forward(self, npho: Tensor, time: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Return predictions for hidden sensors and all that their loss needs.

        Args:
            npho: Photons, shape (B, S).
            time: Seconds, shape (B, S).
            mask: Sensors to hide, shape (B, S); None draws them with torch's global generator.

        Returns:
            ``sensors`` (B, S, C) in network units; ``x`` (B, S, 2), the readings in network units; and ``valid``
            (B, S, 2), ``maskable``, ``mask`` and ``hidden`` (B, S), bool, as in
            :class:`~xectool.models.sensor_input.HiddenEvent`.
        """
        x, valid = self.normalizer.normalize(npho, time)
        event = self.hider.apply(x, self.hider.draw(x, valid) if mask is None else mask, valid)
        return {"sensors": self.predict_event(event)} | event.training_facts()

    def fill(self, x: Tensor, mask: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return predictions (B, S, C) in network units.

        Heads that predict hidden sensors only leave the others 0.

        Args:
            x: Network units, shape (B, S, 2).
            mask: 1 or True where a sensor is hidden, shape (B, S).
            valid: Whether a reading is valid, bool (B, S, 2); None takes a reading equal to its sentinel for missing.
        """
        return self.predict_event(self.hider.apply(x, mask, valid))

    def inpaint(self, npho: Tensor, time: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the events with masked sensors replaced by what they would have read.

        Args:
            npho: Photons, shape (B, S).
            time: Seconds, shape (B, S).
            mask: Sensors to replace, such as dead channels, shape (B, S) or (S,); their readings are not looked at.

        Returns:
            ``npho`` (B, S) in photons and ``time`` (B, S) in seconds. A masked sensor's channel that the network does
            not predict becomes 1e10, "not available".
        """
        mask = mask.bool().expand_as(npho)
        x, valid = self.normalizer.normalize(npho, time)
        predicted = self.fill(x, mask, valid).to(npho.dtype)
        invert = {"npho": self.normalizer.inverse_npho, "time": self.normalizer.inverse_time}
        repaired: dict[str, Tensor] = {}
        for name, reading in (("npho", npho), ("time", time)):
            filled = torch.full_like(reading, DEAD_VALUE)
            if name in self.channels:
                value = invert[name](predicted[..., self.channels.index(name)])
                filled = torch.where(self.covered, value, filled)
            repaired[name] = torch.where(mask, filled, reading)
        return repaired

    def predict_event(self, event: HiddenEvent) -> Tensor:
        """Return predictions (B, S, C) in network units for a partly hidden event."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            tokens = self.encoder(event.shown, event.hidden, event.shown_valid)
        if self.prior is None:
            return self._correct(event, tokens, None)
        estimates: Tensor = self.prior(event)
        correction = self._correct(self.prior.fill(event, estimates), tokens, estimates)
        return correction + estimates * (event.mask & self.covered).unsqueeze(-1)

    def _correct(self, event: HiddenEvent, tokens: Tensor, estimates: Tensor | None) -> Tensor:
        """Return what the heads say, (B, S, C): the reading, or how far it is from an estimate."""
        if self.cross_attn_head is not None:
            everywhere: Tensor = self.cross_attn_head(event.shown, tokens, event.mask, event.hidden, estimates)
            return everywhere
        return self._predict_faces(event, tokens)

    def _predict_faces(self, event: HiddenEvent, tokens: Tensor) -> Tensor:
        of_face = face_tokens(self.encoder, tokens)
        blocked = event.mask if self.hider.older else event.hidden
        maps = {face: f"{face}_idx" for face in IMAGE_FACES} | HEX_FACES
        if self.coarse_only:
            maps["outer"] = "outer_coarse_idx"
        predicted: dict[str, Tensor] = {}
        for face, name in maps.items():
            ids = self.get_buffer(name)
            flat = ids.flatten()
            head = self.get_submodule(f"head_{face}")
            predicted[face] = head(event.shown[:, ids], of_face[face], event.mask[:, flat], blocked[:, flat])
        if self.coarse_only:
            missing = len(faces.sensors("outer")) - NUM_COARSE
            predicted["outer"] = nn.functional.pad(predicted["outer"], (0, 0, 0, missing))
        else:
            head = self.get_submodule("head_outer_sensor")
            image = self.encoder.outer(event.shown, None, event.shown_valid).values
            predicted["outer"] = head(image, of_face["outer"], event.mask, blocked)
        everywhere = by_sensor(predicted)
        # Beside heads that predict hidden sensors only, the outer head must not tell more than they do.
        return everywhere * event.mask.unsqueeze(-1) if self.masked_only else everywhere

    def set_activation_checkpointing(self, mode: str) -> None:
        """Recompute stages of encoder and heads in the backward pass (``stages``), or keep activations (``none``)."""
        self.encoder.set_activation_checkpointing(mode)
        for module in self.modules():
            if isinstance(module, ImageContext):
                module.recompute = mode == "stages"
