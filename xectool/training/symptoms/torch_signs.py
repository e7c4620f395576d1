"""G17, G29, G30: what torch says by logs, warnings and errors, put on record."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch

from xectool.errors import DeviceError

LOGGERS: Final = ("torch._dynamo", "torch._inductor")
_RECOMPILE: Final = re.compile(r"hit config\.(recompile_limit|cache_size_limit)")
_CUDAGRAPH: Final = re.compile(r"skipping cudagraphs due to (.*)")
_NOT_DETERMINISTIC: Final = re.compile(r"(\S+) does not have a deterministic implementation")
Say = Callable[..., None]


class CompilerLog(logging.Handler):
    """G17: reads the compiler's own log while entered.

    Args:
        say: Called as ``say(kind, message, **data)``.
        shown: Whether its warnings go on to the terminal, too; errors, and what TORCH_LOGS asks for, always do.
    """

    def __init__(self, say: Say, shown: bool = True) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._shown = shown or "TORCH_LOGS" in os.environ
        self._stack = ExitStack()
        self._skips: Counter[str] = Counter()

    def __enter__(self) -> CompilerLog:
        for logger in map(logging.getLogger, LOGGERS):
            for handler in () if self._shown else logger.handlers:
                self._stack.callback(handler.setLevel, handler.level)
                handler.setLevel(max(logging.ERROR, handler.level))
            logger.addHandler(self)
            self._stack.callback(logger.removeHandler, self)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Put one line of the log on record if it means something."""
        text = record.getMessage()
        if _RECOMPILE.search(text):
            reason = next((line.strip() for line in text.splitlines() if "last reason" in line), text.splitlines()[0])
            self._say("recompile_limit", f"torch.compile gave up: {reason}", reason=reason)
        skipped = _CUDAGRAPH.search(text)
        if skipped:
            self._skips[skipped[1]] += 1
            count = sum(self._skips.values())
            if count == 1:
                self._say("cudagraph_skip", f"runs without CUDA graphs: {skipped[1]}", count=count, cause=skipped[1])


def compile_is_suppressed() -> bool:
    """Return whether failures of the compiler are hidden, so that parts run eagerly unseen."""
    return os.environ.get("TORCHDYNAMO_SUPPRESS_ERRORS") == "1" or bool(torch._dynamo.config.suppress_errors)


class TorchWarnings:
    """G29: counts the warnings of torch while entered; each is shown as before.

    Args:
        say: Called as ``say(kind, message, **data)`` with the first of each text.
    """

    def __init__(self, say: Say) -> None:
        self.counts: Counter[str] = Counter()
        self._say = say
        self._stack = ExitStack()

    def __enter__(self) -> TorchWarnings:
        previous = warnings.showwarning

        def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
            self.note(str(message), filename)
            previous(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        self._stack.callback(setattr, warnings, "showwarning", previous)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def note(self, text: str, filename: str) -> None:
        """Count one warning if it is about torch."""
        if f"{os.sep}torch{os.sep}" not in filename and "torch" not in text:
            return
        text = text.splitlines()[0][:200] if text else ""
        self.counts[text] += 1
        if self.counts[text] == 1:
            self._say("torch_warning", "", text=text, count=1)


@contextmanager
def determinism_faults(say: Say) -> Iterator[None]:
    """G30: raise `DeviceError` in place of what torch raises at an operation without a deterministic form.

    Raises:
        DeviceError: ``training.deterministic`` cannot be kept; names the operation.
    """
    try:
        yield
    except RuntimeError as error:
        found = _NOT_DETERMINISTIC.search(str(error))
        if found is None:
            raise
        say("determinism", "", op=found[1])
        raise DeviceError(
            f"{found[1]} has no deterministic implementation on this device",
            where="training.deterministic: true",
            fix="--set training.deterministic=false",
            code="XT-DETERMINISM",
        ) from error
