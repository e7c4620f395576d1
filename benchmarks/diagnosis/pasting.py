"""Whether the lines of advice can be pasted: a dry run takes them, and finds something to train."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from typer.testing import CliRunner
from xectool.cli.app import app

_ALL_DONE = re.compile(r"^ *epochs +all \d+ done", re.MULTILINE)


def training_lines(fixes: Iterable[str]) -> list[list[str]]:
    """Return the words of every ``xectool train`` in some lines to paste, each once."""
    parts = dict.fromkeys(part.strip() for fix in fixes for part in fix.split(";"))
    return [shlex.split(part, comments=True) for part in parts if part.startswith("xectool train ")]


def passes(words: list[str]) -> bool:
    """Return whether a dry run of a command ends well and finds something to train."""
    done = CliRunner().invoke(app, [*words[1:], "--dry-run"])
    return done.exit_code == 0 and not _ALL_DONE.search(done.output)
