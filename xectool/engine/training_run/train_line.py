"""Fixes that are options of ``train`` alone, for a command that looks at a training and has no such options."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from xectool.config.document import SET
from xectool.findings import Finding

_OF_TRAIN: Final = re.compile(r"(?:^| )--(?:resume|run-name|device|max-steps)\b")


def train_words(path: Path, overrides: Sequence[str]) -> list[str]:
    """Return the arguments of a training, without the program name.

    >>> train_words(Path("c.yaml"), ["training.lr=1e-4"])
    ['train', 'c.yaml', '--set', 'training.lr=1e-4']
    """
    return ["train", str(path), *(word for text in overrides for word in (SET, text))]


def on_train_line(found: Finding, path: Path, overrides: Sequence[str]) -> Finding:
    """Return a finding whose fix is a whole line where it has options that only ``train`` has, and a file to name.

    Args:
        found: The finding.
        path: The configuration.
        overrides: ``key=value`` settings that are given beside it.
    """
    if not os.path.isfile(path):  # what came by a pipe is gone
        return found
    given = shlex.join(["xectool", *train_words(path, overrides)])
    lines = (f"{given} {line}" if _is_of_train(line) else line for line in found.fix.split("\n"))
    return replace(found, fix="\n".join(lines))


def _is_of_train(line: str) -> bool:
    """Return whether a line is options, of which one is of ``train`` alone.

    >>> _is_of_train("--resume auto   # goes on"), _is_of_train("--set a=b   # without --resume")
    (True, False)
    """
    return line.startswith("--") and _OF_TRAIN.search(line.partition("   # ")[0]) is not None
