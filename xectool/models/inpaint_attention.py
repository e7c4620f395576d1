"""The inpainting head for all faces at once: each hidden sensor asks its nearest sensors and the tokens.

Axes: B events, S sensors (4760), T tokens, D encoder width, C predicted channels, K nearest sensors, M hidden sensors
of the whole batch, Q width of a query, A width of the local and L of the token attention, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xectool.config.model import InpainterModelConfig
from xectool.detector import faces
from xectool.models.hidden_places import Places, at_hidden
from xectool.models.inpaint_faces import BLOCKED
from xectool.models.sensor_neighbours import nearest_sensors, position_waves, sensor_positions

NUM_HEADS = 4
FACE_WIDTH = 32
NUM_READINGS = 2
TOKEN_FACES = {"outer_fine": "outer", "outer_coarse": "outer", "outer_center": "outer"}


class CrossAttentionHead(nn.Module):
    """Predicts hidden sensors only; nothing is computed for the others.

    Neighbours and positions are part of the state dict: a loaded network keeps those it was trained with.

    Args:
        model: The ``model`` section.
        token_names: Order of the encoder's tokens.
        corrects: Whether it is told an estimate of what it predicts.

    Raises:
        DataFileError: ``sensor_positions_file`` cannot be used.
    """

    sensor_positions: Tensor
    knn_indices: Tensor
    face_ids: Tensor
    pos_embed: Tensor
    token_face_ids_map: Tensor

    def __init__(self, model: InpainterModelConfig, token_names: Sequence[str], corrects: bool = False) -> None:
        super().__init__()
        self._register_places(model, token_names)
        query = model.cross_attn_pos_dim + FACE_WIDTH
        local, latent = model.cross_attn_hidden, model.cross_attn_latent_dim
        self.face_embedding = nn.Embedding(len(faces.FACES), FACE_WIDTH)
        self.neighbor_proj = nn.Linear(NUM_READINGS + query, local)
        self.query_proj_local = nn.Linear(query, local)
        self.latent_proj = nn.Linear(model.encoder_dim, latent)
        self.latent_face_proj = nn.Linear(FACE_WIDTH, latent)
        self.query_proj_global = nn.Linear(query, latent)
        self.k_proj = nn.Linear(latent, latent)
        self.v_proj = nn.Linear(latent, latent)
        self.global_out_proj = nn.Linear(latent, latent)
        self.prior_proj = nn.Linear(len(model.predict_channels), local + latent) if corrects else None
        self.pred_mlp = nn.Sequential(
            nn.LayerNorm(local + latent),
            nn.Linear(local + latent, local),
            nn.GELU(),
            nn.Linear(local, len(model.predict_channels)),
        )

    def _register_places(self, model: InpainterModelConfig, token_names: Sequence[str]) -> None:
        positions = sensor_positions(model.sensor_positions_file)
        token_faces = [faces.FACES.index(TOKEN_FACES.get(name, name)) for name in token_names]
        places = torch.from_numpy(positions.astype(np.float32))
        waves = position_waves(places, model.cross_attn_pos_dim)
        self.register_buffer("sensor_positions", places)
        self.register_buffer("knn_indices", torch.from_numpy(nearest_sensors(positions, model.cross_attn_k)))
        self.register_buffer("face_ids", torch.from_numpy(faces.face_ids().copy()))
        self.register_buffer("pos_embed", waves)
        self.register_buffer("token_face_ids_map", torch.tensor(token_faces))

    def forward(
        self, shown: Tensor, tokens: Tensor, mask: Tensor, blocked: Tensor, estimates: Tensor | None = None
    ) -> Tensor:
        """Return predictions (B, S, C) at masked sensors, 0 elsewhere.

        Args:
            shown: Readings with sentinels at hidden sensors, shape (B, S, 2).
            tokens: Shape (B, T, D).
            mask: Sensors to predict, bool (B, S).
            blocked: Sensors that no attention may look at, bool (B, S).
            estimates: What hidden sensors are expected to read, shape (B, S, C), for a head that corrects.
        """
        places = torch.cat((self.pos_embed, self.face_embedding(self.face_ids)), dim=-1)

        def predict(where: Places) -> Tensor:
            around = self._ask_neighbours(shown, blocked, places, where)
            overall = self._ask_tokens(tokens, places, where)
            known = torch.cat((around, overall), dim=-1)
            if self.prior_proj is not None and estimates is not None:
                known = known + self.prior_proj(estimates[where])
            predicted: Tensor = self.pred_mlp(known)
            return predicted

        return at_hidden(mask, predict)

    def _ask_neighbours(self, shown: Tensor, blocked: Tensor, places: Tensor, where: Places) -> Tensor:
        """Return what the nearest sensors say, (M, A); ``places`` (S, Q) says where each sensor is."""
        event, sensor = where
        neighbours = self.knn_indices[sensor]
        rows = event.unsqueeze(1)
        weight = self.neighbor_proj.weight
        # The part that depends on the place alone is the same in every event.
        of_place = F.linear(places, weight[:, NUM_READINGS:], self.neighbor_proj.bias)
        features = F.linear(shown[rows, neighbours], weight[:, :NUM_READINGS]) + of_place[neighbours]
        query = self.query_proj_local(places)[sensor]
        logits = torch.einsum("mka,ma->mk", features, query) * query.shape[-1] ** -0.5
        weights = logits.masked_fill(blocked[rows, neighbours], BLOCKED).softmax(dim=-1)
        return torch.einsum("mk,mka->ma", weights.to(features.dtype), features)

    def _ask_tokens(self, tokens: Tensor, places: Tensor, where: Places) -> Tensor:
        """Return what the tokens (B, T, D) say, (M, L)."""
        event, sensor = where
        face = self.latent_face_proj(self.face_embedding(self.token_face_ids_map))
        latent = self.latent_proj(tokens) + face
        split = (NUM_HEADS, latent.shape[-1] // NUM_HEADS)
        keys, values = (proj(latent).unflatten(-1, split)[event] for proj in (self.k_proj, self.v_proj))
        query = self.query_proj_global(places)[sensor].unflatten(-1, split)
        weights = (torch.einsum("mhd,mthd->mht", query, keys) * split[1] ** -0.5).softmax(dim=-1)
        heads = torch.einsum("mht,mthd->mhd", weights.to(values.dtype), values)
        answer: Tensor = self.global_out_proj(heads.flatten(1))
        return answer
