"""Keys of the older system that live elsewhere now: translated with a note, or refused with what to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xectool.config.document import SET, Document, KeyPath
from xectool.config.invalid import NOTE, config_finding, place
from xectool.config.keys import keys_of
from xectool.config.root import KINDS, base_of, refuse_broken
from xectool.config.serialize import inline_yaml
from xectool.errors import did_you_mean
from xectool.findings import Finding, Severity

_SENSOR_KINDS = ("mae", "inpainter")

# What a file says about its kind when it does not say `kind:`.
_SIGNS: dict[str, tuple[KeyPath, ...]] = {
    "regressor": (
        ("tasks",), ("loss_balance",), ("reweighting",), ("model", "hidden_dim"), ("model", "drop_path_rate"),
        ("training", "channel_dropout_rate"),
    ),
    "mae": (("model", "decoder_dim"), ("training", "auto_channel_weight")),
    "inpainter": (
        ("training", "mae_checkpoint"), ("model", "freeze_encoder"), ("model", "head_type"),
        ("model", "mask_npho_flat"), ("model", "use_local_context"), ("model", "use_masked_attention"),
    ),
}  # fmt: skip

_OLDER_PREFETCH = 2
_OLDER_DATA_KEYS = {
    "train_path", "val_path", "tree_name", "batch_size", "chunksize", "num_workers", "num_threads", "prefetch_factor",
    "npho_branch", "time_branch", "log_invalid_npho",
}  # fmt: skip


@dataclass(frozen=True)
class Renamed:
    """A key of the older system and where it lives now."""

    kinds: tuple[str, ...]
    old: KeyPath
    new: KeyPath


def _renamed(kinds: tuple[str, ...], old: str, new: str) -> Renamed:
    return Renamed(kinds, tuple(old.split(".")), tuple(new.split(".")))


RENAMED = (
    _renamed(_SENSOR_KINDS, "training.time_weight", "training.time.weight"),
    _renamed(_SENSOR_KINDS, "training.use_npho_time_weight", "training.time.use_npho_weight"),
    _renamed(_SENSOR_KINDS, "training.npho_threshold", "training.time.npho_threshold"),
    _renamed(_SENSOR_KINDS, "training.time_mask_ratio_scale", "training.time.mask_ratio_scale"),
    _renamed(_SENSOR_KINDS, "model.time_mask_ratio_scale", "training.time.mask_ratio_scale"),
    _renamed(("inpainter",), "training.mae_checkpoint", "checkpoint.init_from"),
)


def find_kind(document: Document) -> tuple[str, list[Finding]]:
    """Return the kind a document is of, and a note where it had to be inferred; the key is taken out.

    Raises:
        InvalidConfigError: Never; an unknown kind is a finding and regressor is assumed.
    """
    if document.has(("kind",)):
        return _written_kind(document)
    scores = {kind: sum(document.has(sign) for sign in signs) for kind, signs in _SIGNS.items()}
    best = max(scores, key=lambda kind: scores[kind])
    if not scores[best]:
        best = max(_SIGNS, key=lambda kind: sum(document.has(key) for key in _keys_and_older_names(kind)))
    known = {kind: set(_keys_and_older_names(kind)) for kind in _SIGNS}
    told = dict.fromkeys((*_SIGNS[best], *_keys_and_older_names(best)))
    own = [key for key in told if document.has(key) and not all(key in known[kind] for kind in known)]
    signs = [".".join(key) for key in own if key[:-1] not in own and key[:-2] not in own]
    reason = f"from {', '.join(signs[:3])}" if signs else "as the usual one"
    problem = f"kind is not written; taken as {best} {reason}"
    return best, [Finding(NOTE, Severity.INFO, problem, place(document.source, "kind"), fix=f"kind: {best}")]


def translate(document: Document, kind: str) -> list[Finding]:
    """Move older keys to where they live now, in the document; return notes and refusals."""
    found: list[Finding] = []
    _fill_empty_sections(document, kind)
    for renamed in RENAMED:
        if base_of(kind) in renamed.kinds and document.has(renamed.old):
            found += (_keep_one if document.has(renamed.new) else _move)(document, renamed)
    found += _explain_values(document)
    found += _drop_forced_prefetch(document)
    return found + _refuse_dead(document)


def _keys_and_older_names(kind: str) -> list[KeyPath]:
    older = [renamed.old for renamed in RENAMED if kind in renamed.kinds]
    return older + [tuple(name.split(".")) for name in keys_of(kind)]


def _written_kind(document: Document) -> tuple[str, list[Finding]]:
    kind = document.pop(("kind",))
    refuse_broken(kind)
    if isinstance(kind, str) and kind in KINDS:
        return kind, []
    hint = did_you_mean(kind, KINDS) if isinstance(kind, str) else ""
    problem = f"kind: one of {', '.join(KINDS)}; got {kind!r}" + (f", {hint}" if hint else "")
    best = hint.split(chr(39))[1] if hint else "regressor"
    fix = f"kind: {best}" + ("" if hint else "   # or install the package that brings the kind")
    return best, [config_finding("CFG-05", problem, document.origin("kind"), "kind", fix)]


def _fill_empty_sections(document: Document, kind: str) -> None:
    for key in keys_of(kind).values():
        path = tuple(key.dotted.split("."))
        if key.is_section and document.has(path) and document.get(path) is None:
            document.put(path, {}, document.origin(key.dotted))


def _move(document: Document, renamed: Renamed) -> list[Finding]:
    old, new = ".".join(renamed.old), ".".join(renamed.new)
    origin = document.origin(old)
    value = document.get(renamed.old)
    document.move(renamed.old, renamed.new)
    return [_note(f"{old} is read as {new}", origin, old, f"{new}: {'null' if value in (None, '') else value}")]


def _keep_one(document: Document, renamed: Renamed) -> list[Finding]:
    """Take out one of two names of an option: an override wins over the file; two values of one file are refused.

    So does a pasted null: it stands for what the older name says. In its section it is what `config init` writes.
    """
    keys = {path: ".".join(path) for path in (renamed.new, renamed.old)}
    overridden = [path for path in keys if document.origin(keys[path]) == SET]
    is_empty = document.get(renamed.new) in (None, "")
    if not overridden and is_empty and renamed.new in document.pasted:
        overridden = [renamed.new]
    if renamed.new not in overridden and is_empty:
        return _move(document, renamed)
    kept = renamed.old if overridden == [renamed.old] else renamed.new
    (gone,) = keys.keys() - {kept}
    values = {path: inline_yaml(document.get(path)) for path in keys}
    origin, value = document.origin(keys[gone]), document.pop(gone)
    findings = _move(document, renamed) if kept == renamed.old else []
    if values[kept] == values[gone]:
        return [*findings, _note(f"{keys[gone]} is {keys[kept]} once more", origin, keys[gone], f"delete {keys[gone]}")]
    said = f"it is the same option as {keys[kept]}, which is {values[kept]}"
    fix = f"delete {keys[gone]}"
    if not overridden and value not in (None, ""):
        return [config_finding("CFG-01", f"{keys[gone]} is {values[gone]}, but {said}", origin, keys[gone], fix)]
    problem = f"{keys[gone]} {values[gone]} is ignored: {said}"
    return [*findings, Finding("CFG-01", Severity.WARNING, problem, place(origin, keys[gone]), fix=fix)]


def _explain_values(document: Document) -> list[Finding]:
    found = []
    path = ("training", "compile")
    if document.has(path) and (document.get(path) is None or document.get(path) is True):
        mode = "none" if document.get(path) is None else "default"
        problem = (
            f"training.compile: {'null' if mode == 'none' else 'true'} is read as {mode}; the older system took it"
        )
        found.append(_note(f"{problem} as max-autotune", document.origin("training.compile"), ".".join(path),
                           f"training.compile: {mode}"))  # fmt: skip
    return found


def _drop_forced_prefetch(document: Document) -> list[Finding]:
    # The older system ended with "key missing" unless every key was written, so its files carry prefetch_factor even
    # with num_workers 0, where it means nothing. In a file of ours the two together are refused (CFG-15).
    data = document.get(("data",))
    if not isinstance(data, dict) or not data.keys() >= _OLDER_DATA_KEYS or data["num_workers"] != 0:
        return []
    if data["prefetch_factor"] != _OLDER_PREFETCH or document.origin("data.prefetch_factor") == SET:
        return []
    origin = document.origin("data.prefetch_factor")
    document.pop(("data", "prefetch_factor"))
    problem = "data.prefetch_factor 2, which the older system wanted written, needs num_workers > 0 and is left out"
    return [_note(problem, origin, "data.prefetch_factor", "delete data.prefetch_factor")]


def _refuse_dead(document: Document) -> list[Finding]:
    path = ("validation", "drop_last")
    if not document.has(path):
        return []
    origin, value = document.origin("validation.drop_last"), document.pop(path)
    if value is False:
        return [_note("validation.drop_last is always false", origin, "validation.drop_last", "delete the line")]
    problem = "validation.drop_last: true drops events from every validation metric"
    return [config_finding("CFG-34", problem, origin, "validation.drop_last", "delete validation.drop_last")]


def _note(problem: str, origin: str, key: str, fix: Any) -> Finding:
    return Finding(NOTE, Severity.INFO, problem, place(origin, key), fix=str(fix))
