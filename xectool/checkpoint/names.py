"""Names of the checkpoints of a run; who only looks at one need not load torch."""

from typing import Final

LAST_NAME = "checkpoint_last.pt"
BEST_NAME = "checkpoint_best.pt"


def epoch_name(epoch: int) -> str:
    """Return the file name of the numbered checkpoint of an epoch."""
    return f"checkpoint_epoch_{epoch}.pt"


USE_ANOTHER: Final = "use another checkpoint of the run; xectool train CONFIG --resume auto picks the newest sound one"
"""What to do about a checkpoint that is damaged."""

EXPORT_AGAIN: Final = "xectool export CKPT --output FILE   # from the checkpoint it came from"
"""What to do about an export that is damaged."""

EXPORTS: Final = (".onnx", ".torchscript", ".pt2")
"""Endings of what is no checkpoint and comes from one."""
