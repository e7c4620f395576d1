"""Memory of a run or of a log in numbers: what failed, what grows, and what to change in which order."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from xectool.diagnosis.evidence import Evidence
from xectool.diagnosis.incidents import number
from xectool.diagnosis.memory_fault import MemoryFault, from_text, memory_faults
from xectool.diagnosis.memory_growth import memory_growth
from xectool.diagnosis.memory_ladder import Rung, ladder
from xectool.diagnosis.statistics import finite

KINDS: Final = {
    "XT-OOM-GPU": "device: capacity",
    "XT-OOM-HOST": "host",
    "XT-OOM-FRAGMENTATION": "device: fragmentation",
    "XT-OOM-FOREIGN": "device: another process",
    "XT-SHM": "shared memory",
    "XT-COMPILE-KILLED": "host, while compiling",
    "XT-MEM-GROWTH": "growth",
}
MAX_LINE: Final = 2000
_DEVICE: Final = re.compile(
    r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|HIP out of memory|the device ran out of memory"
)
_SHARED: Final = re.compile(r"Bus error.*shared memory|out of shared memory|No space left on device: '/dev/shm|/torch_")
_COMPILE: Final = re.compile(r"compil(e|ing)|inductor|triton", re.IGNORECASE)
_HOST: Final = re.compile(
    r"oom[-_]kill event|Out of memory: Killed process|exit(ed with)? code 137|MemoryError|can't allocate memory"
    r"|DataLoader worker \(pid.*\) is killed by signal: Killed|the host ran out of memory"
)


@dataclass(frozen=True)
class MemoryReport:
    """What is known about memory.

    Attributes:
        verdict: One line.
        code: Code of what was found, empty where nothing was.
        kind: Device or host; capacity, fragmentation, another process, shared memory, compiling, growth.
        table: Sizes by name, bytes.
        growth: Slope in one line.
        ladder: What to change, in order.
        new_config: The first change as dotted keys and values.
        evidence: Lines it rests on.
        where: Where it was read.
    """

    verdict: str
    code: str = ""
    kind: str = ""
    table: Mapping[str, float] = field(default_factory=dict)
    growth: str = ""
    ladder: tuple[Rung, ...] = ()
    new_config: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    where: str = ""


def of_run(evidence: Evidence, compile_killed: bool) -> MemoryReport:
    """Return the memory of a run.

    Args:
        evidence: The run.
        compile_killed: Whether the diagnosis says that it was killed while compiling.
    """
    growth = memory_growth(evidence)
    faults = memory_faults(evidence)
    blank = MemoryReport(
        "memory is sufficient and does not grow",
        table=_samples(evidence),
        growth=growth.text(),
        where=str(evidence.run_dir),
    )
    if compile_killed:
        text = "killed while compiling: export TORCHINDUCTOR_COMPILE_THREADS=1, or training.compile: none"
        return _with_code(replace(blank, verdict=text), "XT-COMPILE-KILLED", evidence.config)
    if growth.alarming:
        after = f", until: {faults[0].text()}" if faults else ""
        return _with_code(replace(blank, verdict=growth.text() + after), "XT-MEM-GROWTH", evidence.config)
    return _of_fault(faults[0], blank, evidence.config) if faults else blank


def of_log(path: Path, config: Mapping[str, Any]) -> MemoryReport:
    """Return what the first line about memory in a log says; files of any size are read line by line.

    Args:
        path: Text file.
        config: Configuration the advice starts from; may be empty.
    """
    with path.open(encoding="utf-8", errors="replace") as lines:
        for count, line in enumerate(lines, start=1):
            code = _line_code(line[:MAX_LINE])
            if not code:
                continue
            text = line.strip()[:MAX_LINE]
            found = MemoryReport(text, evidence=(text,), where=f"{path}:{count}")
            if code in ("XT-SHM", "XT-COMPILE-KILLED"):
                return _with_code(found, code, config)
            return _of_fault(from_text(text if code == "XT-OOM-GPU" else f"{text} oom-kill"), found, config)
    return MemoryReport("no line of this log is about memory", where=str(path))


def _line_code(line: str) -> str:
    if _SHARED.search(line):
        return "XT-SHM"
    if _DEVICE.search(line):  # before the host: the name of the device's error contains that of the host's
        return "XT-OOM-GPU"
    if _HOST.search(line):
        return "XT-COMPILE-KILLED" if _COMPILE.search(line) else "XT-OOM-HOST"
    return ""


def _of_fault(fault: MemoryFault, blank: MemoryReport, config: Mapping[str, Any]) -> MemoryReport:
    table = {**blank.table, **dict(fault.table())}
    return _with_code(replace(blank, verdict=fault.text(), table=table, evidence=fault.lines()), fault.code, config)


def _with_code(report: MemoryReport, code: str, config: Mapping[str, Any]) -> MemoryReport:
    device = code in ("XT-OOM-GPU", "XT-OOM-FRAGMENTATION", "XT-OOM-FOREIGN")
    rungs = ladder(config) if device else ()
    return replace(report, code=code, kind=KINDS[code], ladder=rungs, new_config=_own_settings(code, config))


def _own_settings(code: str, config: Mapping[str, Any]) -> dict[str, str]:
    if code in ("XT-OOM-FRAGMENTATION", "XT-OOM-FOREIGN", "XT-MEM-GROWTH"):
        return {}
    if code in ("XT-OOM-HOST", "XT-SHM"):
        chunk = number((config.get("data") or {}).get("chunksize", 8192))
        smaller = {"data.num_workers": "0"}
        return smaller if code == "XT-SHM" else {"data.chunksize": str(max(1, int(chunk) // 2)), **smaller}
    if code == "XT-COMPILE-KILLED":
        return {"training.compile": "none"}
    return dict(item.split("=", 1) for item in ladder(config)[0].settings)


def _samples(evidence: Evidence) -> dict[str, float]:
    found: dict[str, float] = {}
    columns = (("processes", "rss_bytes"), ("device allocated", "device_bytes"),
               ("device reserved", "device_reserved_bytes"))  # fmt: skip
    for name, column in columns:
        values = finite(evidence.steps[column])
        if values.size:
            found |= {f"{name}, first": float(values[0]), f"{name}, peak": float(values.max())}
    for name, key in (("host memory", "memory_bytes"), ("host memory limit", "memory_limit_bytes")):
        value = number(evidence.machine.get(key))
        if not math.isnan(value):
            found[name] = value
    return found
