"""Where a text is no YAML, in the user's terms: the line that is wrong, as far as that can be known."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import yaml

_RESERVED: Final = re.compile(r"[@`%*](?:[^,\]}#\s]|[ \t](?!#))*(?<!\s)")
_AFTER_STRAY: Final = ("<document start>", "mapping values are not allowed", "could not find expected ':'")


def told(text: str, source: str, error: yaml.MarkedYAMLError, given: Callable[[str], str]) -> tuple[str, str, str]:
    """Return what is wrong, where, and what to do.

    Args:
        text: What was read.
        source: Its name.
        error: What YAML said; its line is that at which it noticed.
        given: Returns how a value is given there.
    """
    mark = error.problem_mark or error.context_mark
    problem, where = str(error.problem), f"{source}:{mark.line + 1}" if mark else source
    hint = "use spaces, not tabs, to indent" if "'\\t'" in str(error.problem) else "correct the line"
    if isinstance(error, yaml.scanner.ScannerError) and (line := _in_quotes(text, error)):
        hint = f"put it in quotes: {given(line)}"
    elif mark and (stray := _stray(text, mark.line, str(error.problem))):
        where = f"{source}:{stray}"
        problem = f"'{text.splitlines()[stray - 1].strip()[:40]}' is text of its own, not 'key: value'"
        hint = "take that line out, or put a '#' before it"
    elif mark and isinstance(error, yaml.parser.ParserError):
        where = f"{source}: at or before line {mark.line + 1}"
    return problem, where, hint


def _in_quotes(text: str, error: yaml.MarkedYAMLError) -> str:
    """Return the line with quotes where a value begins with a sign that YAML keeps for itself (a list, a glob)."""
    marks = [mark for mark in (error.context_mark, error.problem_mark) if mark is not None]
    for mark in marks:
        if value := _RESERVED.match(text, mark.index):
            quoted = "'" + value[0].replace("'", "''") + "'"
            return f"{text[: value.start()]}{quoted}{text[value.end() :]}".split("\n")[mark.line].strip()
    return ""


def _stray(text: str, line: int, problem: str) -> int:
    """Return the line of text that is no key before the one at which YAML stumbles over it; 0 without one."""
    if not any(sign in problem for sign in _AFTER_STRAY):
        return 0
    before = enumerate(text.splitlines()[:line], 1)
    written = [(number, own.partition("#")[0].strip()) for number, own in before if own.partition("#")[0].strip()]
    number, last = written[-1] if written else (0, ":")
    return 0 if ": " in last or last.endswith(":") else number
