"""Find components by name; a miss names the nearest one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, cast

from xectool.errors import UsageError, XecError, did_you_mean
from xectool.registry.plugins import attempts, blamed, broken

T = TypeVar("T")


class Registry(Generic[T]):
    """Components of one family by name, imported on the first look-up.

    Args:
        family: What the components are, for messages: ``"loss"``, ``"task"``.
        package: Package whose import registers the components.
        plugin_family: Other packages add functions under the entry points ``xectool.<plugin_family>``; empty: none.
    """

    def __init__(self, family: str, package: str, plugin_family: str = "") -> None:
        self.family = family
        self.package = package
        self._plugin_family = plugin_family
        self._found: dict[str, T] = {}
        self._broken: dict[str, XecError] = {}  # only what is asked for stops a command

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
        if name in self._broken:
            raise self._broken[name]
        try:
            return self._found[name]
        except KeyError:
            hint = did_you_mean(name, self._found) or f"choose one of {', '.join(self.names())}"
            raise UsageError(f"unknown {self.family} '{name}'", fix=hint) from None

    def _load(self) -> None:
        importlib.import_module(self.package)
        family, self._plugin_family = self._plugin_family, ""  # once
        own = frozenset(self._found)
        for point, component in attempts(family) if family else ():
            if isinstance(component, XecError):
                self._broken[point.name] = component
            elif point.name in own:
                self._broken[point.name] = broken(point, f"has the name of a {self.family} of xectool")
            else:
                self._found[point.name] = cast("T", blamed(point, component))
