"""Whether a run that goes on has a step left to take."""

from __future__ import annotations

from xectool.checkpoint.format import Checkpoint
from xectool.config.root import RunConfig
from xectool.training.saving.resume import objective_changes


def nothing_left(config: RunConfig, checkpoint: Checkpoint) -> bool:
    """Return whether the epochs asked for are done, or none was better for as long as patience lasts.

    With another objective the best is found anew.

    Args:
        config: What the run goes on with.
        checkpoint: Where it goes on.
    """
    if int(checkpoint.meta["epoch"]) > config.training.epochs:
        return True
    patience, waited = config.training.early_stop_patience, checkpoint.meta["progress"].get("epochs_since_best", 0)
    return patience is not None and int(waited) >= patience and not objective_changes(config, checkpoint)
