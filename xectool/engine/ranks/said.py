"""What ranks besides the first warn of: the launcher says it; their own screen is a file that goes with the job."""

from __future__ import annotations

import json
import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from xectool.runlog.passed_on import passed_on

_LOG = logging.getLogger(__name__)


def warned_through_launcher(directory: Path, rank: int) -> AbstractContextManager[None]:
    """Have the launcher say what this rank and its readers warn of inside the block; the first has the screen."""
    return passed_on(_path(directory, rank)) if rank else nullcontext()


class RankWarnings:
    """The launcher's side: says each warning once, whichever of the ranks besides the first it comes from.

    What the first rank has said as well is said by both.

    Args:
        directory: Where the ranks leave what they say.
        nproc: Number of ranks.
    """

    def __init__(self, directory: Path, nproc: int) -> None:
        self._paths = {rank: _path(directory, rank) for rank in range(1, nproc)}
        self._read = dict.fromkeys(self._paths, 0)
        self._said: set[str] = set()

    def say(self) -> None:
        """Say what is new, as far as it is whole; a file that cannot be read is said once and left."""
        for rank, path in list(self._paths.items()):
            try:
                whole = self._new(rank, path)
            except OSError as error:
                del self._paths[rank]
                _LOG.warning("what rank %d warns of cannot be read any more: %s: %s", rank, path, error.strerror)
                continue
            for line in whole.splitlines():
                if line not in self._said:
                    self._said.add(line)
                    _LOG.warning("rank %d: %s", rank, _message(line))

    def _new(self, rank: int, path: Path) -> str:
        try:
            with path.open("rb") as file:
                file.seek(self._read[rank])
                new = file.read()
        except FileNotFoundError:  # it has not warned of anything
            return ""
        whole = new[: new.rfind(b"\n") + 1]
        self._read[rank] += len(whole)
        return whole.decode(errors="replace")


def _message(line: str) -> str:
    """Return the warning that a line holds, or the line where it is none, e.g. for lack of room on the disk."""
    try:
        return str(json.loads(line))
    except ValueError:
        return line


def _path(directory: Path, rank: int) -> Path:
    return directory / f"warnings.rank{rank:04d}"
