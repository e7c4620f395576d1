"""Values by face and values by sensor: one is a reordering of the other.

Axes: B events, S sensors (4760), C channels, D encoder width, U outer sensors (234).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from xectool.models.encoder import Encoder

NUM_COARSE = 216
"""Outer sensors numbered before the end faces; the other 18 close the numbering."""


def by_sensor(faces: Mapping[str, Tensor]) -> Tensor:
    """Return values (B, S, C) in the order of the sensor ids.

    Args:
        faces: Values by face name, shape (B, sensors of the face, C): images row by row, outer by ascending id.
    """
    outer = faces["outer"]
    parts = (
        faces["inner"], outer[:, :NUM_COARSE], faces["us"], faces["ds"], faces["top"], faces["bot"],
        outer[:, NUM_COARSE:],
    )  # fmt: skip
    return torch.cat(parts, dim=1)


def face_tokens(encoder: Encoder, tokens: Tensor) -> dict[str, Tensor]:
    """Return the token (B, D) that describes each face, of all tokens (B, T, D).

    With the outer face in two parts, the older system takes the coarse part's token for it and never uses the other.
    """
    by_name = dict(zip(encoder.token_names, tokens.unbind(dim=1), strict=True))
    if "outer_fine" in by_name:
        outer = by_name["outer_fine"]
    elif encoder.geometry == "physical":
        outer = (by_name["outer_coarse"] + by_name["outer_center"]) / 2
    else:
        outer = by_name["outer_coarse"]
    return {"outer": outer} | {name: by_name[name] for name in ("inner", "us", "ds", "top", "bot")}
