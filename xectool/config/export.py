"""What training writes besides checkpoints."""

from __future__ import annotations

from xectool.config.section import OptionalStr, Section, knob


class ExportConfig(Section):
    """Exports at the end of training."""

    onnx: OptionalStr = knob(None, "File name of an ONNX export in the run directory; null for none")
