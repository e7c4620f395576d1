"""Names of the checkpoints of a run; who only looks at one need not load torch."""

LAST_NAME = "checkpoint_last.pt"
BEST_NAME = "checkpoint_best.pt"


def epoch_name(epoch: int) -> str:
    """Return the file name of the numbered checkpoint of an epoch."""
    return f"checkpoint_epoch_{epoch}.pt"
