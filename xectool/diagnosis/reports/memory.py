"""Memory of a run or of a log in numbers: what failed, what grows, and what to change in which order."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cases.memory_fault import MemoryFault, from_text, memory_faults
from xectool.diagnosis.cases.memory_growth import Growth, memory_growth
from xectool.diagnosis.cause import Cause
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.files import setting
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.statistics import finite
from xectool.diagnosis.memory_ladder import Rung, ladder
from xectool.diagnosis.reports.loss import settings_of
from xectool.diagnosis.rules.memory import memory_fix

KINDS: Final = {
    "XT-OOM-GPU": "device: capacity",
    "XT-OOM-HOST": "host",
    "XT-OOM-FRAGMENTATION": "device: fragmentation",
    "XT-OOM-FOREIGN": "device: another process",
    "XT-SHM": "shared memory",
    "XT-COMPILE-KILLED": "host, while compiling",
    "XT-MEM-GROWTH": "growth",
    "XT-MEM-HIGH": "host: nearly used up",
}
LOOK_AT: Final = (
    "what grows: a tensor kept with its graph (metrics and lists of losses need .detach()), readers that live for ever,"
    " caches of the file library, the queue of a tracker"
)
LOOK_AT_OWN: Final = (
    "what grows: the training process, not those that read for it: tensors kept with their graph, or lists of results,"
    " in a task, a hook or a plugin of yours"
)
_OWN_CODES: Final = ("XT-OOM-GPU", "XT-OOM-FRAGMENTATION")  # of the device, where this run has to change
_WHO_HOLDS_IT: Final = "nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv"
_BEFORE: Final = {
    "XT-OOM-FRAGMENTATION": "export PYTORCH_ALLOC_CONF=expandable_segments:True",
    "XT-OOM-FOREIGN": "nvidia-smi",
    "XT-COMPILE-KILLED": "export TORCHINDUCTOR_COMPILE_THREADS=1",
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
        next: Line to paste; empty where nothing is wrong.
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
    next: str = ""
    evidence: tuple[str, ...] = ()
    where: str = ""


def of_run(evidence: Evidence, causes: Sequence[Cause]) -> MemoryReport:
    """Return the memory of a run.

    Args:
        evidence: The run.
        causes: What the diagnosis says about it, most likely first.
    """
    growth = memory_growth(evidence)
    report = MemoryReport(
        f"memory is sufficient and {'grows little' if growth.steady and growth.slope > 0 else 'does not grow'}",
        table=_samples(evidence),
        growth=growth.text(),
        where=str(evidence.run_dir),
    )
    cause = next((cause for cause in causes if cause.code in KINDS), None)
    if cause is None:
        return report
    faults = memory_faults(evidence)
    fault = next((fault for fault in faults if fault.code == cause.code), None)
    if fault is not None:
        report = replace(report, table={**report.table, **dict(fault.table())}, evidence=fault.lines())
    text, line = cause.problem, cause.fix
    if cause.code == "XT-MEM-GROWTH":
        text += f", until: {faults[0].text()}" if faults and not faults[0].over else ""
        line, report = _against_growth(evidence, growth), replace(report, evidence=_what_grows(evidence, growth))
    elif cause.code == "XT-MEM-HIGH":
        line = memory_fix(evidence, MemoryFault("XT-OOM-HOST", cause.confidence))
    report = replace(report, verdict=text, code=cause.code, kind=KINDS[cause.code], next=line)
    rungs = ladder(evidence.config) if cause.code in _OWN_CODES else ()
    return replace(report, ladder=rungs, new_config=settings_of(line))


def _against_growth(evidence: Evidence, growth: Growth) -> str:
    """Return the line against growth: keep no graph, or readers that end with each epoch take what they keep along."""
    if evidence.of("metric_graph"):
        return "xectool explain XT-METRIC-GRAPH"
    if holder := _holder_of_graphs(evidence):
        return f"store .detach() or .item() of each tensor in {holder}; then {fixes.resume(evidence)}"
    workers = _workers(evidence)
    kept = growth.own is True and workers > 0  # those that read are processes of their own
    if growth.source == "device" or kept or (workers and evidence.setting("data.persistent_workers") is False):
        return "xectool explain memory-growth"
    return fixes.resume(evidence, *fixes.workers(evidence, max(2, workers)), "data.persistent_workers=false")


def _what_grows(evidence: Evidence, growth: Growth) -> tuple[str, ...]:
    told = evidence.last("memory_growth")
    if told is not None and _holder_of_graphs(evidence):
        return (told.message,)
    return (LOOK_AT_OWN if growth.own is True and _workers(evidence) else LOOK_AT,)


def _workers(evidence: Evidence) -> int:
    return int(evidence.setting("data.num_workers", 0) or 0)


def _holder_of_graphs(evidence: Evidence) -> str:
    """Return what the guard found to hold the graphs of earlier steps; empty where nothing did."""
    told = evidence.last("memory_growth")
    return str(told.data.get("holder") or "") if told is not None else ""


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
            if code not in ("XT-SHM", "XT-COMPILE-KILLED"):
                fault = from_text(text if code == "XT-OOM-GPU" else f"{text} oom-kill")
                code, found = (
                    fault.code,
                    replace(found, verdict=fault.text(), table=dict(fault.table()), evidence=fault.lines()),
                )
            return _of_line(found, code, config)
    return MemoryReport("no line of this log is about memory", where=str(path))


def _line_code(line: str) -> str:
    if _SHARED.search(line):
        return "XT-SHM"
    if _DEVICE.search(line):  # before the host: the name of the device's error contains that of the host's
        return "XT-OOM-GPU"
    if _HOST.search(line):
        return "XT-COMPILE-KILLED" if _COMPILE.search(line) else "XT-OOM-HOST"
    return ""


def _of_line(report: MemoryReport, code: str, config: Mapping[str, Any]) -> MemoryReport:
    rungs = ladder(config) if code in _OWN_CODES else ()
    settings = _own_settings(code, config)
    again = " ".join(["xectool train CONFIG --resume auto", *(f"--set {key}={text}" for key, text in settings.items())])
    if code == "XT-OOM-GPU" and not config:  # of an unknown program: what fits is to be looked for
        size = report.table.get("total capacity", 0.0)
        device = f" --gpu {size / 1e9:.1f}GB" if size > 0 else ""
        again = f"xectool estimate-memory CONFIG{device} --max-batch"
    line = f"{_BEFORE[code]}; {again}" if code in _BEFORE else again
    if code == "XT-OOM-FOREIGN" and not config:
        line = _WHO_HOLDS_IT
    return replace(report, code=code, kind=KINDS[code], ladder=rungs, new_config=settings, next=line)


def _own_settings(code: str, config: Mapping[str, Any]) -> dict[str, str]:
    if code in _BEFORE:
        return {}
    if code == "XT-SHM":
        return {"data.num_workers": "0"}
    if code == "XT-OOM-HOST":
        chunk = number(setting(config, "data.chunksize"))
        smaller = {"data.chunksize": str(max(1, int(chunk) // 2))} if 0 < chunk < math.inf else {}
        return {**smaller, "data.num_workers": "0"}
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
