"""Follows the tracebacks of one process line by line: frames, the exception that ends each, and what led to what."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

_START: Final = re.compile(
    r"^(?P<indent>[\s|+]*)(?P<inner>Original )?(?:Exception Group )?Traceback \(most recent call last\):"
)
_LINK: Final = re.compile(r"(?:direct cause of the following|During handling of the above) exception")
_SENT: Final = re.compile(r"^-- Process \d+ terminated with the following error")
_FRAME_TEXTS: Final = ("torch/serialization.py",)
_MESSAGE_LINES: Final = 60  # lines after an exception's first that may still belong to its message


class Part(Enum):
    """What a line is to a traceback."""

    OUTSIDE = "outside"
    FRAME = "frame"
    EXCEPTION = "exception"
    MESSAGE = "message"
    END = "end"


@dataclass
class Raised:
    """One exception of a chain.

    Attributes:
        number: Line it stands on.
        text: That line.
        inner: Whether a worker process sent it, inside the message of the exception around it.
    """

    number: int
    text: str
    inner: bool = False


@dataclass
class Follower:
    """The state of one process's output.

    Attributes:
        chain: Exceptions so far of the chain the output is in, in the order of the text.
        frames: Texts of interest seen in the frames of the present traceback.
    """

    chain: list[Raised] = field(default_factory=list)
    frames: set[str] = field(default_factory=set)
    _indent: int = 0
    _inner: bool = False
    _in_frames: bool = False
    _message: int = 0
    _linked: bool = False
    _sent: bool = False
    _headless: bool = False

    @property
    def active(self) -> bool:
        """Whether the output is inside a chain of exceptions."""
        return self._in_frames or bool(self.chain)

    def feed(self, number: int, line: str) -> Part:
        """Take one line and return what it is; END: the chain was over before this line."""
        start = _START.match(line)
        if start is not None:
            return self._start(line, start)
        if self._in_frames:
            return self._frame_or_exception(number, line)
        if not self.chain:
            return Part.OUTSIDE
        if _LINK.search(line) or _SENT.match(line):
            self._linked, self._sent = True, _SENT.match(line) is not None
            return Part.MESSAGE
        self._message += 1
        over = self._headless or _is_record(line)
        ended = self._message > _MESSAGE_LINES or (not line[:1].isspace() and over)
        return Part.END if ended else Part.MESSAGE

    def begin(self, number: int, line: str) -> None:
        """Take an exception that stands without its traceback; only indented lines belong to its message."""
        self.chain.append(Raised(number, line))
        self._headless, self._message = True, 0

    def close(self) -> list[Raised]:
        """Return the chain and forget it."""
        chain, self.chain = self.chain, []
        self.frames, self._in_frames, self._linked, self._message = set(), False, False, 0
        self._headless = False
        return chain

    def _start(self, line: str, start: re.Match[str]) -> Part:
        if self.chain and not self._linked and not start["inner"]:
            return Part.END
        self._indent = len(start["indent"])
        self._inner, self._in_frames = bool(start["inner"]) or self._sent, True
        self._linked = self._sent = False
        return Part.FRAME

    def _frame_or_exception(self, number: int, line: str) -> Part:
        body = line[self._indent :]
        if body[:1].isspace() or not body:
            self.frames.update(text for text in _FRAME_TEXTS if text in body)
            return Part.FRAME
        self._in_frames, self._message = False, 0
        self.chain.append(Raised(number, body, self._inner))
        return Part.EXCEPTION


def _is_record(line: str) -> bool:
    """Return whether a line looks like the next record of a log and not like the rest of a message."""
    return bool(
        re.match(
            r"\[?\d{4}[-/]\d\d[-/]\d\d|\[?[EWIF]\d{4} |(?:epoch|step|INFO|WARNING|ERROR|DEBUG)\b", line, re.IGNORECASE
        )
    )
