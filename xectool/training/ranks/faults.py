"""What a rank says when another one is gone, and how an error of one rank reaches the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import xectool.errors
from xectool.errors import WorldError, XecError

LOST: Final = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection was likely closed",
    "socket closed",
    "remote process exited",
    "failed to recv",
    "got error from peer",
    "connection refused",
)
PORT_TAKEN: Final = ("eaddrinuse", "address already in use")
TIMED_OUT: Final = ("timed out waiting", "timeout", "timed out after")
VICTIM: Final = "XT-RANK-LOST"
"""Code of an error that only says that another rank failed before."""


@contextmanager
def known_fault(where: str) -> Iterator[None]:
    """Raise `WorldError` in place of what `torch.distributed` raises when another rank is gone.

    Raises:
        WorldError: A rank is lost (XT-RANK-LOST), does not come (XT-RANK-TIMEOUT), or the port is taken (XT-PORT).
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        first = lines[0][:300] if lines else type(error).__name__
        if any(part in text.lower() for part in PORT_TAKEN):
            raise WorldError(
                f"the port the ranks are to meet at is taken: {first}",
                where=where,
                fix="ss -ltnp   # who has it; for torchrun: --rdzv-backend=c10d --rdzv-endpoint=localhost:0",
                code="XT-PORT",
            ) from error
        if any(part in text.lower() for part in LOST):
            raise WorldError(
                f"another rank is gone: {first}",
                where=where,
                fix="look at the rank that ended first; then go on with --resume auto",
                code=VICTIM,
            ) from error
        if any(part in text.lower() for part in TIMED_OUT) and _is_collective(error, text):
            raise WorldError(
                f"another rank did not come in time: {first}",
                where=where,
                fix="xectool diagnose status RUN   # names the rank that is elsewhere",
                code="XT-RANK-TIMEOUT",
            ) from error
        raise


def _is_collective(error: RuntimeError, text: str) -> bool:
    named = ("gloo", "nccl", "store", "wait", "rendezvous", "collective")
    return type(error).__name__.startswith("Dist") or any(part in text.lower() for part in named)


@contextmanager
def error_facts(facts: dict[str, str]) -> Iterator[None]:
    """Fill ``facts`` with what is raised inside the block; empty where nothing is."""
    try:
        yield
    except XecError as error:
        facts.update(as_facts(error))
        raise
    facts.clear()


def as_facts(error: XecError) -> dict[str, str]:
    """Return an error as plain strings; one of a kind of its own counts as what it is a kind of."""
    parts = {name: getattr(error, name) for name in ("problem", "where", "fix", "code")}
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == xectool.errors.__name__)
    return {"kind": kind.__name__, **parts}


def raised_elsewhere(facts: Mapping[str, str]) -> None:
    """Raise the error that ``facts`` describe; nothing where they are empty.

    Raises:
        XecError: As it was raised by another process.
    """
    if not facts:
        return
    kind = getattr(xectool.errors, facts.get("kind", ""), None)
    known = kind if isinstance(kind, type) and issubclass(kind, XecError) else WorldError
    raise known(
        facts.get("problem", ""), where=facts.get("where", ""), fix=facts.get("fix", ""), code=facts.get("code", VICTIM)
    )
