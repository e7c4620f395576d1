"""Rules on where a checkpoint comes from: the devices its tensors lay on, the versions that wrote it."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from typing import Final

import torch

from xectool import __version__
from xectool.checkpoint.inspection.facts import Inspected
from xectool.findings import Finding
from xectool.rules import Rule

_ANYWHERE: Final = frozenset(("cpu", "meta"))
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)*")
_SIGNIFICANT: Final = {"xectool": 3, "torch": 2, "python": 2}  # parts of a number after which files may read otherwise
_NO_UPDATE: Final = "it was read as it is; where something looks wrong, read it with the program that wrote it"


class LoadsHere(Rule[Inspected]):
    """`torch.load` puts tensors back where they were, which fails on a machine without that device."""

    code = "K04"
    title = "Its tensors lay on devices of this machine"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield a note for devices that are not here, a warning for those PyTorch does not know."""
        refs = facts.contents.tensors
        places = {ref.device: name for name, ref in sorted(refs.items(), reverse=True)}
        gone = [device for device in sorted(places) if not _is_here(device)]
        strange = [device for device in gone if not _is_device(device)]
        for device in strange:
            problem = f"'{device[:40]}', where tensors are said to have lain, is no device PyTorch knows"
            yield self.warning(places[device], problem, _on_cpu(facts))
        known = [device for device in gone if device not in strange]
        if known:
            problem = f"saved on {', '.join(known)}, which is not here; the CPU takes it"
            yield self.info(places[known[0]], problem, _on_cpu(facts))


class VersionsAreKnown(Rule[Inspected]):
    """A file of a newer program may mean something else by the same words."""

    code = "K19"
    title = "The versions that wrote it are not newer than those here"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield a note for each version that is newer, or that is none."""
        versions = facts.layout.meta.get("versions")
        if versions is None:
            return
        here = {"xectool": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
        for name, own in here.items():
            told = versions.get(name) if isinstance(versions, Mapping) else versions
            if told is None:
                continue
            newer = _is_newer(told, own, _SIGNIFICANT[name])
            if newer is None:
                problem = f"the version of {name} that wrote it is '{str(told)[:40]}', which is no version"
                yield self.info(f"meta.versions.{name}", problem, _NO_UPDATE)
            elif newer:
                problem = f"written with {name} {told}, newer than the one here ({own})"
                yield self.info(f"meta.versions.{name}", problem, _update(name))


def _is_device(device: str) -> bool:
    try:
        torch.device(device)
    except (RuntimeError, ValueError):
        return False
    return True


def _is_here(device: str) -> bool:
    kind, _, index = device.partition(":")
    if kind == "cuda" and torch.cuda.is_available():
        return not index.isdecimal() or int(index) < torch.cuda.device_count()
    return kind in _ANYWHERE


def _is_newer(told: object, own: str, parts: int) -> bool | None:
    """Return whether a version is newer in its first parts; None where it is no version."""
    numbers = [_NUMBERS.match(text) if isinstance(text, str) else None for text in (told, own)]
    if numbers[0] is None or numbers[1] is None:
        return None
    theirs, ours = ([int(part) for part in found[0].split(".")[:parts]] for found in (numbers[0], numbers[1]))
    return theirs > ours


def _on_cpu(facts: Inspected) -> str:
    if facts.layout.is_ours:
        return "nothing to do: xectool reads it to the CPU and moves it from there"
    return f"torch.load({facts.contents.path.name!r}, map_location='cpu', weights_only=True)"


def _update(name: str) -> str:
    return "pip install --upgrade xectool" if name == "xectool" else _NO_UPDATE


ORIGIN_RULES: tuple[Rule[Inspected], ...] = (LoadsHere(), VersionsAreKnown())
