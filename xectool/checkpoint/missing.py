"""What is said of a checkpoint that is not where it was named: those that are."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from xectool.checkpoint.names import BEST_NAME, LAST_NAME
from xectool.config.checkpoints_near import alternatives, checkpoints_near, hint_of, may_be_of_kind, resumable
from xectool.errors import MisnamedCheckpoint, in_shell
from xectool.runlog.run_dirs import LISTING, USUAL_DIR

if TYPE_CHECKING:
    from xectool.config.root import RunConfig


def missing_checkpoint(path: Path, *, resuming: RunConfig | None = None, kind: str = "") -> MisnamedCheckpoint:
    """Return the refusal of a path that is no file, with the checkpoint that was meant most likely.

    Args:
        path: What was named: nothing, a directory, or a pipe.
        resuming: Configuration of the run that is to go on from it.
        kind: Of the network that is needed; any by default.
    """
    runs = Path(resuming.checkpoint.save_dir).expanduser() if resuming else USUAL_DIR
    of_kind = partial(may_be_of_kind, kind=kind) if kind else Path.is_file
    if os.path.isdir(path):
        found = [path / name for name in (BEST_NAME, LAST_NAME) if of_kind(path / name)]
        problem = "this is a directory, not a checkpoint"
    elif os.path.exists(path):
        found, problem = [], "this is no regular file (a pipe, socket or device)"
    else:
        found = checkpoints_near(path, also=[runs], fits=resumable(resuming) if resuming else of_kind)
        problem = f"no such checkpoint{hint_of(path, found)}"
    more = alternatives(found)
    listing = f"xectool runs --root {in_shell(runs)}   # lists them" if resuming and os.path.isdir(runs) else LISTING
    fix = f"{in_shell(found[0])}{more}" if found else listing
    refusal = MisnamedCheckpoint(problem, where=str(path), fix=fix, code="XT-CKPT-MISSING")
    refusal.meant = {str(path): str(found[0])} if found else {}
    refusal.remark = more
    return refusal
