"""What there is to say about one key or section of the schema, as text."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from xectool.config.keys import MOVED, Key, keys_of
from xectool.config.root import KINDS
from xectool.config.serialize import inline_yaml
from xectool.errors import in_shell

_NOTHING = ("null", "''", "[]", "{}")
_EXAMPLES = {
    "checkpoint.init_from": "PATH",
    "checkpoint.resume_from": "PATH",
    "checkpoint.save_steps": "1000",
    "data.cache_limit_gb": "100",
    "data.exclude": "[train.root:17, train.root:42]",
    "data.fiducial.w_max": "10",
    "data.prefetch_factor": "4",
    "data.train_path": "train.root",
    "data.val_path": "val.root",
    "export.onnx": "model.onnx",
    "guards.disable": "[G06]",
    "guards.hang_abort_s": "1800",
    "mlflow.run_name": "first",
    "mlflow.tracking_uri": "http://localhost:5000",
    "model.dim_feedforward": "1024",
    "model.mask_patterns.files": "[run.root]",
    "model.mask_patterns.origins": "[dead.txt]",
    "model.mask_patterns.runs": "[430000]",
    "model.mask_patterns.sensors": "[[17, 4092], [17]]",
    "model.outer_fine_pool": "[5, 3]",
    "model.sensor_positions_file": "positions.txt",
    "training.early_stop_patience": "10",
    "training.max_lr": "3e-4",
    "training.time.npho_threshold": "50",
    "validation.batch_size": "64",
    "validation.max_events": "10000",
}


@dataclass(frozen=True)
class KeyPage:
    """One key or section.

    Attributes:
        dotted: Its full name.
        title: What it is, in one line.
        text: Meaning, unit, default, bounds and allowed values; of a section, its keys.
        codes: Finding codes of the rules that look at it, as far as the schema says.
    """

    dotted: str
    title: str
    text: str
    codes: tuple[str, ...] = ()


def all_keys() -> tuple[str, ...]:
    """Return every key and section of any kind, dotted, in the order they are written."""
    return tuple(dict.fromkeys(dotted for kind in KINDS for dotted in keys_of(kind)))


def key_pages(name: str) -> tuple[KeyPage, ...]:
    """Return the page of a key by its dotted name, or of each key whose last name it is; older names count.

    >>> [page.dotted for page in key_pages("max_grad_norm")], [page.dotted for page in key_pages("lr")]
    (['training.grad_clip'], ['training.lr'])
    """
    asked = name.strip().removeprefix("--set").strip().partition("=")[0]
    known = all_keys()
    exact = asked if asked in known else MOVED.get(asked, "")
    found = [exact] if exact in known else [dotted for dotted in known if dotted.rpartition(".")[2] == asked]
    return tuple(_page(dotted) for dotted in found)


def _page(dotted: str) -> KeyPage:
    keys = {kind: keys_of(kind)[dotted] for kind in KINDS if dotted in keys_of(kind)}
    first = next(iter(keys.values()))
    only = "" if len(keys) == len(KINDS) else f" (kind {', '.join(keys)})"
    title = f"{dotted}: {first.field.description}{only}"
    if first.is_section:
        return KeyPage(dotted, title, "\n".join(_section_lines(dotted)))
    code = str(first.extra.get("code", ""))
    return KeyPage(dotted, title, "\n".join(_key_lines(first, keys)), (code,) if code else ())


def _section_lines(section: str) -> Iterator[str]:
    inside = [dotted for dotted in all_keys() if dotted.rpartition(".")[0] == section]
    width = max((len(dotted) for dotted in inside), default=0)
    for dotted in inside:
        key = next(keys_of(kind)[dotted] for kind in KINDS if dotted in keys_of(kind))
        yield f"{dotted:<{width}}  {key.field.description}"


def _key_lines(first: Key, keys: Mapping[str, Key]) -> Iterator[str]:
    unit = first.extra.get("unit")
    if unit and unit != "1":
        yield f"Unit: {unit}"
    defaults = {kind: inline_yaml(_plain(key.default())) for kind, key in keys.items()}
    if len(set(defaults.values())) == 1:
        yield f"Default: {next(iter(defaults.values()))}"
    else:
        yield f"Default: {', '.join(f'{value} ({kind})' for kind, value in defaults.items())}"
    if first.bounds:
        yield f"Bounds: {first.bounds}"
    allowed = allowed_values(first.field.annotation)
    if allowed:
        yield f"Allowed: {', '.join(allowed)}"
    default = next(iter(defaults.values()))
    value = default if default not in _NOTHING else _example(first, allowed)
    yield f"    --set {in_shell(f'{first.dotted}={value}')}"


def _example(key: Key, allowed: tuple[str, ...]) -> str:
    """Return a value to write for a key that is empty by default; a word in capitals is to be replaced."""
    if key.dotted in _EXAMPLES:
        return _EXAMPLES[key.dotted]
    return next((word for word in allowed if word != "null"), "VALUE")


def allowed_values(annotation: Any) -> tuple[str, ...]:
    """Return the words a key may take, in YAML's spelling; nothing for a key that takes any value of a type.

    >>> allowed_values(Literal["a", "b"] | None)
    ('a', 'b', 'null')
    """
    if get_origin(annotation) is Literal:
        return tuple(value if isinstance(value, str) else inline_yaml(value) for value in get_args(annotation))
    if get_origin(annotation) is Annotated:
        return allowed_values(get_args(annotation)[0])
    if annotation is bool:
        return ("true", "false")
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        words = [word for part in parts for word in allowed_values(part)]
        null = ("null",) if len(parts) < len(get_args(annotation)) else ()
        return (*words, *null) if words else ()
    return ()


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
