"""Imports every format, so that each registers itself."""

from __future__ import annotations

from xectool.export import onnx_file, pt2, safetensors_file, torchscript  # noqa: F401
