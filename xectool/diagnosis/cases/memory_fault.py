"""What kind of out-of-memory a run or a log shows: device or host; capacity, fragments, or another process."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.statistics import finite

FRAGMENTED_SHARE: Final = 0.2  # F001: reserved but unallocated, of the total
FOREIGN_SHARE: Final = 0.2  # the same share, held by other processes
OUT_OF_MEMORY: Final = re.compile(r"XT-OOM|OutOfMemory|MemoryError|out of memory|_ALLOC_FAILED|ErrorMemoryAllocation")
_KILLED_READER: Final = "XT-LOADER-KILLED"
NEARLY_FULL: Final = 0.9  # F011
_UNITS: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 1e3, "MB": 1e6, "GB": 1e9}
_SIZE: Final = r"([\d.]+) ?([KMGT]i?B|B)"


@dataclass(frozen=True)
class MemoryFault:
    """One failure for lack of memory; sizes in bytes, NaN where unknown.

    Attributes:
        code: ``XT-OOM-GPU``, ``XT-OOM-HOST``, ``XT-OOM-FRAGMENTATION`` or ``XT-OOM-FOREIGN``.
        confidence: From 0 to 1.
        phase: What the run was doing.
        module: Where in the model.
        requested: Size of the allocation that failed.
        capacity: Memory there is in all.
        allocated: Held by the run.
        unallocated: Reserved by the allocator and not in use.
        foreign: Held by other processes.
        step: Step at which it failed.
        source: Line it was read from.
        over: Whether a later attempt has gone on since.
    """

    code: str
    confidence: float
    phase: str = ""
    module: str = ""
    requested: float = math.nan
    capacity: float = math.nan
    allocated: float = math.nan
    unallocated: float = math.nan
    foreign: float = math.nan
    step: int = 0
    source: str = ""
    over: bool = False

    @property
    def side(self) -> str:
        """Return ``host`` or ``device``."""
        return "host" if self.code == "XT-OOM-HOST" else "device"

    def text(self) -> str:
        """Return the failure in one sentence."""
        why = {
            "XT-OOM-GPU": "the device is too small for this batch",
            "XT-OOM-HOST": "the host ran out of memory",
            "XT-OOM-FRAGMENTATION": "device memory is in fragments",
            "XT-OOM-FOREIGN": "another process holds device memory",
        }[self.code]
        phase = {"compile": "forward or backward, in the first compiled step"}.get(self.phase, self.phase)
        where = f" in {phase}" if phase else ""
        return f"out of memory{where}: {why}" + (f" (module {self.module})" if self.module else "")

    def table(self) -> list[tuple[str, float]]:
        """Return the known sizes by name, bytes."""
        sizes = (
            ("requested", self.requested),
            ("total capacity", self.capacity),
            ("allocated by the run", self.allocated),
            ("reserved but unallocated", self.unallocated),
            ("held by other processes", self.foreign),
        )
        return [(name, size) for name, size in sizes if 0 <= size < math.inf]

    def lines(self) -> tuple[str, ...]:
        """Return the sizes as lines of evidence."""
        sizes = tuple(f"{name}: {size / 1e9:.3g} GB" for name, size in self.table())
        return (*sizes, *((self.source[:300],) if self.source else ()))


def memory_faults(evidence: Evidence) -> list[MemoryFault]:
    """Return the failures of a run for lack of memory, those that are over last; else what its end shows."""
    failure = evidence.failure
    if failure is not None and failure.data.get("code") == _KILLED_READER:
        return _by_use(evidence)  # whoever reported it could only guess why the process was killed
    recorded = evidence.of("oom")
    found = [replace(_of_event(event.data, event.step), over=evidence.gone_on_after(event)) for event in recorded]
    if found:
        return sorted(found, key=lambda fault: fault.over)
    text = f"{failure.message} {failure.data.get('code', '')}" if failure else ""
    if failure is not None and OUT_OF_MEMORY.search(text):
        return [from_text(text, failure.step, str(failure.data.get("phase") or ""))]
    return _by_use(evidence) if evidence.status.state == "killed" else []


def _by_use(evidence: Evidence) -> list[MemoryFault]:
    """Return a lack of memory where a process was killed while memory was nearly used up."""
    used, limit = _highest(evidence)
    if not (used > NEARLY_FULL * limit or evidence.of("memory_warning")):
        return []
    line = f"the processes held {used / 1e9:.3g} of {limit / 1e9:.3g} GB when one was killed"
    return [MemoryFault("XT-OOM-HOST", 0.88, allocated=used, capacity=limit, step=evidence.status.step, source=line)]


def from_text(text: str, step: int = 0, phase: str = "") -> MemoryFault:
    """Return the failure that an error message describes, of PyTorch's old and new wording.

    Args:
        text: The message.
        step: Step it belongs to.
        phase: What the run was doing.
    """
    if re.search(r"XT-OOM-HOST|\bMemoryError|can't allocate memory|oom[-_]kill|host ran out", text):
        requested = _size(r"allocate (?:memory: you tried to allocate )?", text)
        return MemoryFault("XT-OOM-HOST", 0.95, phase, requested=requested, step=step, source=text)
    return _classified(_sizes(text), phase, "", step, text)


def _sizes(text: str) -> dict[str, float]:
    """Return what a message of PyTorch says in bytes, NaN where it does not; before 2.1 it named the reserved whole."""
    allocated = _size(r"", text, r" (?:is allocated by PyTorch|already allocated)")
    unallocated = _size(r"", text, r" is reserved by PyTorch but unallocated")
    reserved = _size(r"", text, r" reserved in total by PyTorch")
    return {
        "requested": _size(r"Tried to allocate ", text),
        "capacity": max(_size(r"total capacity of ", text), _size(r"", text, r" total capacity"), key=_known),
        "allocated": allocated,
        "unallocated": max(unallocated, reserved - allocated, key=_known),
        "foreign": sum(_all_sizes(r"Process \d+ has ", text)) or math.nan,
    }


def _known(size: float) -> float:
    return size if size == size else -math.inf


def _of_event(data: Mapping[str, Any], step: int) -> MemoryFault:
    phase, module, text = (str(data.get(key) or "") for key in ("phase", "module", "text"))
    said = _sizes(text)
    sizes: dict[str, Any] = {
        name: size if (size := number(data.get(key))) > 0 else said[name]
        for name, key in (
            ("requested", "requested"),
            ("capacity", "capacity"),
            ("allocated", "allocated"),
            ("unallocated", "reserved_unallocated"),
            ("foreign", "foreign"),
        )
    }
    if data.get("side") == "host":
        return MemoryFault("XT-OOM-HOST", 0.97, phase, module, step=step, source=text, **sizes)
    return _classified(sizes, phase, module, step, text)


def _classified(sizes: dict[str, Any], phase: str, module: str, step: int, text: str) -> MemoryFault:
    """Return a device failure by what would have been enough: whole memory, unbroken memory, or nobody else's."""
    sizes = {name: size if size > 0 else math.nan for name, size in sizes.items()}
    capacity = sizes["capacity"]
    code, sure = "XT-OOM-GPU", 0.95
    # Without a recorded request any free piece might have been too small, so the share alone decides.
    requested = sizes["requested"] if math.isfinite(sizes["requested"]) else 0.0
    if sizes["foreign"] > FOREIGN_SHARE * capacity and sizes["foreign"] >= requested:
        code = "XT-OOM-FOREIGN"
    elif sizes["unallocated"] > FRAGMENTED_SHARE * capacity and sizes["unallocated"] >= requested:
        code = "XT-OOM-FRAGMENTATION"
    return MemoryFault(code, sure, phase, module, step=step, source=text, **sizes)


def _highest(evidence: Evidence) -> tuple[float, float]:
    samples = finite(evidence.steps["rss_bytes"])[-50:]
    limits = [number(evidence.machine.get(key)) for key in ("memory_limit_bytes", "memory_bytes")]
    warned = evidence.last("memory_warning")
    used = float(samples.max()) if samples.size else 0.0
    if warned is not None:
        used = max(used, number(warned.data.get("used_bytes")))
        limits.append(number(warned.data.get("budget_bytes")))
    return used, min((limit for limit in limits if limit > 0), default=math.inf)


def _size(before: str, text: str, after: str = "") -> float:
    found = re.search(before + _SIZE + after, text)
    return float(found[1]) * _UNITS[found[2]] if found else math.nan


def _all_sizes(before: str, text: str) -> list[float]:
    return [float(value) * _UNITS[unit] for value, unit in re.findall(before + _SIZE, text)]
