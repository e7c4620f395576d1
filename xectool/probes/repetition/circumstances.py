"""What is not as it was when a run recorded its steps: device, versions, threads, configuration, files."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import xectool
from xectool.runlog.manifest import config_digest, machine
from xectool.training.stepping.parts import RunParts

PACKAGES = ("torch", "numpy")
MACHINE_KEYS = ("cpu", "architecture")


def recorded_threads(entry: Mapping[str, Any]) -> int | None:
    """Return how many threads an attempt computed with, by the manifest; sums over threads depend on it."""
    found = entry.get("extra", {}).get("threads")
    return int(found) if found else None


def differences(entry: Mapping[str, Any], parts: RunParts, ranks: int = 1) -> list[str]:
    """Return one sentence for each circumstance that differs from that of an attempt, by its entry in the manifest.

    Args:
        entry: What the manifest says of the attempt.
        parts: What stands for it now: one process with the batch of all ranks.
        ranks: How many the attempt had.
    """
    if not entry:
        return ["the run has no manifest, so its machine and versions are not known"]
    pairs: dict[str, tuple[Any, Any]] = {
        f"version of {name}": (entry["versions"].get(name), now) for name, now in _versions().items()
    }
    pairs["threads"] = (entry["extra"].get("threads"), torch.get_num_threads())
    pairs["execution"] = ("; ".join(entry["extra"].get("execution", [])), "; ".join(parts.execution.notes))
    pairs["ranks"] = (ranks, 1)
    config = parts.config.to_dict()
    config["data"] = {**config["data"], "batch_size": config["data"]["batch_size"] // ranks}
    pairs["configuration (SHA-256)"] = (entry.get("config_sha256"), config_digest(config))
    here = machine()
    pairs |= {name: (entry["machine"].get(name), here.get(name)) for name in MACHINE_KEYS}
    return [f"{what}: {was} then, {now} now" for what, (was, now) in pairs.items() if was != now] + [*_files(entry)]


def _versions() -> dict[str, str]:
    return {"xectool": xectool.__version__} | {name: importlib.metadata.version(name) for name in PACKAGES}


def _files(entry: Mapping[str, Any]) -> Iterator[str]:
    for facts in entry.get("data_files", []):
        path = Path(facts["path"])
        if facts["size_bytes"] < 0 or not path.exists():
            continue
        size, changed = path.stat().st_size, path.stat().st_mtime
        if size != facts["size_bytes"]:
            yield f"{path}: {facts['size_bytes']} bytes then, {size} now"
        elif changed != facts["mtime"]:
            yield f"{path}: written again since, with the same size"
