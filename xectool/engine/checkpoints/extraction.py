"""A part of an inspected checkpoint as a file of its own; only out of a file that is sound."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from xectool.checkpoint import store
from xectool.checkpoint.extract import ENCODER, extract_encoder
from xectool.checkpoint.foreign import ENCODER_PREFIX
from xectool.checkpoint.held_networks import Kind
from xectool.checkpoint.inspection.facts import Inspected
from xectool.checkpoint.inspection.layout import XECTOOL
from xectool.checkpoint.soundness import require_finite
from xectool.config.root import RunConfig, base_of
from xectool.engine.output_places import require_file_place
from xectool.errors import CheckpointError, UsageError, did_you_mean, in_shell
from xectool.findings import Finding, Severity

_SUFFIXES: Final = (".pt", ".pth", ".safetensors")
_SPOILS_WEIGHTS: Final = ("K01", "K02", "K03", "K07")
"""Bytes, code, structure and dtypes: a new file would be sealed over them and look sound."""


def target_of(path: Path, extract: str | None, output: Path | str | None) -> Path | None:
    """Return where a part goes, after checking that both options are there and nothing is overwritten.

    Raises:
        UsageError: An option lacks the other, names no part or no format, or a file is there already or in the way.
        DiskError: The folder cannot be written.
    """
    if extract is None and output is None:
        return None
    if extract is None or output is None:
        named = output or "encoder.pt"
        raise UsageError("--extract and --output go together", where="command line", fix=_line(path, named))
    target = Path(os.path.expanduser(output))
    if extract != ENCODER:
        near = did_you_mean(extract, [ENCODER])
        problem = f"there is no part '{extract}' to extract" + (f"; {near}" if near else "")
        raise UsageError(problem, where="--extract", fix=_line(path, target))
    if target.suffix not in _SUFFIXES:
        problem = f"unknown suffix '{target.suffix}'"
        named = target.parent / f"{target.stem or ENCODER}.safetensors"
        raise UsageError(problem, where="--output", fix=_line(path, named))
    if os.path.exists(target):  # what is written is a checkpoint, and no checkpoint is ever replaced
        another = target.with_name(f"another_{target.name}")
        raise UsageError(f"{target} exists already", where="--output", fix=_line(path, another))
    return require_file_place(target, "--output", target.name)


def write_part(facts: Inspected, findings: Sequence[Finding], run: RunConfig | None, target: Path) -> str:
    """Write the encoder of a sound file and return where it went.

    Raises:
        CheckpointError: The file is damaged, would run code or holds numbers that are not finite; or has no encoder.
    """
    wrong = tuple(item for item in findings if item.severity is Severity.ERROR and item.code in _SPOILS_WEIGHTS)
    source, layout = facts.contents.path, facts.layout
    prefix = ENCODER_PREFIX.get(cast("Kind", base_of(layout.kind)), "")
    gone = [text for text in facts.misfits or () if text.startswith(prefix)]
    if gone:
        wrong += (Finding("K15", Severity.ERROR, f"its encoder is not whole: {gone[0]}", gone[0].split()[0]),)
    if wrong:
        raise CheckpointError(
            f"nothing is extracted from this checkpoint: {wrong[0].problem}",
            where=f"{source}: {wrong[0].where}" if wrong[0].where else str(source),
            fix=f"xectool inspect-ckpt {in_shell(source)}   # all that is wrong; then name a sound checkpoint",
            code=wrong[0].code,
        )
    config = layout.config if run is None else run.to_dict()
    is_next = layout.origin == XECTOOL and layout.epoch is not None  # ours store the epoch they go on with
    epoch = {"epochs_done": max(0, (layout.epoch or 0) - 1)} if is_next else {"epoch": layout.epoch}
    lineage = {"source": source.name, "source_sha256": facts.contents.sha256, **epoch, "step": layout.step}
    part = extract_encoder(layout.weights, layout.kind, config, lineage)
    require_finite(part.model, source)
    store.save(target, part)
    return str(target)


def _line(path: Path, output: Path | str) -> str:
    """Return the whole command for this file."""
    return f"xectool inspect-ckpt {in_shell(path)} --extract {ENCODER} --output {in_shell(output)}"
