"""What an exported file says of itself: enough to run it, to score it, and to know where it comes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import xectool
from xectool.config.tasks import TASK_UNITS
from xectool.errors import CheckpointError
from xectool.export.ports import Port

PRODUCER: Final = "xectool"
PREFIX: Final = "xectool."
EXTRA_FILE: Final = "xectool.json"
"""The entry of an archive of PyTorch that holds the description."""
EXPORTED: Final = "exported"
"""The key under which the facts of a safetensors file hold it."""
NONFINITE: Final = (
    "raw: NaN, infinite or beyond 9e9 counts as no reading, so outputs stay finite; normalized: NaN in gives NaN out"
)
EXPORT_AGAIN: Final = "export it with xectool: xectool export CKPT --output FILE"


@dataclass(frozen=True)
class Description:
    """What an exported file says of itself; the same checkpoint and options give the same one.

    Attributes:
        kind: regressor, mae or inpainter.
        inputs_mode: ``raw`` or ``normalized``.
        tasks: Exported tasks of a regressor.
        inputs: What it takes.
        outputs: What it gives.
        config: Resolved configuration, with the exported tasks only.
        checkpoint: Name of the file it was exported from.
        checkpoint_sha256: Digest of that file.
        weights: Which set of weights: ``ema``, ``model`` or ``best``.
        state: What scoring needs of the training: learnt weights of losses, calibration of conventional estimators,
            sensors without an output.
        opset: ONNX opset; 0 in other formats.
        version: Of the xectool that wrote it.
    """

    kind: str
    inputs_mode: str
    tasks: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    config: Mapping[str, Any]
    checkpoint: str
    checkpoint_sha256: str
    weights: str
    state: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 0
    version: str = xectool.__version__

    def to_metadata(self) -> dict[str, str]:
        """Return text by key, as it stands in a file."""
        units = {port.name: port.unit for port in (*self.inputs, *self.outputs)}
        transforms = {task: _transform(self.config["tasks"][task]) for task in self.tasks}
        values: dict[str, Any] = {
            "version": self.version,
            "producer": f"{PRODUCER} {self.version}",
            "kind": self.kind,
            "inputs_mode": self.inputs_mode,
            "tasks": list(self.tasks),
            "task_units": {task: TASK_UNITS[task] for task in self.tasks},
            "units": units,
            "inputs": [port.as_dict() for port in self.inputs],
            "outputs": [port.as_dict() for port in self.outputs],
            "normalization": self.config["normalization"],
            "target_transforms": transforms,
            "geometry": self.config["model"]["geometry"],
            "nonfinite": NONFINITE,
            "checkpoint": self.checkpoint,
            "checkpoint_sha256": self.checkpoint_sha256,
            "weights": self.weights,
            "opset": self.opset,
            "config": dict(self.config),
            "config_sha256": config_digest(self.config),
            "state": dict(self.state),
        }
        return {f"{PREFIX}{key}": _text(value) for key, value in values.items()}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], where: str) -> Description:
        """Return what `to_metadata` wrote.

        Args:
            metadata: Text by key.
            where: The file, for messages.

        Raises:
            CheckpointError: xectool did not write it, or something of it is missing or not readable.
        """
        stored = {key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)}
        missing = [key for key in _READERS if key not in stored]
        if missing:
            raise _incomplete(missing, bool(stored), where)
        found: dict[str, Any] = {}
        for key, read in _READERS.items():
            try:
                found[key] = read(stored[key])
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise _unreadable(f"{PREFIX}{key} cannot be read: {error}", where) from error
        if stored.get("config_sha256") != config_digest(found["config"]):
            raise _unreadable("the configuration in it does not have the digest stored with it", where)
        return cls(**found)


def changed_since(path: Path, changed: Sequence[str]) -> CheckpointError:
    """Return the error for a file whose digest says that it is not what was exported, with the parts that differ."""
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    problem = "the file is damaged or was changed: its content does not match the digest stored with it (SHA-256)"
    problem += f"; not what was exported: {changed[0]}{more}" if changed else ""
    return CheckpointError(problem, where=str(path), fix=EXPORT_AGAIN, code="XT-CKPT-CORRUPT")


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a configuration as canonical JSON."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _transform(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return how network units of a task become physical: ``t = value * scale + shift``, its exponential with a log."""
    return {key: task.get(key) for key in ("scale", "shift", "log_transform", "loss_fn")}


def _ports(text: str) -> tuple[Port, ...]:
    return tuple(Port.from_dict(item) for item in json.loads(text))


def _mapping(text: str) -> dict[str, Any]:
    return dict(json.loads(text))


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "kind": str,
    "inputs_mode": str,
    "tasks": lambda text: tuple(json.loads(text)),
    "inputs": _ports,
    "outputs": _ports,
    "config": _mapping,
    "checkpoint": str,
    "checkpoint_sha256": str,
    "weights": str,
    "state": _mapping,
    "opset": int,
    "version": str,
}


def _incomplete(missing: list[str], ours: bool, where: str) -> CheckpointError:
    shown = ", ".join(f"{PREFIX}{key}" for key in missing[:4]) + (" and more" if len(missing) > 4 else "")
    what = "parts of its metadata are missing" if ours else "xectool did not export this file"
    return CheckpointError(
        f"{what}: it lacks {shown}, so units, normalisation and tasks of its numbers are unknown",
        where=where,
        fix=EXPORT_AGAIN,
        code="X-15",
    )


def _unreadable(problem: str, where: str) -> CheckpointError:
    return CheckpointError(problem, where=where, fix=EXPORT_AGAIN, code="X-15")
