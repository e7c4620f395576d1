"""What a checkpoint holds: tensors and plain types only, in named sections, with a digest over all of it.

On disk a checkpoint is one ``torch.save`` archive of a dictionary::

    format   "xectool-checkpoint"
    version  1
    digest   SHA-256 over everything below, in canonical order
    meta     JSON text: kind, config, position, history, versions, lineage
    model    {state-dict key: tensor}      raw weights
    ema      {state-dict key: tensor}      averaged weights; empty without EMA
    training {optimizer, scaler, schedule, task, rng, ...}   what a resume needs; empty in an extract
    seals    JSON text: a checksum of every tensor and fact, which say what has changed where the digest does not hold

It loads with ``torch.load(..., weights_only=True)``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xectool.checkpoint.another import damaged_checkpoint
from xectool.checkpoint.seals import DEEPEST, SEALS_KEY, is_stored, seals
from xectool.config.root import base_of
from xectool.errors import CheckpointError, UsageError

FORMAT_NAME = "xectool-checkpoint"
FORMAT_VERSION = 1
HELD = "held"  # fact of a file of one set of weights: which

Plain = Any  # dict, list, tuple, str, int, float, bool, None or Tensor, nested: what weights_only accepts


def num_lost(meta: Mapping[str, Any], average: Mapping[str, Any] | None) -> int:
    """Return how many steps an average had seen that is gone; 0 where it is there, or none was kept.

    >>> num_lost({"num_averaged": 7}, {}), num_lost({"num_averaged": 7}, {"w": 1.0}), num_lost({}, {})
    (7, 0, 0)
    """
    steps = meta.get("num_averaged")
    return steps if isinstance(steps, int) and not average else 0


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint in memory.

    Attributes:
        meta: Plain JSON-compatible facts; always has ``kind`` and ``config`` (the resolved configuration).
        model: Raw weights by state-dict key.
        ema: Averaged weights by state-dict key; empty where no average was kept.
        training: Everything a bit-exact resume needs beyond the weights; empty in an extract.
        best: Weights of the best epoch where an older layout keeps them in the same file; never in ours.
        origin: Which layout the file had: ``xectool-checkpoint`` or a name of an older system's layout.
    """

    meta: dict[str, Any]
    model: dict[str, Tensor]
    ema: dict[str, Tensor] = field(default_factory=dict)
    training: dict[str, Plain] = field(default_factory=dict)
    best: dict[str, Tensor] = field(default_factory=dict)
    origin: str = FORMAT_NAME

    @property
    def kind(self) -> str:
        """The kind of model: regressor, mae, inpainter or a kind of another package."""
        return str(self.meta["kind"])

    @property
    def base_kind(self) -> str:
        """Which of the three the kind is built on."""
        return base_of(self.kind)

    @property
    def kind_package(self) -> str:
        """The package that brought the kind; empty for the three, and where the layout does not tell."""
        return str(self.meta.get("kind_package", ""))

    @property
    def step(self) -> int:
        """Optimizer steps the weights have seen; 0 where the layout does not tell."""
        return int(self.meta.get("step", 0))

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration that rebuilds the network.

        Without ``model.sensor_positions_file``: positions and neighbours are part of the weights, and a checkpoint must
        not ask for a file of the machine it was trained on. ``meta`` still tells which file it was.
        """
        config = self.meta["config"]
        assert isinstance(config, dict)
        if not config.get("model", {}).get("sensor_positions_file"):
            return config
        return config | {"model": config["model"] | {"sensor_positions_file": None}}

    @property
    def held(self) -> str:
        """What ``model`` holds: ``ema`` or ``best`` in a file of these weights alone, as an export is."""
        return str(self.meta.get(HELD, "model"))

    @property
    def num_lost(self) -> int:
        """How many steps an average had seen that is gone; 0 where it is there, or none was kept."""
        return num_lost(self.meta, self.ema)

    def require_average(self, where: str, fix: str) -> None:
        """Refuse weights whose run averaged them where the average is gone: outputs would silently be others.

        Raises:
            CheckpointError: It is gone.
        """
        if steps := self.num_lost:
            raise CheckpointError(
                f"the averaged weights are gone ({steps} steps were averaged): the last weights give other numbers",
                where=where,
                fix=fix,
                code="XT-CKPT-NO-EMA",
            )

    def weights(self, which: str = "auto") -> dict[str, Tensor]:
        """Return the weights to predict with.

        Args:
            which: ``ema``, ``model``, ``best`` (of a layout that keeps them in the same file, else as ``auto``), or
                ``auto`` (EMA where present).

        Raises:
            CheckpointError: EMA weights are asked for and the checkpoint has none, or no longer has those of its run.
            UsageError: The last ones are asked for, and a file of the averaged ones alone has none.
        """
        if which == "model" and self.held == "ema":
            raise UsageError("the file holds the averaged weights alone", where="--weights", fix="--weights ema")
        if which == "auto":
            self.require_average("ema", "--weights model, or another checkpoint of the run")
        if which == "ema" and not self.ema and self.held != "ema":
            raise CheckpointError(
                "the checkpoint holds no EMA weights",
                where="training.ema_decay was off in that run",
                fix="--weights model",
                code="XT-CKPT-NO-EMA",
            )
        if which == "best" and self.best:
            return self.best
        return self.ema if self.ema and which != "model" else self.model


def pack(checkpoint: Checkpoint) -> dict[str, Plain]:
    """Return the dictionary that goes to disk, digest included."""
    payload: dict[str, Plain] = {
        "meta": json.dumps(checkpoint.meta, sort_keys=True),
        "model": checkpoint.model,
        "ema": checkpoint.ema,
        "training": checkpoint.training,
    }
    head = {"format": FORMAT_NAME, "version": FORMAT_VERSION, "digest": digest(payload)}
    return {**head, **payload, SEALS_KEY: seals(payload)}


def unpack(payload: Mapping[str, Plain], where: str) -> Checkpoint:
    """Return the checkpoint of a loaded dictionary after verifying version and digest.

    Raises:
        CheckpointError: The version is newer than this program, or the content does not match its digest.
    """
    version = payload.get("version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint format version {version} is newer than this xectool understands ({FORMAT_VERSION})",
            where=where,
            fix="pip install --upgrade xectool",
            code="XT-CKPT-VERSION",
        )
    content: dict[str, Any] = {name: payload.get(name) for name in ("meta", "model", "ema", "training")}
    numbered = type(version) is int and version > 0
    if not numbered or digest(content) != payload.get("digest"):
        what = (
            "its content does not match the digest stored with it" if numbered else f"no format has version {version}"
        )
        raise damaged_checkpoint(Path(where), f"the checkpoint is damaged: {what}")
    return Checkpoint(facts_of(content["meta"], where), content["model"], content["ema"], content["training"])


def facts_of(text: Any, where: str) -> dict[str, Any]:
    """Return the facts of a checkpoint, which are JSON.

    Raises:
        CheckpointError: They are not: whoever makes up a file makes up its digest as well.
    """
    try:
        facts = json.loads(text)
        if not isinstance(facts, dict):
            raise ValueError(f"they are a {type(facts).__name__}")
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged_checkpoint(Path(where), f"the facts in the checkpoint cannot be read: {error}") from error
    return facts


def digest(content: Plain) -> str:
    """Return the SHA-256 of nested tensors and plain values, independent of dictionary order."""
    state = hashlib.sha256()
    _update(state, content)
    return state.hexdigest()


def _update(state: hashlib._Hash, value: Plain, depth: int = 0) -> None:
    if depth > DEEPEST or (isinstance(value, Tensor) and not is_stored(value)):
        state.update(b"nothing that is saved here;")
    elif isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous()
        state.update(f"tensor {flat.dtype} {tuple(flat.shape)};".encode())
        if flat.numel():
            state.update(flat.reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        state.update(f"dict {len(value)};".encode())
        for key in sorted(value, key=repr):
            state.update(repr(key).encode())
            _update(state, value[key], depth + 1)
    elif isinstance(value, list | tuple):
        state.update(f"{type(value).__name__} {len(value)};".encode())
        for item in value:
            _update(state, item, depth + 1)
    else:
        state.update(f"{type(value).__name__} {value!r};".encode())
