"""All ranks of a run must have the same configuration, program and data, or they train something else together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

import xectool
from xectool.data.plan import SourceFile
from xectool.errors import UsageError
from xectool.registry.plugins import plugin_files, python_files
from xectool.tasks.base import TrainingTask
from xectool.training.ranks.base import Ranks

_ROOT: Final = Path(xectool.__file__).parent
_SHOWN: Final = 60


def program_facts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return what must agree before anything is opened: the configuration's keys, digests of program and plugins."""
    own = {"code": digest([xectool.__version__, torch.__version__, _contents(python_files(_ROOT))])}
    own |= {f"plugin {name}": digest(_contents(files)) for name, files in plugin_files().items()}
    return own | {key: json.dumps(value, default=str) for key, value in leaves(config)}


def data_facts(files: Sequence[SourceFile]) -> dict[str, str]:
    """Return what must agree of the data: name, size and events of each file."""
    return {
        f"data file {Path(f.path).name}": f"{f.num_selected} of {f.num_entries} events, {_size(f.path)} bytes"
        for f in files
    }


def network_facts(model: nn.Module, task: TrainingTask) -> dict[str, str]:
    """Return what must agree of the network and its losses, which a plugin may build of anything: collectives add them.

    PyTorch compares shapes of weights only, names none of them, adds them by their place in order, and aborts the
    process where numbers of another kind differ.
    """
    parts: tuple[tuple[str, nn.Module], ...] = (("model", model), ("task", task))
    weights = [item for name, part in parts for item in part.named_parameters(name)]
    buffers = [item for name, part in parts for item in part.named_buffers(name)]
    facts = {name: _kind(tensor) for name, tensor in (*weights, *buffers)}
    facts["weight order"] = digest([[name for name, _ in tensors] for tensors in (weights, buffers)])
    return facts | {"loss": f"the terms {', '.join(task.terms)} and {task.num_tallies} tallies"}


def require_agreement(ranks: Ranks, facts: Mapping[str, str]) -> None:
    """Compare facts between all ranks.

    Raises:
        UsageError: A rank differs from the first; names it, what differs, and both values. Raised on every rank.
    """
    everywhere = ranks.gather(dict(facts))
    first = everywhere[0]
    for rank, values in enumerate(everywhere):
        differing = [key for key in sorted(values.keys() | first.keys()) if values.get(key) != first.get(key)]
        if not differing:
            continue
        key, more = differing[0], f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        raise UsageError(
            f"rank {rank} runs with another {key} than rank 0{more}: {_shown(values.get(key))} instead of "
            f"{_shown(first.get(key))}",
            where=f"rank {rank}",
            fix="start all ranks with the same program and files: torchrun --nproc-per-node 2 -m xectool train CONFIG",
            code="XT-RANK-MISMATCH",
        )


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of each leaf of nested mappings."""
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict):
            yield from leaves(value, name)
        else:
            yield name, value


def digest(value: Any) -> str:
    """Return a short digest of plain values."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def _contents(files: Mapping[str, Path]) -> dict[str, str]:
    """Return a digest of each file by its name, without those that are not there: a link to nothing, a folder."""
    return {name: content for name, path in files.items() if (content := _content(path))}


def _content(path: Path) -> str:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    except (FileNotFoundError, IsADirectoryError):
        return ""
    except OSError as error:
        return f"unreadable: {type(error).__name__}"


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}{' trained' if tensor.requires_grad else ''}"


def _size(path: str) -> int:
    local = Path(path)
    return local.stat().st_size if local.is_file() else -1


def _shown(value: str | None) -> str:
    text = "nothing" if value is None else value
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
