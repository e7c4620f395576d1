"""Write the page of what commands put under ``result``: keys from the dataclasses, meanings from their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any, Final

from xectool import engine
from xectool.diagnosis.reports.gradients import GradientReport
from xectool.engine.diagnose.hanging import ProcessLine

_ATTRIBUTES: Final = re.compile(r"^Attributes:\n((?: .*\n?|\n)+)", re.MULTILINE)
_ENTRY: Final = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)
_SPELLED: Final = {"compare": "predict --compare", "repair": "predict --repair", "control": "ctl"}
_ASIDE: Final = frozenset({"findings", "last_lines"})  # told beside the result, and what the screen had
MEMORY: Final = {
    "gpu": "`parameters_bytes`, `gradients_bytes`, `optimizer_bytes`, `ema_bytes`, `activations_bytes`, `inputs_bytes`,"
    " `peak_bytes`, `capacity_bytes`, `fits`, `max_batch_size` of the device. The peak is that of its allocator's"
    " tensors; where this machine has a GPU, with the workspaces of cuBLAS, which `torch.cuda.max_memory_allocated`"
    " counts too.",
    "cpu": "`loader_bytes`, `predictions_bytes`, `peak_bytes`, `capacity_bytes`, `fits` of the host;"
    " `fits` is null with `--gpu` of another machine.",
    "disk": "`checkpoint_bytes`, `predictions_bytes`, `cache_bytes`, `free_bytes` here, `fits`,"
    " which is null with `--gpu` of another machine.",
    "advice": "What would save memory, in order.",
}


def results() -> dict[str, dict[str, str]]:
    """Return what each command has under ``result``: key to meaning."""
    found = {
        **{_SPELLED.get(name, name.replace("_", "-")): kind for name, kind in _returned(engine, engine.__all__)},
        **{
            f"diagnose {name.replace('_', '-')}": kind
            for name, kind in _returned(engine.diagnose, engine.diagnose.__all__)
        },
        "runs": engine.runs.RunsResult,
        "runs compare": _returns(engine.runs.compare),
        "runs sync": engine.runs.SyncResult,
    }
    pages = {name: keys_of(kind) for name, kind in found.items() if name != "train-ranks"}  # as train
    pages["estimate-memory"] = MEMORY
    gradients = pages["diagnose gradients"]
    pages["diagnose gradients"] = {**{k: v for k, v in gradients.items() if k != "report"}, **keys_of(GradientReport)}
    pages["diagnose distributed"].pop("healthy")
    pages["diagnose stacks"] = {"processes": f"Each: {_named(ProcessLine)}."}
    pages["config show, check"] = {"kind, data, …": "The resolved configuration, by its own keys."}
    pages["config init"] = {"yaml": "The text that is printed without `--json`."}
    pages["config diff"] = {"differences": "Keys that differ, with both values."}
    return dict(sorted(pages.items()))


def page() -> Iterator[str]:
    """Every command with the keys of its result."""
    yield from (
        "# Keys of `--json`",
        "",
        "What stands under `result`, by command; the document around it: [exit codes and",
    )
    yield "`--json`](exit-codes.md). In an error document it is empty, unless something was reached: an interrupted"
    yield "training has its result. Keys are only ever added."
    for name, keys in results().items():
        yield from ("", f"## xectool {name}", "", "| key | |", "|---|---|")
        yield from (f"| `{key}` | {_cell(meaning)} |" for key, meaning in keys.items())


def keys_of(kind: type) -> dict[str, str]:
    """Return the keys of a dataclass with their meaning, and the keys of what they hold in turn."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found = _ATTRIBUTES.search(inspect.getdoc(base) or "") if dataclasses.is_dataclass(base) else None
        meanings |= dict(_ENTRY.findall(found[1] if found else ""))
    hints = typing.get_type_hints(kind)
    keys = {}
    for field in dataclasses.fields(kind):
        if field.name not in _ASIDE:
            inner = "".join(f" Each: {_named(held)}." for held in _held(hints[field.name]))
            keys[field.name] = " ".join(meanings.get(field.name, "").split()) + inner
    return keys


def _returned(owner: Any, names: Any) -> Iterator[tuple[str, type]]:
    for name in names:
        function = getattr(owner, name)
        kind = _returns(function) if inspect.isfunction(function) and not name.startswith("_") else None
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield name, kind


def _returns(function: Any) -> Any:
    return typing.get_type_hints(function).get("return")


def _held(hint: Any) -> list[type]:
    """Return the dataclasses that a field holds, in whatever container."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint] if not hasattr(hint, "as_dict") else []
    return [kind for inner in typing.get_args(hint) for kind in _held(inner)]


def _named(kind: type) -> str:
    return ", ".join(f"`{field.name}`" for field in dataclasses.fields(kind))


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")
