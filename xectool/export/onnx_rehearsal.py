"""Runs an ONNX file in a process of its own first: where ONNX Runtime crashes, its caller dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from xectool.errors import OutOfMemory, OutputsDiffer
from xectool.export.reference import Arrays

_PROGRAM: Final = """
import sys
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 4
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
stored = np.load(sys.argv[2])
names = [item.name for item in session.get_inputs()]
for case in range(int(sys.argv[3])):
    print(case, flush=True)
    session.run(None, {name: stored[f"{case}.{name}"] for name in names})
"""


def rehearse(path: Path, cases: Mapping[str, Arrays]) -> None:
    """Refuse a file that kills ONNX Runtime; what it raises instead is left to the run that compares.

    Args:
        path: The file.
        cases: Inputs by name of input, by what is special about them.

    Raises:
        OutputsDiffer: It does, code X-20.
    """
    with tempfile.TemporaryDirectory(prefix="xectool-rehearsal-") as folder:
        stored = Path(folder) / "inputs.npz"
        arrays = {
            f"{number}.{name}": value for number, case in enumerate(cases.values()) for name, value in case.items()
        }
        np.savez(stored, **arrays)  # type: ignore[arg-type] # numpy's stub takes the names for its own options
        argv = [sys.executable, "-I", "-c", _PROGRAM, str(path), str(stored), str(len(cases))]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, encoding="utf-8", errors="replace")
    if done.returncode >= 0:
        return
    if done.returncode == -signal.SIGKILL:
        fix = "end other programs, or export on a machine with more memory: xectool explain oom-host"
        raise OutOfMemory("ONNX Runtime was killed, as the kernel does when memory runs out", where=path.name, fix=fix)
    started = done.stdout.split()
    case = list(cases)[int(started[-1])] if started else "opening the file"
    died = signal.Signals(-done.returncode).name
    raise OutputsDiffer(
        f"{case}: ONNX Runtime dies of {died}, and so would every program that uses it",
        where=path.name,
        fix="do not use this export; nothing was written. xectool explain X-20",
        code="X-20",
    )
