"""Which of the states that a run has saved still takes the events that its weights fail on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.data.batch import EventBatch
from xectool.errors import CheckpointError
from xectool.probes.instruments.bench import Bench, build_bench
from xectool.probes.instruments.trial import try_step

MOST_TRIED: Final = 6  # states, the newest first; each builds the network once


def sound_state(bench: Bench, window: Sequence[EventBatch], directories: Iterable[Path]) -> Path | None:
    """Return the newest checkpoint with which a step over a window stays finite, or None where there is none.

    A checkpoint may be whole and finite, so that a resume takes it, and still hold weights that overflow.

    Args:
        bench: What is trained; its own weights stay as they are.
        window: Batches of one optimizer step.
        directories: Where checkpoints lie.
    """
    found: dict[Path, Checkpoint] = {}
    for path in dict.fromkeys(path.resolve() for place in directories for path in place.glob("*.pt")):
        with contextlib.suppress(CheckpointError):
            if (checkpoint := store.load(path)).training:
                found[path] = checkpoint
    newest = sorted(found, key=lambda path: found[path].step, reverse=True)
    for path in newest[:MOST_TRIED]:
        with contextlib.suppress(CheckpointError):  # of another network
            tried = build_bench(bench.config, bench.execution, found[path])
            if not try_step(replace(tried, evaluating=bench.evaluating), window).bad:
                return path
    return None
