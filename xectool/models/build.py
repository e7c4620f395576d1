"""Build the network that a configuration describes."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from xectool.config.root import InpainterConfig, MaeConfig, RegressorConfig, RunConfig
from xectool.models.inpainter import Inpainter
from xectool.models.mae import MaskedAutoencoder
from xectool.models.regressor import Regressor
from xectool.models.sensor_input import mask_policy
from xectool.registry import Registry

MODELS: Registry[Callable[[RunConfig], nn.Module]] = Registry("model kind", "xectool.models.build", "models")
"""Builders by ``kind``; each takes the whole configuration."""


@MODELS.register("regressor")
def build_regressor(cfg: RunConfig) -> Regressor:
    """Return the regressor of a configuration of that kind."""
    assert isinstance(cfg, RegressorConfig)
    model = Regressor(cfg.model, cfg.normalization, cfg.tasks.enabled())
    model.set_activation_checkpointing(cfg.training.activation_checkpointing)
    return model


@MODELS.register("mae")
def build_mae(cfg: RunConfig) -> MaskedAutoencoder:
    """Return the masked autoencoder of a configuration of that kind."""
    assert isinstance(cfg, MaeConfig)
    policy = mask_policy(cfg.model, cfg.normalization, cfg.training.time)
    model = MaskedAutoencoder(cfg.model, cfg.normalization, policy, cfg.training.auto_channel_weight)
    model.set_activation_checkpointing(cfg.training.activation_checkpointing)
    return model


@MODELS.register("inpainter")
def build_inpainter(cfg: RunConfig) -> Inpainter:
    """Return the inpainter of a configuration of that kind."""
    assert isinstance(cfg, InpainterConfig)
    settings = cfg.model
    policy = mask_policy(settings, cfg.normalization, cfg.training.time)
    model = Inpainter(settings, cfg.normalization, policy)
    model.set_activation_checkpointing(cfg.training.activation_checkpointing)
    return model


def build_model(cfg: RunConfig) -> nn.Module:
    """Return the network of a configuration, with fresh weights from torch's global generator.

    Args:
        cfg: A run configuration; its ``kind`` picks the network.

    Raises:
        UsageError: No network of this kind exists.
    """
    return MODELS[cfg.kind](cfg)
