"""The stack of an unpickler, holding symbols."""

from __future__ import annotations

from typing import Any, Final

from xectool.checkpoint.inspection.rebuild import StorageOf
from xectool.checkpoint.inspection.symbols import Global, Unknown

MARK: Final = object()
_PLAIN_KEYS = (str, int, float, bool, bytes, type(None))


class Machine:
    """Values, marks and memo of one pickle; what is missing becomes an unknown value instead of an end.

    Args:
        storage_of: Returns the storage of a persistent id; None where pickles have none.
    """

    def __init__(self, storage_of: StorageOf | None) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.globals: list[Global] = []
        self.blobs: list[bytes] = []
        self.storage_of = storage_of
        self.result: Any = Unknown("the pickle has no end")
        self.problem = ""

    def push(self, value: Any) -> None:
        """Put a value on top."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Take the top value off."""
        if self.stack and self.stack[-1] is not MARK:
            return self.stack.pop()
        return self._lost("a value is missing on the stack")

    def pop_to_mark(self) -> list[Any]:
        """Take off all values above the last mark, and the mark."""
        found: list[Any] = []
        while self.stack:
            value = self.stack.pop()
            if value is MARK:
                return found[::-1]
            found.append(value)
        self._lost("a mark is missing on the stack")
        return found[::-1]

    def top(self) -> Any:
        """Return the top value."""
        return self.stack[-1] if self.stack and self.stack[-1] is not MARK else self._lost("the stack is empty")

    def fetch(self, module: Any, name: Any, position: int) -> Global:
        """Record that the pickle asks for a name, also where it is computed."""
        known = isinstance(module, str) and isinstance(name, str)
        found = Global(module, name, position) if known else Global("(computed)", "(computed)", position)
        self.globals.append(found)
        return found

    def persistent(self, identity: Any) -> Any:
        """Return what a persistent id stands for."""
        found = self.storage_of(identity) if self.storage_of is not None else None
        return Unknown("a persistent id") if found is None else found

    def _lost(self, problem: str) -> Unknown:
        self.problem = self.problem or f"damaged: {problem}"
        return Unknown(problem)


def key_of(value: Any) -> Any:
    """Return a dictionary key; one that is not plain is replaced by a name for it."""
    if isinstance(value, _PLAIN_KEYS):
        return value
    if isinstance(value, tuple) and all(isinstance(item, _PLAIN_KEYS) for item in value):
        return value
    return f"<{getattr(value, 'name', type(value).__name__)}>"
