"""Weights of ours as safetensors: the facts that give them a meaning, and a digest, in the file's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from xectool.checkpoint.foreign import is_foreign
from xectool.checkpoint.format import FORMAT_NAME, Checkpoint, digest, facts_of
from xectool.checkpoint.inspection.families import family
from xectool.checkpoint.seals import seals
from xectool.errors import CheckpointError, in_shell

DIGEST_KEY = "xectool-digest"
SEALS_KEY = "xectool-seals"


def content_digest(meta: str, weights: Mapping[str, Tensor]) -> str:
    """Return the digest over the facts, as JSON text, and the weights."""
    return digest(sections(meta, weights))


def sections(meta: str, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return facts and weights under the names they have in a checkpoint."""
    return {"meta": meta, "model": dict(weights)}


def serialize(checkpoint: Checkpoint) -> bytes:
    """Return the raw weights of a checkpoint and its facts as the bytes of a safetensors file."""
    meta = json.dumps(checkpoint.meta, sort_keys=True)
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in checkpoint.model.items()}
    metadata = {"format": "pt", FORMAT_NAME: meta, DIGEST_KEY: content_digest(meta, weights)}
    metadata[SEALS_KEY] = seals(sections(meta, weights))
    return safetensors.torch.save(weights, metadata)


def load(path: Path) -> Checkpoint:
    """Return the weights and facts of a safetensors file that xectool wrote.

    Raises:
        CheckpointError: It is damaged, or another program wrote it and its configuration is unknown.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as stream:
            metadata = stream.metadata() or {}
            weights = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 - no mapping
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if FORMAT_NAME not in metadata and not is_foreign(weights):
        raise CheckpointError(
            f"the weights are of no network of this project ({family(weights) or 'nor of one that is known'})",
            where=str(path),
            fix=f"xectool inspect-ckpt {in_shell(path)}   # says what it is",
            code="XT-CKPT-LAYOUT",
        )
    if FORMAT_NAME not in metadata:
        raise CheckpointError(
            "the file has weights but no configuration, so their normalisation and pooling are unknown",
            where=str(path),
            fix=f"xectool inspect-ckpt {in_shell(path)} --extract encoder --config CONFIG --output encoder.pt",
            code="XT-CKPT-NO-CONFIG",
        )
    meta = metadata[FORMAT_NAME]
    if content_digest(meta, weights) != metadata.get(DIGEST_KEY):
        raise _damaged(path, "its content does not match the digest stored with it")
    return Checkpoint(facts_of(meta, str(path)), weights)


def _damaged(path: Path, detail: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint is damaged: {detail}",
        where=str(path),
        fix=f"xectool inspect-ckpt {in_shell(path)} says where; write it again from the checkpoint it came from",
        code="XT-CKPT-CORRUPT",
    )
