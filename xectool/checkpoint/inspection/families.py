"""Which known family of networks uses the names of some weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_FAMILIES: Final = (
    ("timm vision transformer", ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight")),
    ("timm Swin transformer", ("patch_embed.proj.weight", "layers.0.blocks.0.attn.relative_position_bias_table")),
    ("timm ConvNeXt", ("stem.0.weight", "stages.0.blocks.0.conv_dw.weight")),
    ("ConvNeXt", ("downsample_layers.0.0.weight", "stages.0.0.dwconv.weight")),
    ("timm EfficientNet", ("conv_stem.weight", "blocks.0.0.conv_dw.weight")),
    ("timm MLP-Mixer", ("stem.proj.weight", "blocks.0.mlp_tokens.fc1.weight")),
    ("timm RegNet", ("stem.conv.weight", "s1.b1.conv1.conv.weight")),
    ("timm NFNet", ("stem.conv1.weight", "stages.0.0.conv1.weight")),
    ("timm ResNet with a deep stem", ("conv1.0.weight", "layer1.0.conv1.weight")),
    ("timm MaxViT", ("stem.conv1.weight", "stages.0.blocks.0.attn_grid.attn.qkv.weight")),
    ("torchvision or timm ResNet", ("conv1.weight", "layer1.0.conv1.weight")),
    ("torchvision vision transformer", ("conv_proj.weight", "encoder.layers.encoder_layer_0.ln_1.weight")),
    ("Hugging Face BERT", ("embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.query.weight")),
)


def family(weights: Mapping[str, Any]) -> str | None:
    """Return the family of networks that uses these names; names may share a prefix."""
    for title, marks in _FAMILIES:
        prefixes = [name.removesuffix(marks[0]) for name in weights if name.endswith(marks[0])]
        if any(all(prefix + mark in weights for mark in marks) for prefix in prefixes):
            return title
    return None
