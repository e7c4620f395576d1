"""Where a text is no YAML, in the user's terms: the line that is wrong, as far as that can be known."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import yaml

_RESERVED: Final = re.compile(r"[@`%*](?:[^,\]}#\s]|[ \t](?!#))*(?<!\s)")
_TWO_KEYS: Final = re.compile(r":\s.*:(\s|$)")
_OF_A_VALUE: Final = re.compile(r"[\[\]{}]")
_OPENS_TEXT: Final = re.compile(r":\s+[>|][-+0-9]*$")
_BEGINS_KEY: Final = re.compile(r"\s*[\w.]+:(\s|$)")
_KEY: Final = re.compile(r"[A-Za-z_][\w.]*")
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
    elif mark and (stray := _stray(text, mark.line, problem)):
        where, lines = f"{source}:{stray}", text.splitlines()
        problem = f"'{lines[stray - 1].strip()[:40]}' is text of its own, not 'key: value'"
        hint = _with_colon(lines[stray - 1], lines) + "take that line out, or put a '#' before it"
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
    lines = text.splitlines()
    if not any(sign in problem for sign in _AFTER_STRAY) or (
        lines[line : line + 1] and _TWO_KEYS.search(_bare(lines[line]))
    ):
        return 0
    before = enumerate(lines[:line], 1)
    written = [(number, own.partition("#")[0].rstrip()) for number, own in before if own.partition("#")[0].strip()]
    number, last = written[-1] if written else (0, ":")
    is_structure = last.lstrip().startswith("-") or _OF_A_VALUE.search(last) or _is_continued(last, written[:-1])
    return 0 if ": " in last or last.endswith(":") or is_structure else number


def _bare(line: str) -> str:
    """Return a line without its comment and what stands in quotes."""
    return re.sub(r"\s#.*", "", re.sub(r"\"[^\"]*\"|'[^']*'", "", line))


def _is_continued(line: str, written: Sequence[tuple[int, str]]) -> bool:
    """Return whether a line is of a text that a line before it, less far to the right, opens with ``>`` or ``|``."""
    above = next((own for _, own in reversed(written) if _indent(own) < _indent(line)), "")
    return bool(_OPENS_TEXT.search(above))


def _with_colon(line: str, lines: Sequence[str]) -> str:
    """Return ``key: value`` for a line that lacks its colon among keys, to go before another advice."""
    key, value = re.split(r"\s*=\s*|\s+", line.partition("#")[0].strip() + " ", maxsplit=1)
    among_keys = any(_indent(own) == _indent(line) and _BEGINS_KEY.match(own) for own in lines)
    one_value = len(value.split()) == 1
    return f"{key}: {value.strip()}   # or " if one_value and among_keys and _KEY.fullmatch(key) else ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
