"""Dotted keys: ``section.key=value`` of ``--set`` and ``section.key: value`` lines of a file, put in their place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from xectool.config.document import SET, Document, KeyPath, parse_value
from xectool.config.invalid import NOTE, place
from xectool.config.keys import keys_of, nearest_key
from xectool.config.root import KINDS
from xectool.config.serialize import inline_yaml
from xectool.errors import ConfigError, in_shell
from xectool.findings import Finding, Severity


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Write ``section.key=value`` strings into a document.

    Raises:
        ConfigError: One is not of this form or its value is not YAML.
    """
    for text in overrides:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key or not all(key.split(".")):
            raise ConfigError(
                f"expected section.key=value, got '{text}'",
                where=SET,
                fix=_written_out(text, document),
                code="CFG-01",
            )
        given, path = partial(_given, key), tuple(key.split("."))
        if document.has(path) and document.origin(key) != SET:
            document.overridden.add(path)
        _write(document, key, parse_value(value, f"{SET} {key}", given), SET)


def key_of(setting: str) -> str:
    """Return the key of ``key=value``."""
    return setting.partition("=")[0].strip()


def known_to(kind: str, overrides: Sequence[str]) -> list[str]:
    """Return those overrides whose key, or section, a kind has.

    >>> known_to("mae", ["training.lr=1e-4", "tasks.energy.enabled=true", "model.hidden_dim=8"])
    ['training.lr=1e-4']
    """
    known = keys_of(kind)
    return [text for text in overrides if key_of(text) in known]


def naming(run_name: str) -> str:
    """Return the override that gives a run its name, quoted, whatever YAML would read in it.

    >>> naming("2024")
    'mlflow.run_name="2024"'
    """
    return f"mlflow.run_name={json.dumps(run_name)}"


def _written_out(text: str, document: Document) -> str:
    """Return the setting that was meant: its key, with the value that was given in another form, or the one it has."""
    key, value = re.fullmatch(r"[\s.]*([\w.]*)[\s:=]*(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    written = document.get(("kind",))
    kind = written if isinstance(written, str) and written in KINDS else next(iter(KINDS))
    key = re.sub(r"\.+", ".", key).strip(".")
    known = keys_of(kind).get(key) or keys_of(kind).get(nearest_key(key, kind) or "" if key else "")
    if known is None or known.is_section:
        return "xectool config schema   # lists the keys: --set section.key=value"
    path = tuple(known.dotted.split("."))
    own = value or inline_yaml(document.get(path) if document.has(path) else known.default())
    return _given(known.dotted, own)


def _given(key: str, value: str) -> str:
    return f"{SET} {in_shell(f'{key}={value}')}"


def expand_dotted_keys(document: Document) -> list[Finding]:
    """Move ``section.key: value`` lines, the form of a pasted fix, to their section; such a line goes before it.

    Raises:
        ConfigError: A section on the way is a plain value.
    """
    notes = []
    while path := _first_dotted(document.values, ()):
        origin = document.origins.get(path, document.source)
        key, value = ".".join(path), document.pop(path)
        if document.has(tuple(key.split("."))) and not isinstance(value, dict):
            problem = f"{key} of {document.origin(key)} is replaced by this line"
            notes.append(Finding(NOTE, Severity.INFO, problem, place(origin, key), fix="keep one of the two"))
        _write(document, key, value, origin)
    return notes


def _write(document: Document, key: str, value: Any, origin: str) -> None:
    path = tuple(key.split("."))
    document.pasted.add(path)
    if isinstance(value, dict) and isinstance(document.get(path), dict) and _is_section(key):
        for name, inner in value.items():
            _write(document, f"{key}.{name}", inner, origin)
        return
    document.put(path, value, origin)


def _is_section(key: str) -> bool:
    return any(key in keys_of(kind) and keys_of(kind)[key].is_section for kind in KINDS)


def _first_dotted(values: Mapping[str, Any], path: KeyPath) -> KeyPath | None:
    for name, value in values.items():
        if "." in name:
            return (*path, name)
        if isinstance(value, dict) and (inner := _first_dotted(value, (*path, name))):
            return inner
    return None
