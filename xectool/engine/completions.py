"""Values that a shell offers when an option is completed; loads no torch, as a shell asks at every key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from xectool.config.key_page import all_keys
from xectool.config.keys import keys_of
from xectool.config.presets import PRESETS
from xectool.config.root import KINDS
from xectool.detector.platforms import GPUS
from xectool.explanations import library

FORMATS: Final = ("onnx", "pt2", "safetensors", "torchscript")
"""Formats of an export; their registry, which a test compares, loads torch."""


def kinds(begun: str) -> list[str]:
    """Return the kinds of network that begin so."""
    return _of(KINDS, begun)


def presets(begun: str) -> list[str]:
    """Return the presets that begin so."""
    return _of(PRESETS, begun)


def gpus(begun: str) -> list[str]:
    """Return the known GPUs that begin so."""
    return _of(GPUS, begun)


def formats(begun: str) -> list[str]:
    """Return the formats of an export that begin so."""
    return _of(FORMATS, begun)


def settings(begun: str) -> list[str]:
    """Return the keys that begin so, each with the sign after which its value stands."""
    sections = {dotted for kind in KINDS for dotted, key in keys_of(kind).items() if key.is_section}
    return _of((f"{key}=" for key in all_keys() if key not in sections), begun)


def topics(begun: str) -> list[str]:
    """Return what can be explained and begins so: topics first, then keys, then codes."""
    entries = sorted(library(), key=lambda entry: entry.is_code)
    names = [entry.name for entry in entries if not entry.is_code]
    return _of((*names, *all_keys(), *(entry.name for entry in entries if entry.is_code)), begun)


def _of(names: Iterable[str], begun: str) -> list[str]:
    return [name for name in names if name.lower().startswith(begun.lower())]
