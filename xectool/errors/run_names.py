"""What can be the name of a run, and so of its directory: the nearest one to a text, for lines to paste."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Final

_MOST: Final = 128
RUN_NAME_PATTERN: Final = re.compile(rf"^[A-Za-z0-9][A-Za-z0-9._+-]{{0,{_MOST - 1}}}\Z")
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9._+-]+")


def run_name(text: str, ending: str = "", root: Path | None = None) -> str:
    """Return the nearest name that a run can have to a text with an ending, which is never cut.

    Args:
        text: A name of a run, a directory or a file.
        ending: What tells the new run from another one, such as ``-again``.
        root: Where the run is to lie; with it the name is one that nothing has there.

    >>> run_name("run_1"), run_name("my run", "-again"), run_name("m" * 200, "-again")[-8:]
    ('run_1', 'my_run-again', 'mm-again')
    """
    plain = text if RUN_NAME_PATTERN.match(text) else _NOT_IN_A_NAME.sub("_", text).strip("._+-") or "run1"
    for number in itertools.count(1):
        last = ending if number == 1 else f"{ending}-{number}"
        name = plain[: _MOST - len(last)] + last
        if root is None or not os.path.lexists(root / name):
            return name
    raise AssertionError("numbers do not end")
