"""Sentences broken between their words to fit a terminal; what can be pasted stays on one line."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

FILE_WIDTH: Final = 400
"""Of what is no terminal: a file or a log, where nothing is broken."""
_WORD: Final = r"""(?:'[^']*'|"[^"]*"|\[[^\]]*\]|[^\s;,()'"\[])+"""
_KEPT: Final = re.compile(rf"(?:xectool|torchrun|python3?)(?: {_WORD})+|--[a-z][\w-]*[ =]{_WORD}")
_JOINT: Final = "\0"  # stands for a space that is no place to break a line at
_NARROWEST: Final = 20


def wrapped(text: str, width: int, indent: int, first: int | None = None) -> str:
    """Return a text broken between words; a word that is too long, as a path, and a command stay whole.

    Args:
        text: Sentences; each line of them is broken by itself.
        width: Letters of the terminal.
        indent: Of every line but the first.
        first: Letters that stand before the first line; as the indent without.

    >>> print(wrapped("the rate is too high: xectool explain lr says so", 32, 2, 0))
    the rate is too high:
      xectool explain lr says so
    """
    if width >= FILE_WIDTH:
        return text
    room, begins = max(_NARROWEST, width - indent), indent if first is None else first
    lines = list[str]()
    for line in text.split("\n"):
        kept = _KEPT.sub(lambda found: found[0].replace(" ", _JOINT), line)
        before = " " * (begins - indent if not lines else 0)
        broken = textwrap.wrap(
            kept, room, initial_indent=before, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
        )
        lines += [part.replace(_JOINT, " ") for part in broken] or [""]
    lines[0] = lines[0][max(0, begins - indent) :]
    return f"\n{' ' * indent}".join(lines)


@dataclass(frozen=True)
class Labelled:
    """A sentence behind a label, broken to fit where it is drawn.

    Attributes:
        label: What is before it, as wide as the lines below are indented.
        text: The sentence.
        style: Of the sentence.
    """

    label: str
    text: str
    style: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Draw it."""
        from rich.text import Text

        body = wrapped(self.text, options.max_width, len(self.label))
        yield Text.assemble((self.label, "bold"), (body, self.style))
