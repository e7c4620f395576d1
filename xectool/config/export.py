"""What training writes besides checkpoints."""

from __future__ import annotations

from xectool.config.section import OptionalStr, Section, knob


class ExportConfig(Section):
    """Exports of the older system at the end of training."""

    onnx: OptionalStr = knob(None, "No effect, kept for older files: `xectool export CKPT` writes the ONNX file")
