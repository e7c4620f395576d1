"""Whether the directory a run writes to is still the one it began: it may be deleted or moved away in mid-run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from xectool.errors import WorldError, in_shell
from xectool.runlog.lock import ProcessLock
from xectool.runlog.storage import RECORD_DIR, attempt_dir

LOOK_EVERY_S: Final = 10.0


class RecordPlace:
    """The directory of an attempt, known by its inode: open files of a deleted directory take every record in silence.

    Args:
        run_dir: Directory of the run.
        attempt: Number of the attempt, from 1.
    """

    def __init__(self, run_dir: Path, attempt: int) -> None:
        self.run_dir = run_dir
        self._directory = attempt_dir(run_dir, attempt)
        self._begun = self._directory.stat()
        self._looked_at = time.monotonic()

    def is_gone(self) -> bool:
        """Return whether the attempt has lost its place; a file system that does not answer is no loss.

        Nor is one that numbers its directories anew, as sshfs does: the pages of the ranks are there.
        """
        self._looked_at = time.monotonic()
        try:
            if os.path.samestat(self._begun, self._directory.stat()):
                return False
            return self.is_taken() or not any(self._directory.glob("rank*.status"))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False

    def is_found_gone(self) -> bool:
        """Return `is_gone`, looking every ten seconds only."""
        return time.monotonic() - self._looked_at >= LOOK_EVERY_S and self.is_gone()

    def is_taken(self) -> bool:
        """Return whether another process records a run in the place: its checkpoints are not to be replaced."""
        return ProcessLock(self.run_dir / RECORD_DIR / "lock").holder() not in {None, os.getpid()}

    def loss(self, step: int, saved: Path | None) -> WorldError:
        """Return the error of a run whose directory is gone.

        Args:
            step: The last step.
            saved: The checkpoint written now, or None where another run is in the place.
        """
        kept = "the weights are saved there anew" if saved else "another record is there now, so nothing was saved"
        fix = f"xectool train CONFIG --resume {in_shell(saved)} --run-name again" if saved else "xectool runs"
        return WorldError(
            f"the run directory was deleted or moved while the run wrote to it: the record and the checkpoints before "
            f"step {step} are no longer there; {kept}",
            where=str(self.run_dir),
            fix=f"{fix}   # and find out who deletes: a clean-up of scratch, an rm -r",
            code="XT-RUN-GONE",
        )
