"""What is said of a checkpoint that is not where it was named: those that are."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from xectool.checkpoint.names import BEST_NAME, LAST_NAME
from xectool.config.checkpoints_near import alternatives, checkpoints_near, hint_of, may_be_resumed
from xectool.errors import MisnamedCheckpoint, in_shell
from xectool.runlog.run_dirs import LISTING, USUAL_DIR


def missing_checkpoint(
    path: Path, *, resuming: bool = False, kind: str = "", runs: Path = USUAL_DIR
) -> MisnamedCheckpoint:
    """Return the refusal of a path that is no file, with the checkpoint that was meant most likely.

    Args:
        path: What was named: nothing, a directory, or a pipe.
        resuming: Whether a run is to go on from it.
        kind: Of the network of that run; any where it is not known.
        runs: Directory of the runs.
    """
    if os.path.isdir(path):
        found = [path / name for name in (BEST_NAME, LAST_NAME) if (path / name).is_file()]
        problem = "this is a directory, not a checkpoint"
    elif os.path.exists(path):
        found, problem = [], "this is no regular file (a pipe, socket or device)"
    else:
        fits = partial(may_be_resumed, kind=kind) if resuming else Path.is_file
        found = checkpoints_near(path, also=[runs], fits=fits)
        problem = f"no such checkpoint{hint_of(path, found)}"
    more = alternatives(found)
    fix = f"{in_shell(found[0])}{more}" if found else LISTING
    refusal = MisnamedCheckpoint(problem, where=str(path), fix=fix, code="XT-CKPT-MISSING")
    refusal.meant = {str(path): str(found[0])} if found else {}
    refusal.remark = more
    return refusal
