"""What a checkpoint can be used for, and why not for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from xectool.checkpoint.extract import ENCODER
from xectool.checkpoint.format import HELD
from xectool.checkpoint.inspection.facts import Inspected
from xectool.checkpoint.inspection.layout import OLDER, XECTOOL, Layout
from xectool.checkpoint.inspection.training_state import resume_gaps
from xectool.config.root import base_of

ACTIONS: Final = ("resume", "fine-tune", "predict", "export")
KINDS: Final = ("regressor", "mae", "inpainter")
_SETS: Final = {"ema": "averaged weights", "model": "raw weights"}
_PREDICTING: Final = ("ema", "model", "best")
_GRAPHS: Final = ("onnx", "torchscript", "torch-export")
_LOST: Final = "the averaged weights are gone"
_STRETCHED: Final = ("cosine", "onecycle")  # schedules that end with the last epoch, wherever that is
_NO_CONFIG: Final = "it stores no configuration, so normalisation and pooling are unknown"


@dataclass(frozen=True)
class Fitness:
    """Whether a file serves a purpose.

    Attributes:
        action: ``resume``, ``fine-tune``, ``predict`` or ``export``.
        possible: Whether it can be done.
        why: What stands in the way, or what will happen.
    """

    action: str
    possible: bool
    why: str


def fitness(facts: Inspected, done: int) -> tuple[Fitness, ...]:
    """Return what a file can be used for, one answer an action; of a finished run ``done`` epochs are all."""
    general = _obstacle(facts)
    return tuple(_answer(action, facts, general, done) for action in ACTIONS)


def bit_exact(facts: Inspected) -> tuple[bool, tuple[str, ...]]:
    """Return whether a resume ends with the weights an uninterrupted run would have, and what is missing."""
    gaps = resume_gaps(facts.layout)
    if not facts.is_intact:
        gaps.append("the file is damaged")
    if facts.nonfinite:
        gaps.append(f"{len(facts.nonfinite)} tensors are not finite")
    if facts.optimizer is not None and facts.optimizer.problems:
        gaps.append("the optimizer state does not belong to the weights")
    return not gaps, tuple(gaps)


def finished_epochs(layout: Layout, asked: int | None) -> int:
    """Return how many epochs were trained where no more are ``asked`` for, by default by its own run; else 0."""
    training = layout.config.get("training") if layout.config is not None and layout.origin == XECTOOL else None
    own = training.get("epochs") if isinstance(training, Mapping) else None
    if not isinstance(own, int) or layout.epoch is None:
        return 0
    return layout.epoch - 1 if layout.epoch > (asked or own) else 0


def _answer(action: str, facts: Inspected, general: str, done: int) -> Fitness:
    reason = general or next(_reasons(action, facts), "")
    return Fitness(action, not reason, reason or _how(action, facts, done))


def _obstacle(facts: Inspected) -> str:
    """Return what stands in the way of every use."""
    layout = facts.layout
    if not facts.is_intact:
        return "the file is damaged"
    if facts.contents.unsafe:
        return f"the safe loader refuses {facts.contents.unsafe[0].name}"
    if not layout.main:
        return "it holds no weights"
    of_sets = {name for role in layout.weights for name in facts.nonfinite_in(role)}
    bad = [name for name in facts.nonfinite if name not in of_sets and not name.startswith("training.optimizer")]
    if bad:
        return f"{bad[0]} is not finite"
    if layout.is_ours and layout.config is not None and base_of(layout.kind) not in (*KINDS, ENCODER):
        return f"no installed package brings the kind {layout.kind}"
    return "the weights contradict the stored configuration" if facts.misfits else ""


def _reasons(action: str, facts: Inspected) -> Iterator[str]:
    """Yield what stands in the way of one use."""
    contents, layout = facts.contents, facts.layout
    if contents.format in _GRAPHS:
        if action != "predict":
            named = layout.meta.get("xectool.checkpoint")
            source = f" ({named})" if named else ""
            yield f"{contents.format} is an exported graph; use the checkpoint it was exported from{source}"
        elif contents.format == "torch-export":
            yield "PyTorch runs what stands in a .pt2 when it opens one; xectool predicts with its checkpoint or ONNX"
        elif not _is_our_export(contents.facts, layout.meta):
            yield "no metadata of xectool: units and normalisation of its inputs are unknown"
        return
    if not layout.is_ours:
        yield f"not a network of this project ({layout.origin}: {layout.kind})"
    elif action == "resume":
        yield from _resume_reasons(facts)
    elif bad := _nonfinite_for(action, facts):
        yield f"{bad[0]} is not finite"
    elif layout.config is None and (action != "fine-tune" or contents.format == "safetensors"):
        yield _NO_CONFIG
    elif action != "fine-tune":
        yield from _kind_reasons(action, layout.kind)


def _kind_reasons(action: str, kind: str) -> Iterator[str]:
    if kind == ENCODER:
        yield "it holds an encoder only; train a head on it with checkpoint.init_from"
    elif action == "export" and kind not in KINDS:
        yield f"{kind} is a plugin's kind, of which no export is known; predict with the checkpoint"


def _nonfinite_for(action: str, facts: Inspected) -> list[str]:
    """Return what is not finite in the weights an action takes: a prediction can be told to take another set."""
    sets = facts.layout.weights
    bad = {role: facts.nonfinite_in(role) for role in sets}
    if action == "predict":
        bad = {role: names for role, names in bad.items() if role in _PREDICTING}
        return [] if any(not names for names in bad.values()) else next(iter(bad.values()), [])
    if action == "fine-tune":
        return bad[next(role for role in ("best", "ema", "model") if role in sets)]
    return next((names for names in bad.values() if names), [])  # an export asks for a file without any error


def _resume_reasons(facts: Inspected) -> Iterator[str]:
    if facts.layout.origin == OLDER or (facts.layout.origin != XECTOOL and facts.layout.training):
        yield "the state of another program's optimizer and scheduler is not carried over; use checkpoint.init_from"
    elif not facts.layout.training:
        yield "it holds weights only"
    elif facts.layout.num_lost:
        yield _LOST
    else:
        yield from bit_exact(facts)[1]


def _onward(layout: Layout) -> str:
    """Return how a finished run goes on with more epochs."""
    training = layout.config.get("training") if layout.config is not None else None
    name = training.get("lr_scheduler") if isinstance(training, Mapping) else None
    return "from these weights, with the schedule of the longer run" if name in _STRETCHED else "bit for bit"


def _how(action: str, facts: Inspected, done: int) -> str:
    layout = facts.layout
    if action == "resume" and done:
        return (
            f"but nothing is left to train: all {done} epochs are done; with more of them it goes on {_onward(layout)}"
        )
    if action == "resume":
        return f"bit for bit from epoch {layout.epoch}, step {layout.step}"
    if action == "fine-tune" and layout.config is None:
        return "normalisation and pooling of the new run are taken to be those it was trained with; nothing checks that"
    if action == "fine-tune":
        all_of_it = f"all weights into the same kind ({layout.kind}), its encoder into any"
        lost = f"; the last weights: {_LOST}" if layout.num_lost else ""
        return (all_of_it if layout.kind != ENCODER else "its encoder") + lost
    if facts.contents.format in _GRAPHS:
        return "as exported"
    if layout.num_lost:
        return f"with --weights model only: {_LOST}"
    first, other = ("ema", "model") if layout.weights.get("ema") else ("model", "best")
    if facts.nonfinite_in(first):
        return f"with --weights {other} only: {facts.nonfinite_in(first)[0]} is not finite"
    held = str(layout.meta.get(HELD, first))
    return f"with the {_SETS.get(held, f'{held} weights')}{', which it holds alone' if held != first else ''}"


def _is_our_export(facts: Mapping[str, Any], meta: Mapping[str, Any]) -> bool:
    named = [*map(str, meta), *map(str, facts.get("extra_files", ()))]
    return any(XECTOOL in name for name in named)
