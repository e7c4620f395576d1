"""Networks: raw sensor readings in, network units out; the normaliser is their first layer."""

from xectool.models.build import MODELS, build_model
from xectool.models.normalize import Normalizer
from xectool.models.regressor import Regressor

__all__ = ["MODELS", "Normalizer", "Regressor", "build_model"]
