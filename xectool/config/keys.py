"""All keys of the schema, and the nearest one to a key that is not in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from xectool.config.root import KINDS, SECTION_ORDER
from xectool.config.section import Section

_UNUSUAL = 3  # sections that have a key of one name, which then leads to any of them
_MISSPELT = 2  # edits of a name that another trainer has
_LONGEST_NAME = 200  # of a key with its sections; no key is near to more, and to look takes seconds
# What people write, from the older system's command line, its documents and other trainers, and where it lives here.
MOVED = {
    "accumulate_grad_batches": "training.grad_accum_steps",
    "batch": "data.batch_size",
    "clip_grad_norm": "training.grad_clip",
    "gradient_accumulation_steps": "training.grad_accum_steps",
    "gradient_clip_val": "training.grad_clip",
    "learning_rate": "training.lr",
    "max_epochs": "training.epochs",
    "max_grad_norm": "training.grad_clip",
    "mixed_precision": "training.amp",
    "mlflow_experiment": "mlflow.experiment",
    "mlflow_run_name": "mlflow.run_name",
    "npho_loss_weight_alpha": "training.npho_loss_weight.alpha",
    "npho_loss_weight_enabled": "training.npho_loss_weight.enabled",
    "npho_threshold": "normalization.npho_threshold",
    "num_epochs": "training.epochs",
    "patience": "training.early_stop_patience",
    "precision": "training.amp",
    "relative_npho": "data.npho_branch",
    "save_path": "checkpoint.save_dir",
    "save_root_predictions": "checkpoint.save_predictions",
    "scheduler": "training.lr_scheduler",
    "train_root": "data.train_path",
    "tree": "data.tree_name",
    "val_root": "data.val_path",
    "workers": "data.num_workers",
    "world_size": "distributed.num_gpus",
}


@dataclass(frozen=True)
class Key:
    """One key or section of the schema."""

    dotted: str
    field: FieldInfo
    is_section: bool

    @property
    def parent(self) -> str:
        """The dotted section it stands in, empty at the top."""
        return self.dotted.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        """Its last name."""
        return self.dotted.rpartition(".")[2]

    @property
    def extra(self) -> dict[str, Any]:
        """Unit and rule code as declared."""
        extra = self.field.json_schema_extra
        return dict(extra) if isinstance(extra, dict) else {}

    @property
    def bounds(self) -> str:
        """The limits as text, such as ``> 0, <= 512``."""
        signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
        found = [(signs[name], value) for name, value in self.limits().items()]
        return ", ".join(f"{sign} {value:g}" for sign, value in found)

    def limits(self) -> dict[str, float]:
        """Return the limits by name (gt, ge, lt, le)."""
        return {
            name: getattr(item, name)
            for item in self.field.metadata
            for name in ("gt", "ge", "lt", "le")
            if hasattr(item, name)
        }

    def default(self) -> Any:
        """Return the value where a file is silent."""
        value = self.field.get_default(call_default_factory=True)
        return None if value is PydanticUndefined else value


@cache
def keys_of(kind: str) -> dict[str, Key]:
    """Return all keys of a kind by dotted name, in the order they are written."""
    return {key.dotted: key for key in _walk(KINDS[kind], "")}


def nearest_key(unknown: str, kind: str) -> str | None:
    """Return the key that was most likely meant: same name elsewhere, or the fewest edits away.

    >>> nearest_key("training.batch_size", "regressor"), nearest_key("training.epohcs", "regressor")
    ('data.batch_size', 'training.epochs')
    >>> nearest_key("tasks.enrgy.enabled", "regressor"), nearest_key("reweighting.light.enabled", "regressor")
    ('tasks.energy.enabled', None)
    """
    if len(unknown) > _LONGEST_NAME:
        return None
    known = keys_of(kind)
    parent, _, leaf = unknown.rpartition(".")
    section = nearest_key(parent, kind) if parent and parent not in known else None
    if f"{section}.{leaf}" in known:
        return f"{section}.{leaf}"
    moved = MOVED.get(leaf)
    if moved in known and f"{parent}.{leaf}" != moved:
        return moved
    usual = sum(key.leaf == leaf for key in known.values()) > _UNUSUAL  # `enabled` says nothing of its section
    near = {dotted: key for dotted, key in known.items() if not usual or key.leaf != leaf or key.parent == parent}
    scored = [(_score(parent, leaf, key), rank, dotted) for rank, (dotted, key) in enumerate(near.items())]
    score, _, dotted = min(scored)
    if score <= max(1.5, 0.4 * len(leaf)):
        return dotted
    others = [edit_distance(leaf.lower(), old) for old in MOVED]  # a name from elsewhere, misspelt
    elsewhere = list(MOVED.values())[others.index(min(others))]
    return elsewhere if min(others) <= _MISSPELT < len(leaf) / 2 and elsewhere in known else None


def edit_distance(first: str, second: str) -> int:
    """Return the number of insertions, deletions, replacements and swaps of neighbours between two names.

    >>> edit_distance("batchsize", "batch_size"), edit_distance("eopchs", "epochs")
    (1, 1)
    """
    rows = [list(range(len(second) + 1))]
    for i, a in enumerate(first, 1):
        row = [i]
        for j, b in enumerate(second, 1):
            best = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and b == first[i - 2]:
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


def _score(parent: str, leaf: str, key: Key) -> float:
    # A key of another section costs a little more than one edit: a typo beats a move, a move beats two typos.
    return edit_distance(leaf.lower(), key.leaf.lower()) + (0.0 if parent == key.parent else 1.5)


def _walk(cls: type[Section], prefix: str) -> Iterator[Key]:
    names = sorted(cls.model_fields, key=SECTION_ORDER.index) if not prefix else list(cls.model_fields)
    for name in names:
        field = cls.model_fields[name]
        nested = field.annotation if isinstance(field.annotation, type) else None
        inner = nested if nested is not None and issubclass(nested, Section) else None
        yield Key(prefix + name, field, inner is not None)
        if inner is not None:
            yield from _walk(inner, f"{prefix}{name}.")
