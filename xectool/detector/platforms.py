"""Known GPUs and the memory that their driver reports.

The number in a marketing name is not the memory a program gets: "GH200 480GB" names the host's memory. Totals are what
PyTorch prints as "total capacity" in its out-of-memory messages of these cards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from xectool.errors import UsageError, did_you_mean, nearest

_GIB: Final = 2**30
_UNITS: Final = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": _GIB, "tib": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"^(\d+(?:\.\d+)?)\s*([kmgt]?i?b)$", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """A card.

    Attributes:
        name: As given to ``--gpu``.
        total_bytes: Memory the driver reports.
        has_bf16: Whether it computes in bfloat16.
    """

    name: str
    total_bytes: int
    has_bf16: bool = True


def _gpu(name: str, total_gib: float, has_bf16: bool = True) -> tuple[str, Gpu]:
    return name, Gpu(name, round(total_gib * _GIB), has_bf16)


GPUS: Final = dict(
    (
        _gpu("t4-16gb", 14.75, has_bf16=False),
        _gpu("v100-16gb", 15.77, has_bf16=False),
        _gpu("v100-32gb", 31.73, has_bf16=False),
        _gpu("a30-24gb", 23.5),
        _gpu("rtx3090-24gb", 23.68),
        _gpu("rtx4090-24gb", 23.64),
        _gpu("a100-40gb", 39.39),
        _gpu("l40s-48gb", 44.4),
        _gpu("a100-80gb", 79.15),
        _gpu("h100-80gb", 79.11),
        _gpu("gh200-96gb", 94.5),
        _gpu("h200-141gb", 139.8),
    )
)
"""Cards by name."""


def find_gpu(text: str) -> Gpu:
    """Return a card by its name, or one of a given size.

    Args:
        text: ``a100-40gb``, the name its driver gives (``NVIDIA A100-SXM4-40GB``), or a size such as ``40GB`` or
            ``36GiB``. Of a model that comes with several sizes (``a100``) it is the smallest, as its name then says:
            what fits there fits the others.

    Raises:
        UsageError: It is neither.
    """
    wanted = text.strip().lower()
    if wanted in GPUS:
        return GPUS[wanted]
    size = _SIZE.match(wanted)
    if size and float(size[1]) > 0:
        return Gpu(text.strip(), round(float(size[1]) * _UNITS[size[2].lower()]))
    if card := _of_driver_name(wanted):
        return card
    close = nearest(wanted, GPUS, count=1)
    raise UsageError(
        f"unknown GPU '{text}'; {did_you_mean(wanted, GPUS)}".rstrip("; "),
        where="--gpu",
        fix=f"--gpu {close[0] if close else 'a100-40gb'}   # one of {', '.join(GPUS)}, or a size such as 40GB",
    )


def _of_driver_name(text: str) -> Gpu | None:
    """Return the card that a name such as ``nvidia geforce rtx 4090`` means; None where it means none."""
    words = re.findall(r"[a-z0-9.]+", text)
    if "laptop" in words:  # the same name with less memory
        return None
    known = {*words, *map("".join, pairwise(words))}
    model = [card for name, card in GPUS.items() if name.split("-")[0] in known]
    sized = [card for card in model if card.name.split("-")[1] in known]
    found = sized if len(model) > 1 else model  # of a model with one size, a number may be the host's memory
    if len(found) == 1:
        return found[0]
    if len({card.name.split("-")[0] for card in model}) != 1 or any(word[0].isdigit() for word in words):
        return None  # another model's name, or a size that there is not
    least = min(model, key=lambda card: card.total_bytes)
    return replace(least, name=f"{least.name}, the smallest of {', '.join(card.name for card in model)}")
