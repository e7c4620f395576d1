"""Which of the states that a run has saved still takes the events that its weights fail on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from xectool.checkpoint import store
from xectool.config.root import RunConfig
from xectool.data.batch import EventBatch
from xectool.errors import CheckpointError
from xectool.probes.instruments.bench import Bench, build_bench
from xectool.probes.instruments.trial import try_step
from xectool.training.saving.late_exclusion import in_saved_order
from xectool.training.saving.resume import require_resumable

MOST_TRIED: Final = 6  # states, the newest first; each builds the network once


def sound_state(bench: Bench, window: Sequence[EventBatch], directories: Iterable[Path]) -> Path | None:
    """Return the newest checkpoint of its run with which a step over a window stays finite, or None.

    A checkpoint may be whole and finite, so that a resume takes it, and still hold weights that overflow. One is in
    memory at a time.

    Args:
        bench: What is trained; its own weights stay as they are.
        window: Batches of one optimizer step.
        directories: Where checkpoints lie.
    """
    paths = dict.fromkeys(path.resolve() for place in directories for path in place.glob("checkpoint_*.pt"))
    steps = {path: step for path in paths if (step := _step_to_resume(bench.config, path)) is not None}
    for path in sorted(steps, key=steps.__getitem__, reverse=True)[:MOST_TRIED]:
        with suppress(CheckpointError):  # another network, or a file that a live run has just replaced
            tried = build_bench(bench.config, bench.execution, store.load(path))
            if not try_step(replace(tried, evaluating=bench.evaluating), window).bad:
                return path
    return None


def _step_to_resume(config: RunConfig, path: Path) -> int | None:
    """Return the step that a run of a configuration would go on from; None where it would not, or is another run."""
    try:
        checkpoint = store.load(path)
        require_resumable(in_saved_order(config, checkpoint)[0], checkpoint, None, path)
    except CheckpointError:
        return None
    name = checkpoint.config.get("mlflow", {}).get("run_name")
    return checkpoint.step if config.mlflow.run_name in (None, name) else None
