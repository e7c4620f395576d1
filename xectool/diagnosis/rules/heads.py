"""Heads that are not trained while the rest of the network is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from xectool.config.training import DEFAULT_TIME_THRESHOLD
from xectool.diagnosis import fixes
from xectool.diagnosis.cases.plateau import DEAD_STEPS, enough_to_learn, no_step_size, term_levels
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.statistics import finite
from xectool.diagnosis.rules.learning import ADAM_EPS

HEADS: Final = "heads."
SOUND_WEIGHT: Final = 1e3  # of a task, and one over it; with the others at 1
CHANNEL_WEIGHTS: Final = {"npho": "training.npho_weight", "time": "training.time.weight"}
TIME_THRESHOLD: Final = "training.time.npho_threshold"
NO_WEIGHT: Final = 1e-9  # of the largest: less than AdamW tells from no gradient
_STARVED: Final = "less gradient than AdamW adds to it (1e-8)"


class UntrainedHead(DiagnosisRule):
    """One head gets no gradient while others learn."""

    code = "XT-UNTRAINED-HEAD"
    title = "a head is not trained"

    def unseen(self, evidence: Evidence) -> str:
        """Return that gradients by block are not recorded in older runs."""
        known = evidence.steps.blocks or evidence.of("zero_gradient")
        return "" if known else "gradients by block were not recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Look for parameters and blocks of heads without gradient; a loss alone does not tell late from never."""
        if no_step_size(evidence):
            return
        yield from self._weightless_channels(evidence)
        yield from self._channels_without_target(evidence)
        named = [
            str(name)
            for event in evidence.of("zero_gradient")
            for name in event.data.get("parameters") or ()
            if HEADS in str(name)
        ]
        lost = list(dict.fromkeys([*named, *dead_blocks(evidence)]))
        starved = [name for name in starved_blocks(evidence) if name not in lost]
        if lost or starved:
            flat = [level.text() for level in term_levels(evidence) if level.trivial_reached]
            why = {"no gradient": lost, _STARVED: starved}
            told = [f"{reason}: {', '.join(names[:5])}" for reason, names in why.items() if names]
            yield self._cause(evidence, sorted({_head(name) for name in (*lost, *starved)}), [*told, *flat])
        elif outshone := _outshone(evidence):
            yield self._cause(evidence, list(outshone), list(outshone.values()))

    def _weightless_channels(self, evidence: Evidence) -> Iterator[Cause]:
        """Yield channels of sensors that are predicted and that the loss leaves out: both share their layers."""
        weights = {
            name: evidence.setting(CHANNEL_WEIGHTS[name]) for name in evidence.setting("model.predict_channels") or ()
        }
        known = {name: float(value) for name, value in weights.items() if isinstance(value, int | float)}
        largest = max(known.values(), default=0.0)
        lost = [name for name, value in known.items() if value < NO_WEIGHT * largest]
        if lost:
            settings = [f"{CHANNEL_WEIGHTS[name]}=1.0" for name in lost]
            yield Cause(
                code=self.code,
                confidence=0.9,
                problem=f"{', '.join(lost)} is predicted and not trained: "
                + ", ".join(f"{CHANNEL_WEIGHTS[name]} is {known[name]:g}" for name in lost),
                evidence=(f"model.predict_channels: {', '.join(weights)}",),
                fix=fixes.train_again(evidence, *settings, name="all-channels"),
                symptom="channel",
            )

    def _channels_without_target(self, evidence: Evidence) -> Iterator[Cause]:
        """Yield channels of sensors that are predicted and of which no event has shown a number to be learned."""
        silent = {name: _is_silent(evidence, name) for name in evidence.setting("model.predict_channels") or ()}
        lost = [name for name, known in silent.items() if known and evidence.setting(CHANNEL_WEIGHTS[name])]
        if not lost or all(silent.values()):
            return
        threshold = evidence.setting(TIME_THRESHOLD) if lost == ["time"] else None
        lower = threshold is not None and threshold > DEFAULT_TIME_THRESHOLD  # which is what null means
        why = "" if threshold is None else f" ({TIME_THRESHOLD} is {threshold:g})"
        yield Cause(
            code=self.code,
            confidence=0.9,
            problem=f"{', '.join(lost)} is predicted and not trained: no sensor has a number to be learned{why}",
            evidence=(f"model.predict_channels: {', '.join(silent)}", "its losses are 0 in every step"),
            fix=fixes.train_again(evidence, f"{TIME_THRESHOLD}=null", name="all-channels")
            if lower
            else fixes.check_named_files(evidence, "train"),
            symptom="channel",
        )

    def _cause(self, evidence: Evidence, heads: list[str], lines: list[str]) -> Cause:
        weights = _absurd_weights(evidence, heads)
        # With a weight, steps of the configuration as it is now tell a loss of gradients from an older program's.
        look = f"xectool diagnose gradients {fixes.config_path(evidence)}"
        again = fixes.train_again(evidence, *(f"{key}=1.0" for key in weights), name="all-tasks")
        named = ", ".join(f"{key} is {value:g}" for key, value in weights.items())
        return Cause(
            code=self.code,
            confidence=0.93,
            problem=f"{', '.join(heads)} is not trained while the rest of the network is" + (named and f": {named}"),
            evidence=tuple(lines),
            fix=again if weights else look,
            symptom="head",
        )


