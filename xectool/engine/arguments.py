"""Arguments of the documented functions: each is what its annotation says, or is refused before anything runs."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from numbers import Integral, Real
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Any, Final, ParamSpec, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from xectool.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

_LONGEST: Final = 200

_PLAIN: dict[Any, tuple[Any, str]] = {
    str: (str, "a string"),
    Path: ((str, os.PathLike), "a path"),
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    NoneType: (NoneType, "None"),
}


class _Unfit(Exception):
    """A value is not of the type that is asked for."""


def typed(function: Callable[P, R], name: str = "") -> Callable[P, R]:
    """Return the function with its arguments checked against its annotations first; the same one each time.

    Paths are taken where strings are, numbers of NumPy where Python's are, and any collection with an order as a list.

    Args:
        function: A function whose annotations can be resolved when it is called.
        name: What its caller knows it by, such as ``engine.train``; by default its own, and that of its module.

    Raises:
        UsageError: By the function that is returned, for a value of another type.
    """
    found = _checked(function, name or f"{function.__module__.removeprefix('xectool.')}.{function.__name__}")
    if name:  # where it is public, so that it can be sent to another process
        module, _, found.__qualname__ = name.rpartition(".")
        found.__module__ = f"xectool.{module}"
    return cast(Callable[P, R], found)


@functools.cache
def _checked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}; it is {name}({_named(function)})") from None
        hints = get_type_hints(function)
        for key, value in bound.arguments.items():
            many = bound.signature.parameters[key].kind is inspect.Parameter.VAR_POSITIONAL
            hint = GenericAlias(tuple, (hints[key], ...)) if many else hints[key]
            bound.arguments[key] = _taken(value, hint, (name, key))
        return function(*bound.args, **bound.kwargs)

    return checked


def _named(function: Callable[..., Any]) -> str:
    """Return the names of the arguments; those after ``*`` are given by name.

    >>> _named(lambda config, *, overrides=(): None)
    'config, *, overrides'
    """
    marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = list(inspect.signature(function).parameters.values())
    names = [marks.get(item.kind, "") + item.name for item in parameters]
    by_name = next((at for at, item in enumerate(parameters) if item.kind is inspect.Parameter.KEYWORD_ONLY), None)
    if by_name is not None and not any(name.startswith("*") for name in names[:by_name]):
        names.insert(by_name, "*")
    return ", ".join(names)


def _taken(value: Any, hint: Any, place: tuple[str, str]) -> Any:
    """Return the value as the function takes it.

    Raises:
        UsageError: It is of another type.
    """
    function, key = place
    try:
        return _fitted(value, hint, place)
    except _Unfit:
        raise UsageError(
            f"{key} is {_short(value)} ({type(value).__name__}), not {_said(hint)}",
            where=f"{key} of {function}",
            fix=_meant(value, hint, place) or f"help({function})",
        ) from None


def _fitted(value: Any, hint: Any, place: tuple[str, str]) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _fitted_one(value, get_args(hint), place)
    if origin is tuple and get_args(hint)[-1] is not Ellipsis:
        each, parts = get_args(hint), _parts(value)
        if len(parts) != len(each):
            raise _Unfit
        return tuple(_fitted(part, kind, place) for part, kind in zip(parts, each, strict=True))
    if origin in (tuple, Sequence):
        return tuple(_fitted(part, get_args(hint)[0], place) for part in _parts(value))
    if dataclasses.is_dataclass(hint):
        return _fitted_fields(value, hint)
    return _fitted_plain(value, hint)


def _parts(value: Any) -> tuple[Any, ...]:
    """Return the parts of a collection that has an order."""
    if not isinstance(value, Collection) or isinstance(value, (str, bytes, Mapping, Set)):
        raise _Unfit
    try:
        return tuple(value)
    except TypeError:  # an array without dimensions
        raise _Unfit from None


def _fitted_one(value: Any, hints: tuple[Any, ...], place: tuple[str, str]) -> Any:
    """Return the value as the first of the types that takes it; as a string last, which a path would become."""
    for hint in sorted(hints, key=lambda hint: hint is str and not isinstance(value, str)):
        try:
            return _fitted(value, hint, place)
        except _Unfit:
            continue
    raise _Unfit


def _fitted_fields(value: Any, hint: Any) -> Any:
    if not isinstance(value, hint):
        raise _Unfit
    hints = get_type_hints(hint)
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(hint)}
    return dataclasses.replace(value, **{key: _taken(fields[key], hints[key], (hint.__name__, key)) for key in fields})


def _fitted_plain(value: Any, hint: Any) -> Any:
    if hint is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if hint in (int, float) and isinstance(value, bool):
        raise _Unfit
    if hint in _PLAIN and not isinstance(value, _PLAIN[hint][0]):
        raise _Unfit
    if hint is int:
        return int(value)
    if hint is float and not isinstance(value, int):
        return float(value)
    if getattr(hint, "_is_protocol", False) and not all(hasattr(value, name) for name in _asked(hint)):
        raise _Unfit
    if get_origin(hint) is Callable and not callable(value):
        raise _Unfit
    return value


def _asked(protocol: Any) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]


def _said(hint: Any) -> str:
    """Return a type in words.

    >>> _said(Path | str | None), _said(Sequence[str]), _said(tuple[float, float])
    ('a path or None', 'a list (each a string)', 'a list of 2 (each a number)')
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [part for part in parts if not (part is str and Path in parts)]
        return " or ".join(map(_said, kinds))
    if origin in (tuple, Sequence):
        length = f" of {len(parts)}" if origin is tuple and parts[-1] is not Ellipsis else ""
        return f"a list{length} (each {_said(parts[0])})"
    if hint in _PLAIN:
        return _PLAIN[hint][1]
    return "a function" if origin is Callable else f"of type {getattr(hint, '__name__', hint)}"


def _meant(value: Any, hint: Any, place: tuple[str, str]) -> str:
    """Return the argument to write instead, if the value holds what fits; nothing otherwise.

    >>> _meant("a=1", Sequence[str], ("f", "overrides")), _meant("20", int, ("f", "steps"))
    ("overrides=['a=1']", 'steps=20')
    """
    for turned in (lambda: [value], lambda: _literal(value), lambda: _whole(value), lambda: _only(value)):
        try:
            said = turned()
            if not isinstance(value, Real) or said == value:
                return f"{place[1]}={_fitted_again(said, hint, place)!r}"
        except (_Unfit, UsageError, ValueError, TypeError, SyntaxError, OverflowError):
            continue
    return ""


def _literal(value: Any) -> Any:
    """Return what a short text is in Python; a long one could take all memory."""
    if len(value) > _LONGEST:
        raise _Unfit
    return ast.literal_eval(value)


def _whole(value: Any) -> int:
    if not isinstance(value, Real):
        raise _Unfit
    return int(f"{value:.0f}")


def _only(value: Any) -> Any:
    (part,) = value
    return part


def _fitted_again(value: Any, hint: Any, place: tuple[str, str]) -> Any:
    _fitted(value, hint, place)
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:56]} …"
