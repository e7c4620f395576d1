"""Sizes and variants of the networks, one section a kind."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from xectool.config.mask_patterns import MaskPatternsConfig
from xectool.config.section import Bool, Float, Int, OptionalStr, Section, describe, knob, read_float, refuse, section

FACE_NAMES = ("inner", "us", "ds", "outer", "top", "bot")
CHANNEL_NAMES = ("npho", "time")
FINE_GRID = (45, 72)
NUM_HEADS = 8


def _read_pool(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(type(item) is int for item in value):
        raise refuse(f"expected null or [h, w] with two integers that divide 45 x 72, got {describe(value)}")
    if not all(1 <= item <= size // 3 for item, size in zip(value, FINE_GRID, strict=True)):
        raise refuse(f"[h, w] must lie within 15 x 24, so that 3 x 3 cells are left to convolve; got {list(value)}")
    return tuple(value)


def _read_ratio(value: object) -> float:
    ratio = read_float(value)
    if 0 < ratio < 1:
        return ratio
    hint = f"; 0.65 means 65 %: did you mean {ratio / 100:g}?" if 1 < ratio < 100 else "; 0.65 means 65 %"
    raise refuse(f"mask_ratio must lie between 0 and 1, got {ratio:g}{hint}")


def _read_ratios(value: object) -> object:
    if not isinstance(value, dict):
        return _read_ratio(value)
    for face, ratio in value.items():
        if face not in FACE_NAMES:
            raise refuse(f"unknown face '{face}' in mask_ratio; one of {', '.join(FACE_NAMES)}")
        if read_float(ratio) != 0:
            _read_ratio(ratio)
    ratios = {face: read_float(ratio) for face, ratio in value.items()}
    if not any(ratios.values()):
        raise refuse("mask_ratio hides nothing: give at least one face a ratio between 0 and 1")
    return ratios


def _read_channels(value: object) -> object:
    if not isinstance(value, list | tuple) or not value:
        raise refuse(f"predict_channels must not be empty, one or both of npho, time; got {describe(value)}")
    for name in value:
        if name not in CHANNEL_NAMES:
            raise refuse(f"unknown channel {name!r} in predict_channels; one or both of npho, time")
    if len(set(value)) != len(value):
        raise refuse(f"predict_channels names a channel twice: {list(value)}")
    return tuple(value)


Pool = Annotated[tuple[int, int] | None, BeforeValidator(_read_pool)]
MaskRatio = Annotated[float, BeforeValidator(_read_ratio)]
FaceMaskRatio = Annotated[float | dict[str, float], BeforeValidator(_read_ratios)]
Channels = Annotated[tuple[Literal["npho", "time"], ...], BeforeValidator(_read_channels)]


class EncoderConfig(Section):
    """What all networks share: the encoder of the six faces."""

    geometry: Literal["physical", "compat"] = knob(
        "physical", "Index maps: physical is right, compat reproduces older checkpoints bit for bit", code="CFG-05"
    )
    outer_mode: Literal["finegrid", "split"] = knob(
        "finegrid", "Outer face as one 45 x 72 grid, or as coarse grid and centre", code="CFG-05"
    )
    outer_fine_pool: Pool = knob(None, "Pooling [h, w] of the 45 x 72 outer grid; null for none", "cells", "CFG-43")
    encoder_dim: Int = knob(1024, "Width D of a token; a multiple of 32", "1", "CFG-44", ge=32, le=16_384)
    dim_feedforward: Int | None = knob(None, "Width inside the fusion transformer; null: 4 D", "1", gt=0, le=65_536)
    num_fusion_layers: Int = knob(2, "Layers of the fusion transformer", "1", gt=0, le=48)
    dropout: Float = knob(0.1, "Dropout of the fusion transformer", "1", "CFG-44", ge=0, lt=1)


class RegressorModelConfig(EncoderConfig):
    """The regressor: encoder and one head a task."""

    hidden_dim: Int = knob(256, "Width inside each head", "1", gt=0, le=16_384)
    head_dropout: Float = knob(0.2, "Dropout inside each head", "1", "CFG-44", ge=0, lt=1)
    drop_path_rate: Float = knob(0.0, "Chance to skip a residual branch, per event", "1", "CFG-44", ge=0, lt=1)


class MaeModelConfig(EncoderConfig):
    """The masked autoencoder: encoder and light decoders."""

    mask_ratio: MaskRatio = knob(0.6, "Share of the valid sensors that is hidden; 0.6 means 60 %", "1", "CFG-12")
    mask_npho_flat: Bool = knob(False, "Choose hidden sensors evenly in ln(npho)")
    mask_patterns: MaskPatternsConfig = section(MaskPatternsConfig, "Hide patterns of dead channels instead")
    predict_channels: Channels = knob(("npho", "time"), "Channels that are reconstructed", code="CFG-14")
    decoder_dim: Int = knob(128, "Width of the decoders", "1", ge=2, le=4096)


class InpainterModelConfig(EncoderConfig):
    """The inpainter: encoder and a head that fills dead channels."""

    mask_ratio: FaceMaskRatio = knob(
        0.05, "Share of valid sensors hidden in training: one number, or one a face", "1", "CFG-12"
    )
    mask_npho_flat: Bool = knob(False, "Choose hidden sensors evenly in ln(npho)")
    mask_patterns: MaskPatternsConfig = section(MaskPatternsConfig, "Hide patterns of dead channels instead")
    predict_channels: Channels = knob(("npho",), "Channels that are filled", code="CFG-14")
    freeze_encoder: Bool = knob(True, "Keep the pre-trained encoder fixed")
    use_local_context: Bool = knob(True, "Give the heads the neighbouring sensors")
    use_masked_attention: Bool = knob(False, "Predict hidden sensors by attention over their neighbours")
    prior: Literal["auto", "solid_angle", "neighbours", "none"] = knob(
        "auto",
        "Estimate the heads correct; auto: solid_angle, none with geometry compat or without local context",
        code="CFG-05",
    )
    head_type: Literal["per_face", "cross_attention"] = knob("per_face", "Kind of head", code="CFG-05")
    sensor_positions_file: OptionalStr = knob(
        None, "Sensor positions for cross_attention; null: the built-in ones", code="CFG-66"
    )
    cross_attn_k: Int = knob(16, "Neighbours a query looks at", "sensors", gt=0, le=4759)
    cross_attn_hidden: Int = knob(64, "Width of the local attention", "1", gt=0, le=4096)
    cross_attn_latent_dim: Int = knob(128, "Width of the latent attention; a multiple of 4", "1", gt=0, le=4096)
    cross_attn_pos_dim: Int = knob(96, "Width of the position encoding; a multiple of 6", "1", gt=0, le=4096)
