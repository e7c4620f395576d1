"""The two streams that a command speaks on: none of it is lost where they take nothing for a while, and none unseen."""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO, cast

PATIENCE_S: Final = 1.0
"""How long a line waits for a reader that takes nothing; the ones after it wait for nothing until it reads again."""
LAST_PATIENCE_S: Final = 10.0
KEPT_BYTES: Final = 1 << 24
_READER_GONE: Final = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN)


class Steady:
    """A stream that keeps what its file does not take now (a full disk, EAGAIN) and tries again at the next line.

    Nothing is raised: a training is not about its log. Where the reader is gone (`| head`, a closed terminal) nobody
    waits for the rest, and it vanishes.

    Args:
        stream: What to write to.

    Attributes:
        error: Why `stream` did not take what was written last.
        gone: Whether its reader is gone.
        used: Whether anything was written.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.error: OSError | None = None
        self.gone = self.used = False
        self._left = bytearray()
        self._lock = threading.RLock()
        try:
            self._file = stream.fileno()
        except (OSError, ValueError):  # a stream in memory has no file
            self._file = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write text; whole lines leave at once.

        Raises:
            TypeError: It is no text; libraries try bytes to learn what a stream takes.
        """
        if not isinstance(text, str):
            raise TypeError(f"a stream of text takes no {type(text).__name__}")
        if self.gone or not text:
            return len(text)
        self.used = True
        if self._file < 0:
            return self.stream.write(text)
        with self._lock:
            self._left += text.encode(self.stream.encoding, self.stream.errors or "strict")
            del self._left[:-KEPT_BYTES]
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Send what is left, as far as the file takes it."""
        stuck = isinstance(self.error, BlockingIOError)
        self._send(0.0 if stuck else PATIENCE_S)

    def settle(self) -> str:
        """Send what is left for the last time and return what the file did not take."""
        self._send(LAST_PATIENCE_S)
        lost = bytes(self._left).decode(self.stream.encoding or "utf-8", "replace")
        if self.gone or lost:
            self._left.clear()
            self._give_up()
        return lost

    def _send(self, patience_s: float) -> None:
        with self._lock:
            try:
                self.stream.flush()  # what was written past this object comes first
                while self._left:
                    self._write_some(patience_s)
                self.error = None
            except OSError as error:
                self.error = error
                closed_terminal = error.errno == errno.EIO and stat.S_ISCHR(os.fstat(self._file).st_mode)
                if error.errno in _READER_GONE or closed_terminal:
                    self.gone = True
                    self._left.clear()

    def _write_some(self, patience_s: float) -> None:
        end = time.monotonic() + patience_s
        while True:
            try:
                sent = os.write(self._file, self._left)
                break
            except BlockingIOError:
                rest = end - time.monotonic()
                if rest <= 0 or not select.select((), (self._file,), (), rest)[1]:
                    raise
        del self._left[:sent]

    def _give_up(self) -> None:
        """Let what is written from now on vanish: Python would complain of it once more when it ends."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._file)
        os.close(null)


def steady(stream: TextIO) -> Steady:
    """Return the steady form of a stream, also of one that a bar of rich has replaced meanwhile."""
    stream = getattr(stream, "rich_proxied_file", stream)
    return stream if isinstance(stream, Steady) else Steady(stream)


@contextmanager
def steadied() -> Iterator[tuple[Steady, Steady]]:
    """Have everything that writes to stdout or stderr write to steady ones meanwhile.

    One that was closed by the shell (``2>&-``) is Python's None, which libraries do not expect: it leads nowhere.
    """
    before = sys.stdout, sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        out, err = (steady(stream or nowhere) for stream in before)
        sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
        try:
            yield out, err
        finally:
            sys.stdout, sys.stderr = before
