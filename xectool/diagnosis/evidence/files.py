"""The small files of a run directory, read so that an absent or damaged one costs only what it would have said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from xectool.config.inputs import input_name
from xectool.config.serialize import from_yaml
from xectool.runlog.manifest import MANIFEST_FILE

_SHAPES: Final = {"versions": dict, "machine": dict, "extra": dict, "data_files": list}
TRANSFER_FILE: Final = "transfer.json"  # what became of every weight of checkpoint.init_from
QUARANTINE_FILE: Final = "quarantine.json"
TRACKER_STATE: Final = "tracking/state.json"
TRACKER_SETTINGS: Final = "tracking/settings.json"


@dataclass(frozen=True)
class CheckpointFile:
    """A checkpoint by name and size; never opened."""

    name: str
    size_bytes: int
    modified: float


def tolerant_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, empty where it is absent, half-written or something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def tolerant_manifest(run_dir: Path) -> dict[str, Any]:
    """Return the manifest of a run; what of its attempts has another shape is left out."""
    content = tolerant_json(run_dir / MANIFEST_FILE)
    entries = content.get("attempts")
    attempts = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    kept = [
        {key: value for key, value in one.items() if isinstance(value, _SHAPES.get(key, object))} for one in attempts
    ]
    return content | {"attempts": kept}


def tolerant_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, empty where it is absent, half-written or something else."""
    try:
        content = from_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):  # also of a date that is none, or a million digits
        return {}
    return content if isinstance(content, dict) else {}


def checkpoint_files(run_dir: Path) -> tuple[CheckpointFile, ...]:
    """Return the checkpoints in a run directory, oldest first; one that vanishes meanwhile is left out."""
    found = []
    for path in run_dir.glob("checkpoint_*.pt"):
        try:
            facts = path.stat()
        except OSError:
            continue
        found.append(CheckpointFile(path.name, facts.st_size, facts.st_mtime))
    return tuple(sorted(found, key=lambda item: (item.modified, item.name)))


def setting(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return the value of a dotted key of nested sections, or ``default`` where a part of it is absent."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def train_files(manifest: Mapping[str, Any], role: str = "train", attempt: int | None = None) -> tuple[str, ...]:
    """Return the files of a role (``train``, ``val``) by their index, named with their tree.

    Args:
        manifest: With what the run was trained.
        role: What the files are for.
        attempt: The attempt whose files they are; None for the last.
    """
    known = [one for one in manifest.get("attempts") or [] if isinstance(one, Mapping)]
    entries = [one for one in known if attempt is None or one.get("attempt") == attempt]
    files = entries[-1].get("data_files", []) if entries else []
    return tuple(_name(item) for item in files if isinstance(item, Mapping) and item.get("role") == role)


def _name(item: Mapping[str, Any]) -> str:
    """Return a file as an input is named; one that a run of before names has no tree."""
    return input_name(str(item.get("path")), str(item.get("tree") or ""))
