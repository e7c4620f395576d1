"""The YAML text ``config init`` writes: every key with its value, unit, bound and meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xectool.config.document import Document
from xectool.config.keys import Key, keys_of
from xectool.config.load import config_from_dict
from xectool.config.platform import Platform
from xectool.config.presets import PRESETS, Preset
from xectool.config.root import KINDS, RunConfig, refuse_broken
from xectool.config.rules.capacity import HostMemorySuffices
from xectool.config.rules.platform import Situation
from xectool.config.serialize import inline_yaml
from xectool.config.tasks import TASK_NAMES
from xectool.errors import UsageError, unknown_choice

_COMMENT_COLUMN = 38
_REGRESSOR: dict[str, Any] = {
    "tasks.energy.enabled": True,
    "tasks.uvwFI.enabled": True,
    "training.lr_scheduler": "cosine",
    "training.ema_decay": "auto",
} | {f"tasks.{task}.{name}": "auto" for task in TASK_NAMES for name in ("scale", "shift")}
_COMMON: dict[str, Any] = {"data.train_path": "data/train.root", "data.val_path": "data/val.root"}


def template(
    kind: str, preset: str | None = None, platform: Platform | None = None, overrides: Sequence[str] = ()
) -> str:
    """Return a commented configuration of a kind, with the values of a preset, cut to the memory of the platform.

    Args:
        kind: regressor, mae or inpainter.
        preset: Name of a preset.
        platform: The machine that the preset is cut to.
        overrides: ``section.key=value`` strings that are written in place of the usual values.

    Raises:
        UsageError: The kind or the preset does not exist.
        ConfigError: An override names no key, or breaks the schema or a rule.
    """
    refuse_broken(kind)
    _known("kind", kind, KINDS)
    if preset is not None:
        _known("preset", preset, PRESETS)
    chosen = PRESETS.get(preset or "", Preset("", {}))
    keys = keys_of(kind)
    usual = _COMMON | (_REGRESSOR if KINDS[kind].base_kind == "regressor" else {}) | chosen.values
    values = {key: value for key, value in usual.items() if key in keys}  # a preset names keys of several kinds
    head = [
        f"# A run of kind {kind}, every key with its value and meaning. Lines without (default ...) can be deleted;",
        "# those with it differ from the default, and without them the run is another one.",
        "# Override on the command line: --set training.lr=1e-4",
    ]
    if preset is not None:
        head.append(f"# Preset {preset}, for {chosen.title}; why a key has its value stands behind it.")
    if preset is not None and platform is not None:
        head += _cut_to_compiler(values, platform)
    told = _told(kind, values, overrides) if overrides else {}
    values |= told
    if preset is not None and platform is not None and "data.chunksize" not in told:
        head += _cut_to_memory(kind, values, platform)
    return "\n".join([*head, *_lines(KINDS[kind](), keys, values, chosen)]) + "\n"


def _told(kind: str, values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the keys that overrides change, with what they become."""
    before, after = (_config(kind, values, told) for told in ((), overrides))
    if after.kind != kind:
        raise UsageError(
            "the kind decides which keys there are", where=f"--set kind={after.kind}", fix=f"--kind {after.kind}"
        )
    keys = [dotted for dotted, key in keys_of(kind).items() if not key.is_section]
    found = {dotted: _value(after, dotted) for dotted in keys if _value(after, dotted) != _value(before, dotted)}
    last = {key.strip(): value.strip(" '\"").lower() for key, _, value in (text.partition("=") for text in overrides)}
    as_auto = {key for key, value in last.items() if value == "auto"}
    return found | dict.fromkeys(as_auto & found.keys(), "auto")  # not the number it comes to: that may change


def _config(kind: str, values: Mapping[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    written: dict[str, Any] = {"kind": kind}
    document = Document("config init", written)
    for dotted, value in values.items():
        document.put(tuple(dotted.split(".")), value, document.source)
    return config_from_dict(written, document.source, overrides)


def key_comment(key: Key) -> str:
    """Return the meaning of a key with its unit and bounds, as one line."""
    unit = str(key.extra.get("unit", ""))
    limits = ", ".join(part for part in ("" if unit in ("", "1") else unit, key.bounds) if part)
    return f"{key.field.description}{f' [{limits}]' if limits else ''}"


def _cut_to_memory(kind: str, values: dict[str, Any], platform: Platform) -> list[str]:
    wanted = values["data.chunksize"]
    for found in HostMemorySuffices().check(Situation(_config(kind, values), platform)):
        key, _, fitting = found.fix.partition(": ")
        if key != "data.chunksize":  # no window is small enough
            return [f"# this machine lacks the memory: {found.problem}"]
        values[key] = int(fitting)
        return [f"# data.chunksize {wanted} of the preset was cut to {fitting} for this machine: {found.problem}"]
    return []


def _cut_to_compiler(values: dict[str, Any], platform: Platform) -> list[str]:
    """Leave the choice to the machine where it cannot compile, so that what is written is no error there."""
    wanted = values["training.compile"]
    if not platform.is_arm or platform.has_triton or wanted == "none":
        return []
    values["training.compile"] = "auto"
    return [f"# training.compile {wanted} of the preset became auto: triton cannot be imported on this ARM machine"]


def _known(what: str, name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        raise unknown_choice(what, name, known, f"--{what}")


def _lines(config: RunConfig, keys: Mapping[str, Key], values: Mapping[str, Any], preset: Preset) -> Iterator[str]:
    for dotted, key in keys.items():
        indent = "  " * dotted.count(".")
        if key.is_section:
            yield ("" if indent else "\n") + f"{indent}{key.leaf}:".ljust(_COMMENT_COLUMN) + f"  # {key_comment(key)}"
            continue
        default = "regressor" if dotted == "kind" else _value(config, dotted)
        value = values.get(dotted, _value(config, dotted))
        reason = preset.reason(dotted) if value == preset.values.get(dotted) else ""
        comment = key_comment(key) + (f" (default {inline_yaml(default)})" if value != default else "")
        comment += f"; {values['preset']}: {reason}" if reason else ""
        yield f"{indent}{key.leaf}: {inline_yaml(value)}".ljust(_COMMENT_COLUMN) + f"  # {comment}"


def _value(config: RunConfig, dotted: str) -> Any:
    part: Any = config
    value: Any = config.to_dict()
    for name in dotted.split("."):
        field, given = type(part).model_fields[name], name in part.model_fields_set
        part, value = getattr(part, name), value[name]
    return field.default if field.default == "auto" and not given else value  # it goes with what a user changes next
