"""Asks torch about itself in a process of its own: a driver that hangs or crashes does not take the diagnosis along."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from xectool.diagnosis.environment.facts import DeviceFacts, TorchFacts
from xectool.errors import duration

TIMEOUT_S: Final = 120.0
_PROGRAM: Final = """
import json, torch
found = {"version": torch.__version__, "cuda": torch.version.cuda or "", "hip": torch.version.hip or "", "devices": []}
if torch.cuda.is_available():
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        found["devices"].append([index, facts.name, facts.total_memory, f"{facts.major}.{facts.minor}"])
print("FACTS " + json.dumps(found))
"""


def ask_torch(program: str = _PROGRAM, timeout_s: float = TIMEOUT_S) -> TorchFacts:
    """Return what torch says; its silence, crash or absence is a fact too.

    Args:
        program: Python source that prints the facts.
        timeout_s: Longest wait for it.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            encoding="utf-8",
        )
    except subprocess.TimeoutExpired:
        return TorchFacts(problem=f"torch gave no answer within {duration(timeout_s)}: the driver of the GPU may hang")
    except OSError as error:
        return TorchFacts(problem=f"Python could not be started: {error.strerror}")
    line = next((line for line in done.stdout.splitlines() if line.startswith("FACTS ")), "")
    if not line:
        lines = done.stderr.strip().splitlines()
        return TorchFacts(problem=lines[-1] if lines else f"importing torch ended with status {done.returncode}")
    found = json.loads(line.removeprefix("FACTS "))
    devices = tuple(DeviceFacts(*row) for row in found.pop("devices"))
    return TorchFacts(**found, devices=devices)
