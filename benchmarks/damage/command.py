"""Asks the command line as a user does: a process of its own, one JSON document."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xectool

LONGEST_S = 60.0
"""A command that takes longer counts as hung; training, exporting and predicting many events have thirty times as long.

On a machine with more to do than it has cores the limit grows with its load.
"""
_SLOW = ("export", "predict", "train")


@dataclass(frozen=True)
class Answer:
    """What a command did.

    Attributes:
        code: Exit status; negative for a signal.
        document: The JSON document; empty where there was none.
        seconds: Wall clock.
        trouble: A traceback, a hang, or an answer that is no document.
    """

    code: int
    document: Mapping[str, Any]
    seconds: float
    trouble: str = ""

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The findings above a note, in the order in which they are told."""
        return [found for found in self.document.get("findings", ()) if found["severity"] != "info"]


def ask(words: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None) -> Answer:
    """Run ``xectool WORDS --json``; its caches lie in a directory."""
    command = [sys.executable, "-m", "xectool", *words, "--json"]
    own = {"XDG_CACHE_HOME": str(directory / "cache"), "OMP_NUM_THREADS": "1"}
    limit = LONGEST_S * (30 if words[0] in _SLOW else 1) * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        cwd=Path(xectool.__file__).parents[1], env={**os.environ, **own, **(environment or {})},
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Answer(-signal.SIGKILL, {}, time.perf_counter() - began, f"no answer in {limit:.0f} s")
    seconds = time.perf_counter() - began
    trouble = "a traceback" if "Traceback (most recent call last)" in err or process.returncode == 70 else ""
    try:
        document = json.loads(out)
    except ValueError:
        return Answer(process.returncode, {}, seconds, trouble or f"no document: {err[-300:]}")
    return Answer(process.returncode, document, seconds, trouble)
