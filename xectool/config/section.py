"""What every section of the schema shares: frozen, no unknown keys, strict numbers, a unit and a bound a field."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, TypedDict, Unpack

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?")
_HUGE = 10**300
_QUOTED = 80
_TRUE = {"yes", "on"}
_FALSE = {"no", "off"}


class Bounds(TypedDict, total=False):
    """Inclusive and exclusive limits of a number."""

    gt: float
    ge: float
    lt: float
    le: float


def knob(default: Any, description: str, unit: str = "", code: str = "", **bounds: Unpack[Bounds]) -> Any:
    """Declare one configuration key.

    Args:
        default: Value where the file is silent.
        description: One sentence for ``config init``, the JSON schema and ``explain``.
        unit: Unit of a number (``"1"`` where it is dimensionless), empty for anything else.
        code: Rule that a violation is reported under; by default CFG-02 for types and CFG-03 for bounds.
        **bounds: Limits of a number.
    """
    extra: dict[str, Any] = {"unit": unit} | ({"code": code} if code else {})
    read = default == "auto"  # what it stands for may depend on other keys, which are read before it
    return Field(default=default, validate_default=read, description=description, json_schema_extra=extra, **bounds)


def section(factory: Any, description: str) -> Any:
    """Declare one nested section, filled with its defaults where the file is silent."""
    return Field(default_factory=factory, description=description)


class Section(BaseModel):
    """Abstract base of all sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=False)

    @field_validator("*")
    @classmethod
    def _can_be_named(cls, value: object) -> object:
        """Refuse what no file, tree or branch can be called: the system's calls raise an error of their own at it."""
        if (whole := _without_null(value)) != value:
            raise refuse(f"a null character, which no name can have, in {value!r}", whole or None)
        return value


def _without_null(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "")
    if isinstance(value, tuple | list):
        return type(value)(map(_without_null, value))
    return {key: _without_null(part) for key, part in value.items()} if isinstance(value, dict) else value


def describe(value: object) -> str:
    """Name a YAML value with its type, as messages quote it.

    >>> describe("abc"), describe(None), describe(True)
    ("string 'abc'", 'null', 'boolean true')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean {str(value).lower()}"
    names = {int: "integer", float: "float", str: "string", list: "list", tuple: "list", dict: "mapping"}
    text = repr(value) if not isinstance(value, int) or abs(value) < _HUGE else "beyond 1e300"
    return f"{names.get(type(value), type(value).__name__)} {text if len(text) < _QUOTED else text[:_QUOTED] + ' ...'}"


def read_float(value: object) -> float:
    """Return a number as float; the string form of ``1e-4`` that YAML 1.1 leaves behind counts as one."""
    if isinstance(value, str) and NUMBER.fullmatch(value) and not _LEADING_ZERO.fullmatch(value):
        number = float(value.replace("_", ""))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        # An integer beyond the range of float is no number a run can use.
        number = float(value) if abs(value) < _HUGE else math.inf
    else:
        raise _wrong("float", value)
    if not math.isfinite(number):
        raise refuse(f"must be finite, got {describe(value)}")
    return number


def read_int(value: object) -> int:
    """Return an integer as it is; a boolean, a float or a spelling with a second meaning is refused."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value.replace("_", ""))
    raise _wrong("integer", value)


def read_bool(value: object) -> bool:
    """Return a boolean; ``yes, no, on, off`` count, as YAML 1.1 files rely on them."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise _wrong("boolean", value)


def read_str(value: object) -> str:
    """Return a string as it is; a number is not turned into one."""
    if isinstance(value, str):
        return value
    raise _wrong("string", value)


def read_optional_str(value: object) -> str | None:
    """Return a string, or None for null and for the empty string older files write instead."""
    return None if value is None or value == "" else read_str(value)


def _wrong(expected: str, value: object) -> PydanticCustomError:
    message = f"expected {expected}, got {describe(value)}"
    if isinstance(value, str) and _LEADING_ZERO.fullmatch(value):
        message += f" (YAML 1.1 reads a leading zero as octal; write {int(value.replace('_', ''))})"
    elif isinstance(value, str) and _SEXAGESIMAL.fullmatch(value):
        message += " (YAML 1.1 reads a colon as base 60; write the plain number)"
    # The message is passed as a value: braces in it must not be read as a template.
    return PydanticCustomError("xectool_type", "{message}", {"message": message})


def refuse(message: str, instead: object = None, part: object = None) -> PydanticCustomError:
    """Return the error a field validator raises.

    Args:
        message: Its text, taken literally.
        instead: A value that would be right.
        part: Of a mapping, the key whose value is wrong.
    """
    return PydanticCustomError("xectool_value", "{message}", {"message": message, "instead": instead, "part": part})


Float = Annotated[float, BeforeValidator(read_float)]
Int = Annotated[int, BeforeValidator(read_int)]
Bool = Annotated[bool, BeforeValidator(read_bool)]
Str = Annotated[str, BeforeValidator(read_str)]
OptionalStr = Annotated[str | None, BeforeValidator(read_optional_str)]
