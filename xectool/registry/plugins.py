"""What other installed packages bring: components under the entry point groups ``xectool.<family>``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, wraps
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from xectool.errors import UsageError, XecError

FAMILIES: Final = ("checks", "rules", "kinds", "models", "tasks")


class BlamingPlugin:
    """Names the plugin in whatever goes wrong inside the ``with`` block.

    Args:
        point: The plugin's entry point.
        doing: What it was asked for.

    Raises:
        UsageError: Anything but an `XecError`, which passes, was raised inside.
    """

    def __init__(self, point: EntryPoint, doing: str) -> None:
        self.point, self.doing = point, doing

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Turn an error of the plugin into one that names it."""
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, XecError):
            raise broken(self.point, f"failed while {self.doing}: {type(error).__name__}: {error}") from error


def broken(point: EntryPoint, why: str) -> UsageError:
    """Return the error that names a plugin."""
    package = point.dist.name if point.dist is not None else "the package it came with"
    return UsageError(
        f"the plugin '{point.name}' of {package} {why}",
        where=f"entry point {point.name} = {point.value} of the group {point.group}",
        fix=f"pip uninstall {package}   # or tell its authors",
        code="XT-PLUGIN",
    )


def plugins(family: str) -> list[tuple[EntryPoint, Any]]:
    """Return what installed packages bring of a family, by the name of the entry point, then of the package.

    Raises:
        UsageError: One cannot be loaded, or two have the same name.
    """
    found = []
    for point, component in attempts(family):
        if isinstance(component, XecError):
            raise component
        found.append((point, component))
    return found


def attempts(family: str) -> Iterator[tuple[EntryPoint, Any]]:
    """Yield the same, with the error in place of a component that cannot be loaded or has the name of another one."""
    values: dict[str, str] = {}
    for point in _entry_points(family):
        try:
            if point.name in values:
                raise broken(point, f"has the name of another one, {values[point.name]}")
            values[point.name] = point.value
            with BlamingPlugin(point, "it was loaded"):
                component = point.load()
        except XecError as error:
            yield point, error
        else:
            yield point, component


def are_there() -> bool:
    """Return whether any installed package brings a plugin of any family; imports none."""
    return any(_entry_points(family) for family in FAMILIES)


def plugin_files() -> dict[str, dict[str, Path]]:
    """Return the source files of every package that brings a plugin of any family, by their names in it; imports none.

    Of a namespace package, which may be of others, it is the package in it.
    """
    points = [point for family in FAMILIES for point in _entry_points(family)]
    return {name: _sources(name) for name in sorted({_package(point.module) for point in points})}


def _package(module: str) -> str:
    """Return the first package above a module that is no namespace, or the module."""
    parts = module.split(".")
    for depth in range(1, len(parts)):
        name = ".".join(parts[:depth])
        spec = _spec(name)
        if spec is None or spec.has_location:
            return name
    return module


def _sources(package: str) -> dict[str, Path]:
    spec = _spec(package)
    if spec is not None and spec.submodule_search_locations:
        return {name: path for place in spec.submodule_search_locations for name, path in python_files(place).items()}
    return {Path(spec.origin).name: Path(spec.origin)} if spec is not None and spec.has_location and spec.origin else {}


def _spec(name: str) -> ModuleSpec | None:
    """Return where a module lies; None where Python does not know: it is not there, or was made by a program."""
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        return None


def python_files(folder: str | Path) -> dict[str, Path]:
    """Return the files of a package by their names in it, but those of a name or folder with a dot in front.

    An editor's are such: Emacs locks a file by a link ``.#name.py`` to nothing.
    """
    found = sorted((path.relative_to(folder), path) for path in Path(folder).rglob("*.py"))
    return {str(name): path for name, path in found if not any(part.startswith(".") for part in name.parts)}


@cache
def _entry_points(family: str) -> list[EntryPoint]:
    # looks into every installed package: once a process
    return sorted(entry_points(group=f"xectool.{family}"), key=lambda point: (point.name, point.value))


def blamed(point: EntryPoint, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a plugin with its errors named."""

    @wraps(function, updated=())
    def called(*args: Any, **kwargs: Any) -> Any:
        with BlamingPlugin(point, "it was used"):
            return function(*args, **kwargs)

    return called