def _is_silent(evidence: Evidence, channel: str) -> bool:
    """Return whether the losses of a channel are exactly zero on all faces, in all of at least 20 steps."""
    rows, terms = evidence.steps.good_rows, evidence.steps.terms
    losses = [finite(values[rows]) for term, values in terms.items() if term.endswith(f"_{channel}")]
    return bool(losses) and all(known.size >= DEAD_STEPS and not known.any() for known in losses)


def dead_blocks(evidence: Evidence) -> list[str]:
    """Return the heads whose gradient is exactly zero in all of at least 20 steps while others have one."""
    started = evidence.last("run_start")
    named = [str(name) for name in (started.data.get("blocks") if started else None) or ()]
    found = [name for name in silent_blocks(evidence) if name.startswith(HEADS)]
    if evidence.steps.good_rows.size >= DEAD_STEPS and _some_learn(evidence):
        found += _frozen_heads(named, (started.data.get("tasks") if started else None) or ())
    return found


def silent_blocks(evidence: Evidence) -> list[str]:
    """Return the blocks without any gradient in all of at least 20 steps while others have one."""
    blocks, rows = evidence.steps.blocks, evidence.steps.good_rows
    if not _some_learn(evidence):
        return []
    found = []
    for name, norms in blocks.items():
        known = norms[rows][np.isfinite(norms[rows])]
        if known.size >= DEAD_STEPS and not known.any():
            found.append(name)
    if rows.size >= DEAD_STEPS:
        # What nothing reaches has no gradient at all, so only the list of trained blocks knows of it.
        started = evidence.last("run_start")
        named = (started.data.get("blocks") if started else None) or ()
        found += [str(name) for name in named if str(name) not in blocks]
    return found


def starved_blocks(evidence: Evidence) -> list[str]:
    """Return the heads that clipping and weights leave less gradient in all of at least 20 steps than AdamW adds."""
    rows = evidence.steps.good_rows
    factors = evidence.steps["clip_coef"][rows]
    left = {name: finite(norms[rows] * factors) for name, norms in evidence.steps.blocks.items()}
    starved = [name for name, norms in left.items() if norms.size >= DEAD_STEPS and 0 < norms.max() < ADAM_EPS]
    # Where all are, it is the clip.
    return [name for name in starved if name.startswith(HEADS)] if len(starved) < len(left) else []


def _outshone(evidence: Evidence) -> dict[str, str]:
    """Return the heads that learn nothing beside a task of an absurd weight, which has the encoder for itself."""
    levels = [level for level in term_levels(evidence) if level.tells_alone]
    flat = {f"{HEADS}{level.term}": level.text() for level in levels if level.trivial_reached}
    some_learn = len(flat) < len(levels) and enough_to_learn(evidence)
    return flat if some_learn and _absurd_weights(evidence, list(flat)) else {}


def _absurd_weights(evidence: Evidence, heads: Sequence[str]) -> dict[str, float]:
    """Return the task weights that leave heads without a gradient: none of its own, or far from those of the others."""
    started = evidence.last("run_start")
    tasks = [f"{HEADS}{task}" for task in (started.data.get("tasks") if started else None) or ()]
    found = {}
    for head in dict.fromkeys([*heads, *tasks]):
        key = f"tasks.{head.removeprefix(HEADS)}.weight"
        weight = evidence.setting(key)
        sound = isinstance(weight, int | float) and 1 / SOUND_WEIGHT <= weight <= SOUND_WEIGHT
        if isinstance(weight, int | float) and not sound and (head in heads or weight > 0):
            found[key] = float(weight)
    return found


def _some_learn(evidence: Evidence) -> bool:
    return any(np.nansum(norms) > 0 for norms in evidence.steps.blocks.values())


def _frozen_heads(blocks: list[str], tasks: Sequence[object]) -> list[str]:
    """Return the heads of enabled tasks that are not among the trained blocks, where other heads are."""
    heads = [f"{HEADS}{task}" for task in tasks]
    trained = [head for head in heads if any(block == head or block.startswith(head + ".") for block in blocks)]
    return [head for head in heads if head not in trained] if trained else []


def _head(parameter: str) -> str:
    """Return ``heads.energy`` of ``heads.energy.6.weight``."""
    parts = parameter.split(".")
    return ".".join(parts[parts.index("heads") :][:2]) if "heads" in parts else parameter
