"""Everything rules judge by: contents, layout, numbers, digests."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from xectool.checkpoint.format import FORMAT_NAME, digest
from xectool.checkpoint.inspection.contents import Contents
from xectool.checkpoint.inspection.layout import XECTOOL, Layout, recognise
from xectool.checkpoint.inspection.optimizer import Learned, OptimizerState, optimizer_state
from xectool.checkpoint.inspection.reading import read
from xectool.checkpoint.inspection.values import TensorStats, may_be_infinite, statistics
from xectool.checkpoint.safetensors_store import DIGEST_KEY, content_digest, sections
from xectool.checkpoint.safetensors_store import SEALS_KEY as METADATA_SEALS_KEY
from xectool.checkpoint.seals import SEALS_KEY, broken_seals

_SECTIONS: Final = ("meta", "model", "ema", "training")
_BOOKKEEPING: Final = ("callbacks.", "loops.")
_HEX_DIGEST = re.compile(r"\b[0-9a-fA-F]{64}\b")
_MAX_SIDECAR_BYTES: Final = 1 << 16
_METADATA_KEYS: Final = {"format", FORMAT_NAME, DIGEST_KEY, METADATA_SEALS_KEY}
_EXPORTED: Final = ("onnx", "torchscript", "torch-export")
_SEALED: Final = (*_EXPORTED, "safetensors")


@dataclass(frozen=True)
class Inspected:
    """A file and all that was found out about it.

    Attributes:
        contents: What it holds.
        layout: What that is.
        stats: Numbers of every tensor by its place in the file.
        optimizer: State of the optimizer.
        digest_holds: Whether our stored digest is that of the content; None where the layout has none.
        changed: Tensors and facts that are not those that were sealed, by their place.
        sidecar: Its digest in a ``.sha256`` file beside it; empty where that holds none, None without such a file.
        misfits: How the weights contradict the stored configuration; None where nobody could tell.
        buffers: Names of the network's tensors that are no parameters; None where nobody could tell.
        foreign_tables: Index tables of another geometry than that of this xectool.
        outputs_differ: How outputs for fixed events differ from those stored, by the set of weights.
    """

    contents: Contents
    layout: Layout
    stats: Mapping[str, TensorStats]
    optimizer: OptimizerState | None = None
    digest_holds: bool | None = None
    changed: tuple[str, ...] = ()
    sidecar: str | None = None
    misfits: tuple[str, ...] | None = None
    buffers: frozenset[str] | None = None
    foreign_tables: tuple[str, ...] = ()
    outputs_differ: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Version of the xectool that wrote the file; empty where it is not stored."""
        versions = self.layout.meta.get("versions")
        return str(versions.get("xectool", "")) if isinstance(versions, Mapping) else ""

    @property
    def is_intact(self) -> bool:
        """Whether all bytes are as they were written, as far as anything tells."""
        sidecar_holds = not self.sidecar or self.sidecar == self.contents.sha256
        whole = not (self.contents.problems or self.changed)
        return whole and self.digest_holds is not False and sidecar_holds

    @property
    def nonfinite(self) -> dict[str, TensorStats]:
        """Tensors with values that are not finite; masks, bounds and scores of callbacks may be infinite."""
        return {name: found for name, found in self.stats.items() if found.num_nonfinite and not self._may_be(name)}

    def nonfinite_in(self, role: str) -> list[str]:
        """Return the tensors of one set of weights with values that are not finite, by their place in the file."""
        own = {id(value) for value in self.layout.weights.get(role, {}).values()}
        return [name for name in self.nonfinite if id(self.contents.values[name]) in own]

    def _may_be(self, name: str) -> bool:
        """Return whether infinities belong there: bookkeeping, or masks, edges and bounds."""
        if name.startswith(_BOOKKEEPING):
            return True
        nameless = self.contents.format == "onnx" or name.startswith("lifted_tensor")  # a constant of a graph
        return may_be_infinite("mask" if nameless else name, self.contents.values[name])


