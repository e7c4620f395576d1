"""What other installed packages bring: components under the entry point groups ``xectool.<family>``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
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
    found: dict[str, tuple[EntryPoint, Any]] = {}
    for point in _entry_points(family):
        if point.name in found:
            raise broken(point, f"has the name of another one, {found[point.name][0].value}")
        with BlamingPlugin(point, "it was loaded"):
            found[point.name] = (point, point.load())
    return list(found.values())


def plugin_files() -> dict[str, list[Path]]:
    """Return the source files of every package that brings a plugin of any family, by its name; imports none."""
    points = [point for family in FAMILIES for point in _entry_points(family)]
    return {name: _sources(name) for name in sorted({point.module.partition(".")[0] for point in points})}


def _sources(package: str) -> list[Path]:
    spec = find_spec(package)
    if spec is not None and spec.submodule_search_locations:
        return sorted(path for place in spec.submodule_search_locations for path in Path(place).rglob("*.py"))
    return [Path(spec.origin)] if spec is not None and spec.origin else []


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
