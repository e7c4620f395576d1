"""What a rank leaves behind for the launcher that started it: its result or its error, as a file."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from xectool.engine.ranks.said import warned_through_launcher
from xectool.engine.training_run.result import TrainResult
from xectool.errors import EXIT_INTERRUPTED, EXIT_OK, XecError
from xectool.findings import Finding, Severity
from xectool.runlog.atomic import read_json, write_json
from xectool.runlog.process import end_with_parent
from xectool.training.ranks.faults import as_facts

DIRECTORY: Final = "XECTOOL_RANK_OUTCOMES"
"""Variable that names the directory of the files."""
LAUNCHER: Final = "XECTOOL_LAUNCHER_PID"


def is_launched() -> bool:
    """Return whether ``xectool train --nproc`` started this process as one of its ranks."""
    return DIRECTORY in os.environ and "RANK" in os.environ


def outcome_path(directory: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return directory / f"outcome.rank{rank:04d}.json"


def run_as_rank(train: Callable[[], TrainResult]) -> int:
    """Train as a rank of a launched job and return the exit code; the launcher tells the user how it ended."""
    _end_with_launcher()
    directory, rank = Path(os.environ[DIRECTORY]), int(os.environ["RANK"])
    path = outcome_path(directory, rank)
    try:
        with warned_through_launcher(directory, rank):
            result = train()
    except XecError as error:
        write_json(path, {"pid": os.getpid(), "error": as_facts(error), "exit_code": error.exit_code})
        return error.exit_code
    except KeyboardInterrupt:  # the launcher says so once, for all of them
        return EXIT_INTERRUPTED
    findings = [found.as_dict() for found in result.findings]
    said = {"findings": findings, "last_lines": list(result.last_lines)}
    write_json(path, {"pid": os.getpid(), "result": result.as_dict(), **said})
    return EXIT_INTERRUPTED if result.status == "interrupted" else EXIT_OK


def read_outcome(directory: Path, rank: int) -> dict[str, Any]:
    """Return what a rank has left, empty where it came to no end of its own."""
    return read_json(outcome_path(directory, rank))


def result_of(outcome: dict[str, Any]) -> TrainResult:
    """Return the result that an outcome holds."""
    values = dict(outcome["result"])
    values["artifacts"] = tuple(values["artifacts"])
    values["findings"] = tuple(_finding(found) for found in outcome["findings"])
    values["last_lines"] = tuple(outcome["last_lines"])
    return TrainResult(**values)


def _finding(values: dict[str, Any]) -> Finding:
    kept = {**values, "severity": Severity(values["severity"]), "evidence": tuple(values["evidence"])}
    return Finding(**kept)


def _end_with_launcher() -> None:
    """Have the kernel end this process when its launcher is gone, so that none is left behind on the machine."""
    end_with_parent()
    if os.getppid() != int(os.environ[LAUNCHER]):  # it went before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)
