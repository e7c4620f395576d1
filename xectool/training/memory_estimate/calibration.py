"""What an estimate leaves out, measured on one machine and kept for the next estimate."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from xectool.config.host_memory import BASE_BYTES
from xectool.errors import DiskError, UsageError
from xectool.training.memory_estimate.device import Device, held_bytes

SLACK: Final = 1.4
"""Resident memory over the peak of tensors on the CPU: what malloc and oneDNN keep in whole trainings (measured)."""

MOST_KEPT_BYTES: Final = 150_000_000
"""More than this is not kept: large tensors are given back whole (measured, steps of 0.4 to 1.9 GB)."""


@dataclass(frozen=True)
class Calibration:
    """Measured numbers of one machine.

    Attributes:
        base_bytes: Resident memory of a training process without tensors and loader.
        slack: Resident memory that the tensors of a step take, over their peak.
        device_factor: Peak of the CUDA allocator over the predicted peak; 1 where none was measured.
        where: The machine, or ``built in``.
        most_kept_bytes: More than this is not kept beside the tensors of a step.
    """

    base_bytes: int = BASE_BYTES
    slack: float = SLACK
    device_factor: float = 1.0
    where: str = "built in"
    most_kept_bytes: int = MOST_KEPT_BYTES

    def resident(self, tensors_bytes: int) -> int:
        """Return the resident memory of tensors on the host."""
        return held_bytes(tensors_bytes, self.slack, self.most_kept_bytes)

    def on(self, device: Device) -> Device:
        """Return the device with what its allocator holds on to beyond a predicted peak."""
        if device.is_gpu:
            return replace(device, factor=self.device_factor)
        return replace(device, factor=self.slack, most_kept_bytes=self.most_kept_bytes)


_ENOUGH_BYTES: Final = 100_000_000
"""Tensors below which the interpreter's own ups and downs would be taken for the allocator's."""


def numbers_of(measured: Mapping[str, int], one_event: int, whole: int) -> Calibration:
    """Return the numbers of a machine from one measured step.

    Args:
        measured: As `child.measure` returns it.
        one_event: Predicted peak of a batch of one event, bytes.
        whole: Predicted peak of the whole batch, bytes.

    Raises:
        UsageError: The step is too small to tell its memory from the interpreter's.
    """
    where = f"measured, {calibration_path()}"
    if measured["allocator_bytes"]:
        return Calibration(device_factor=measured["allocator_bytes"] / whole, where=where)
    if whole - one_event < _ENOUGH_BYTES:
        raise UsageError(
            f"a step of {whole / 1e6:.0f} MB is too small to calibrate with",
            where="--calibrate",
            fix="--batch-size 64",
        )
    slack = max(1.0, (measured["peak_bytes"] - measured["base_bytes"]) / (whole - one_event))
    kept = round((slack - 1.0) * (whole - one_event))
    return Calibration(slack=slack, where=where, most_kept_bytes=max(kept, MOST_KEPT_BYTES))


def calibration_path() -> Path:
    """Return where the numbers of this machine are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "xectool" / f"memory-{socket.gethostname()}.json"


def load_calibration() -> Calibration:
    """Return the numbers of this machine, the built-in ones where none were measured."""
    path = calibration_path()
    if not path.is_file():
        return Calibration()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Calibration(
            int(content["base_bytes"]),
            float(content["slack"]),
            float(content["device_factor"]),
            str(content["where"]),
            int(content.get("most_kept_bytes", MOST_KEPT_BYTES)),
        )
    except (ValueError, KeyError, TypeError, OSError):
        # A damaged cache must not stop an estimate; where the numbers come from is shown with it.
        return Calibration(where=f"built in; {path} is damaged: run --calibrate again")


def save_calibration(calibration: Calibration) -> Path:
    """Write the numbers of this machine and return where.

    Raises:
        DiskError: The disk refuses.
    """
    path = calibration_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(calibration), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise DiskError(
            f"the calibration cannot be written: {error.strerror}",
            where=str(path),
            fix="export XDG_CACHE_HOME=PATH   # a directory that can be written",
        ) from error
    return path
