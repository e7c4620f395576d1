"""From a schema error to what the user needs: place, key, value, the nearest key, and a line to paste."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from xectool.config.document import SET, Document
from xectool.config.invalid import config_finding
from xectool.config.keys import keys_of, nearest_key
from xectool.config.root import KINDS
from xectool.config.section import describe
from xectool.config.serialize import dotted_values, inline_yaml
from xectool.errors import did_you_mean
from xectool.findings import Finding

_COMPARISONS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}
# What a bound means, where the number alone does not say it.
_MEANING = {
    "checkpoint.save_interval": "save_interval does not change validation frequency",
    "training.ema_decay": "null for no average",
    "training.grad_accum_steps": "effective batch = batch_size x grad_accum_steps x ranks",
    "training.grad_clip": "0 disables clipping",
}
_SHOWN_KEYS = 12
_LIKE_TRUE = ("y", "t", "on", "1")
_LIKE_FALSE = ("n", "f", "off", "0")


def explain(error: ValidationError, document: Document, kind: str) -> tuple[Finding, ...]:
    """Return one finding for each thing a section refused."""
    return tuple(_finding(detail, document, kind) for detail in error.errors(include_url=False))


def dotted_key(detail: ErrorDetails, kind: str) -> str:
    """Return the dotted key an error is about, without list positions and the branches of a union."""
    parts = [part for part in detail["loc"] if isinstance(part, str)]
    known = keys_of(kind)
    heads = (".".join(parts[:size]) for size in range(1, len(parts)))
    return next((head for head in heads if head in known and not known[head].is_section), ".".join(parts))


def unknown_key(key: str, document: Document, kind: str) -> Finding:
    """Return the finding for a key that is not in the schema of this kind."""
    value, origin = document.get(tuple(key.split("."))), document.origin(key)
    elsewhere = [other for other in KINDS if other != kind and key in keys_of(other)]
    if elsewhere:
        problem = f"unknown key {key}: kind {kind} has none, only kind {' and '.join(elsewhere)}"
        return config_finding("CFG-01", problem, origin, key, f"delete {key}   # it is of kind {elsewhere[0]}")
    nearest = nearest_key(key, kind)
    if nearest is not None:
        plain = not isinstance(value, dict)
        twice = origin != SET and _is_in_file(nearest, document)
        if plain and (twice or keys_of(kind)[nearest].is_section):  # nothing, or no section, would empty the right one
            return config_finding("CFG-01", f"unknown key {key}, did you mean {nearest}?", origin, key, f"delete {key}")
        fix = f"{nearest}: {inline_yaml(value)}" if plain else _renamed(key, nearest, document, kind)
        return config_finding("CFG-01", f"unknown key {key}, did you mean {nearest}?", origin, key, fix)
    return config_finding("CFG-01", f"unknown key {key}", origin, key, f"delete {key}{_known_beside(key, kind)}")


def _is_in_file(key: str, document: Document) -> bool:
    """Return whether the file itself has a key."""
    path = tuple(key.split("."))
    return path in document.overridden or (document.has(path) and document.origin(key) != SET)


def _renamed(key: str, meant: str, document: Document, kind: str) -> str:
    """Return a section under its right name, with all that is in it: as its line, or in words where it has several."""
    path, (parent, _, leaf) = tuple(key.split(".")), meant.rpartition(".")
    own, content = document.origin(key), _corrected(document.get(path), meant, kind)
    if document.has(tuple(meant.split("."))):
        inner = dotted_values(content, f"{meant}.")
        lacking = {name: value for name, value in inner.items() if own == SET or not _is_in_file(name, document)}
        return "\n".join(f"{name}: {inline_yaml(value)}" for name, value in lacking.items()) or f"delete {key}"
    if any(place != own for inner, place in document.origins.items() if inner[: len(path)] == path):
        return f"rename {key} to {meant}" if key.rpartition(".")[0] == parent else f"move {key} to {meant}, whole"
    value = inline_yaml(content)
    beside = bool(parent) and own != SET and key.rpartition(".")[0] == parent
    return f"{leaf}: {value}   # under {parent}" if beside else f"{meant}: {value}"


def _corrected(section: dict[str, Any], name: str, kind: str) -> dict[str, Any]:
    """Return what is in a section, each misspelt key of it under its right name, so that one line mends them all."""
    known, found = keys_of(kind), dict[str, Any]()
    for leaf, value in section.items():
        key = f"{name}.{leaf}"
        parent, _, right = (key if key in known else nearest_key(key, kind) or key).rpartition(".")
        kept = leaf if parent != name or (right != leaf and right in (*section, *found)) else right
        inside = isinstance(value, dict) and f"{name}.{kept}" in known and known[f"{name}.{kept}"].is_section
        found[kept] = _corrected(value, f"{name}.{kept}", kind) if inside else value
    return found


def _known_beside(key: str, kind: str) -> str:
    sections = {known.parent for known in keys_of(kind).values()}
    parent = key.rpartition(".")[0]
    while parent not in sections:
        parent = parent.rpartition(".")[0]
    names = [known.leaf for known in keys_of(kind).values() if known.parent == parent]
    shown = ", ".join(names[:_SHOWN_KEYS]) + (", ..." if len(names) > _SHOWN_KEYS else "")
    return f"; {parent or 'the top level'} knows {shown}" if names else ""


def _as_written(document: Document, key: str) -> str:
    """Return the key that was written where ``--set`` made the unknown section around it."""
    path = tuple(key.split("."))
    within = [inner for inner in document.origins if inner[: len(path)] == path]
    return ".".join(within[0]) if within and path not in within else key


def _origin(document: Document, key: str, part: object) -> str:
    """Return where a value comes from, or what is within the part of it that is wrong."""
    path = (*key.split("."), str(part))
    within = (place for inner, place in document.origins.items() if inner[: len(path)] == path)
    return document.origins.get(path) or next(within, document.origin(key))


def _finding(detail: ErrorDetails, document: Document, kind: str) -> Finding:
    key = dotted_key(detail, kind)
    if detail["type"] == "extra_forbidden":
        key = _as_written(document, key)
        return unknown_key(key, document, kind)
    value = detail["input"]
    context = detail.get("ctx", {})
    origin = _origin(document, key, context.get("part"))
    known = keys_of(kind).get(key)
    code = str(known.extra.get("code", "")) if known else ""
    if detail["type"] == "xectool_type":
        fix = _switch(key, value) if detail["msg"].startswith("expected boolean") else _fix(key, kind)
        return config_finding("CFG-02", f"{key}: {detail['msg']}", origin, key, fix)
    if detail["type"] in _COMPARISONS:
        sign, name = _COMPARISONS[detail["type"]]
        limit = detail["ctx"][name]
        meaning = f" ({_MEANING[key]})" if key in _MEANING else ""
        problem = f"{key} must be {sign} {limit:g}, got {describe(value).partition(' ')[2]}{meaning}"
        return config_finding(code or "CFG-03", problem, origin, key, _fix(key, kind))
    if detail["type"] == "literal_error":
        return _choice(key, value, origin, kind)
    if detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
        problem = f"{key}: expected a section with keys, got {describe(value)}"
        return config_finding("CFG-02", problem, origin, key, _section_fix(key, value, kind))
    instead = context.get("instead")
    fix = _fix(key, kind) if instead is None else f"{key}: {inline_yaml(instead)}"
    return config_finding(code or "CFG-03", f"{key}: {detail['msg']}", origin, key, fix)


def _switch(key: str, value: Any) -> str:
    """Return the boolean that a value which is none begins like, else both: its default may be what was not meant."""
    text = "" if value is None else str(value).lower()
    if text.startswith(_LIKE_TRUE):
        return f"{key}: true"
    return f"{key}: false   # or true" if text.startswith(_LIKE_FALSE) else f"{key}: true   # or false"


def _section_fix(key: str, value: Any, kind: str) -> str:
    """Return the section with its first key that takes such a value, a switch or names; else the section empty."""
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    taking = (bool,) if isinstance(value, bool) else (list, tuple) if texts else ()
    inner = [known for known in keys_of(kind).values() if known.parent == key and not known.is_section]
    fitting = [known.leaf for known in inner if isinstance(known.default(), taking)]
    return f"{key}: {{{fitting[0]}: {inline_yaml(value)}}}" if fitting else f"{key}:"


def _choice(key: str, value: Any, origin: str, kind: str) -> Finding:
    known = keys_of(kind)[key]
    choices = _choices(known.field.annotation)
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    problem = f"{key}: one of {', '.join(choices)}; got {describe(value)}" + (f", {hint}" if hint else "")
    fix = f"{key}: {inline_yaml(hint.split(chr(39))[1] if hint else known.default())}"
    return config_finding(str(known.extra.get("code", "CFG-05")), problem, origin, key, fix)


def _choices(annotation: Any) -> Sequence[str]:
    found: list[str] = []
    for item in get_args(annotation):
        found += [item] if isinstance(item, str) else _choices(item)
    return found


def _fix(key: str, kind: str) -> str:
    known = keys_of(kind).get(key)
    if known is None or known.is_section:
        return f"correct {key}"
    limits = f"  # {known.bounds}" if known.bounds else ""
    return f"{key}: {inline_yaml(known.default())}{limits}"
