"""What the numbers and names inside a known message add: which kind of out-of-memory, which kind of mismatch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from xectool.explanations import Entry, library

_SIZE = r"(\d+(?:\.\d+)?) (bytes|[KMGT]iB)"
_UNITS = {"bytes": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_ASKED = re.compile(f"Tried to allocate {_SIZE}")
_TOTAL = re.compile(f"total capacity of {_SIZE}|{_SIZE} total capacity")
_LOOSE = re.compile(f"{_SIZE} is reserved by PyTorch but unallocated")
_RESERVED = re.compile(f"{_SIZE} reserved in total by PyTorch")  # before PyTorch 2.1
_OWN = re.compile(f"this process has {_SIZE} memory in use|{_SIZE} already allocated|{_SIZE} is allocated by PyTorch")
_FREE = re.compile(f"of which {_SIZE} is free|{_SIZE} free")
_FRAGMENTED = 0.15  # of the card reserved and unused, or more than was asked for
_FOREIGN = 0.25  # of the card used by others
_PREFIX = re.compile(r'"(module\.|_orig_mod\.)')


@dataclass(frozen=True)
class Detail:
    """What is added to the problem, and the codes whose cause and lines to paste stand in place of the usual ones."""

    text: str = ""
    codes: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Return what is known of those codes."""
        return tuple(entry for code in self.codes if (entry := library().find(code)))


def detail_of(code: str, texts: Sequence[str]) -> Detail:
    """Return what the messages of a code say beyond the code.

    >>> detail_of("XT-CKPT-MISMATCH", ['Unexpected key(s) in state_dict: "module.a"']).text
    'all names start with module.: saved from DDP, the prefix has to be taken off'
    """
    found = (
        _memory(text) if code == "XT-OOM-GPU" else _prefix(text) if code == "XT-CKPT-MISMATCH" else Detail()
        for text in texts
    )
    return next((detail for detail in found if detail.text), Detail())


def _memory(text: str) -> Detail:
    asked, total = _bytes(_ASKED, text), _bytes(_TOTAL, text)
    if total <= 0:
        return Detail()
    own, free = _bytes(_OWN, text), _bytes(_FREE, text)
    loose = max(_bytes(_LOOSE, text), _bytes(_RESERVED, text) - own)
    if loose > max(_FRAGMENTED * total, asked):
        share = f"{loose / total:.0%} of the card is reserved but unallocated"
        return Detail(f"fragmentation: {share}", ("XT-OOM-FRAGMENTATION",))
    foreign = total - own - free
    if own > 0 and foreign > _FOREIGN * total:
        used = f"{foreign / 2**30:.1f} of {total / 2**30:.1f} GiB are held by others"
        return Detail(f"another process: {used}", ("XT-OOM-FOREIGN",))
    return Detail("capacity: the batch does not fit")


def _bytes(pattern: re.Pattern[str], text: str) -> float:
    match = pattern.search(text)
    if match is None:
        return 0.0
    number, unit = (group for group in match.groups() if group is not None)
    return float(number) * _UNITS[unit]


def _prefix(text: str) -> Detail:
    match = _PREFIX.search(text)
    if match is None:
        return Detail()
    maker = "DDP" if match[1] == "module." else "torch.compile"
    return Detail(f"all names start with {match[1]}: saved from {maker}, the prefix has to be taken off")