def inspect(path: Path) -> Inspected:
    """Take a file apart and look at every number in it.

    Raises:
        CheckpointError: It holds no model; the message names what it is.
    """
    contents = read(path)
    layout = recognise(contents)
    stats = {name: found for name, value in contents.values.items() if (found := statistics(value)) is not None}
    return Inspected(
        contents=contents,
        layout=layout,
        stats=stats,
        optimizer=optimizer_state(layout.training.get("optimizer"), _learned(contents, layout)),
        digest_holds=_digest_holds(contents) if layout.origin == XECTOOL or contents.format in _SEALED else None,
        changed=_changed(contents, layout),
        sidecar=_sidecar(path),
    )


def _learned(contents: Contents, layout: Layout) -> Learned:
    """Return what the optimizer of a file can belong to."""
    others = {
        name: value
        for name, value in contents.values.items()
        if not any("optim" in part or part == "state" for part in name.split(".")[:2])
    }
    if layout.origin != XECTOOL:
        return Learned(layout.main, others)
    task, progress = layout.training.get("task"), layout.meta.get("progress")
    own = {
        name: value for name, value in (task if isinstance(task, Mapping) else {}).items() if isinstance(value, Tensor)
    }
    skipped = _skipped(progress) if isinstance(progress, Mapping) else 0
    return Learned({**layout.main, **own}, {}, layout.step, skipped)


def _skipped(progress: Mapping[str, Any]) -> int:
    """Return the steps that left the weights as they were, as a run counts them."""
    stats, history = progress.get("stats"), progress.get("history")
    now = stats.get("skipped", 0) if isinstance(stats, Mapping) else 0
    epochs = [epoch for epoch in history if isinstance(epoch, Mapping)] if isinstance(history, list) else []
    counts = [now, *(epoch.get("train/skipped_steps", 0) for epoch in epochs)]
    return int(sum(count for count in counts if isinstance(count, int | float) and math.isfinite(count)))


def _digest_holds(contents: Contents) -> bool | None:
    payload = contents.payload
    if contents.format in _EXPORTED:
        return None if contents.changed is None else not contents.changed
    if contents.format == "safetensors":
        metadata = contents.facts["metadata"]
        if not {FORMAT_NAME, DIGEST_KEY} & metadata.keys():
            return None
        as_written = content_digest(str(metadata.get(FORMAT_NAME)), payload) == metadata.get(DIGEST_KEY)
        return bool(as_written and metadata.get("format") == "pt" and metadata.keys() <= _METADATA_KEYS)
    if not isinstance(payload, Mapping) or "digest" not in payload:
        return None
    content = {name: payload.get(name) for name in _SECTIONS}
    return bool(digest(content) == payload["digest"])


def _changed(contents: Contents, layout: Layout) -> tuple[str, ...]:
    payload = contents.payload
    if contents.format in _EXPORTED:
        return contents.changed or ()
    if contents.format == "safetensors":
        metadata = contents.facts["metadata"]  # damage there may hide that the file is ours
        return broken_seals(sections(str(metadata.get(FORMAT_NAME)), payload), metadata.get(METADATA_SEALS_KEY))
    if layout.origin != XECTOOL:
        return ()
    return broken_seals({name: payload.get(name) for name in _SECTIONS}, payload.get(SEALS_KEY))


def _sidecar(path: Path) -> str | None:
    """Return the digest that ``sha256sum FILE > FILE.sha256`` left; of a list of files that of the line naming it."""
    place = path.with_name(path.name + ".sha256")
    if not os.path.lexists(place):
        return None
    try:
        with place.open("rb") as stream:
            lines = stream.read(_MAX_SIDECAR_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    found = [(match[0].lower(), line) for line in lines if (match := _HEX_DIGEST.search(line))]
    own = re.compile(rf"[\s*(/]{re.escape(path.name)}(\)|\s*$)")
    named = [value for value, line in found if own.search(line)]
    return named[0] if named else found[0][0] if len(found) == 1 else ""
