"""Find components by name; a miss names the nearest one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from xectool.errors import UsageError, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Components of one family by name, imported on the first look-up.

    Args:
        family: What the components are, for messages: ``"loss"``, ``"task"``.
        package: Package whose import registers the components.
    """

    def __init__(self, family: str, package: str) -> None:
        self.family = family
        self.package = package
        self._found: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that stores its component under ``name``.

        Raises:
            ValueError: The name is taken.
        """

        def add(component: T) -> T:
            if name in self._found:
                raise ValueError(f"{self.family} '{name}' is registered twice")
            self._found[name] = component
            return component

        return add

    def names(self) -> list[str]:
        """Return all names, sorted."""
        self._load()
        return sorted(self._found)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __getitem__(self, name: str) -> T:
        self._load()
        try:
            return self._found[name]
        except KeyError:
            hint = did_you_mean(name, self._found)
            raise UsageError(
                f"unknown {self.family} '{name}'",
                where=f"known: {', '.join(self.names())}",
                fix=hint or f"choose one of {', '.join(self.names())}",
            ) from None

    def _load(self) -> None:
        importlib.import_module(self.package)
