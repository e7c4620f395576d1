"""What ranks besides the first warn of: the launcher says it; their own screen is a file that goes with the job."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOG = logging.getLogger(__name__)


@contextmanager
def warned_through_launcher(directory: Path, rank: int) -> Iterator[None]:
    """Have the launcher say what this rank warns of inside the block; the first rank has the screen itself."""
    if not rank:
        yield
        return
    told = logging.FileHandler(_path(directory, rank), encoding="utf-8")
    told.setLevel(logging.WARNING)
    logging.getLogger("xectool").addHandler(told)
    try:
        yield
    finally:
        logging.getLogger("xectool").removeHandler(told)
        told.close()


class RankWarnings:
    """The launcher's side: says each warning once, whichever ranks it comes from.

    Args:
        directory: Where the ranks leave what they say.
        nproc: Number of ranks.
    """

    def __init__(self, directory: Path, nproc: int) -> None:
        self._paths = {rank: _path(directory, rank) for rank in range(1, nproc)}
        self._read = dict.fromkeys(self._paths, 0)
        self._said: set[str] = set()

    def say(self) -> None:
        """Say what is new, as far as its lines are whole."""
        for rank, path in self._paths.items():
            if not path.exists():
                continue
            new = path.read_bytes()[self._read[rank] :]
            whole = new[: new.rfind(b"\n") + 1]
            self._read[rank] += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                if line not in self._said:
                    self._said.add(line)
                    _LOG.warning("rank %d: %s", rank, line)


def _path(directory: Path, rank: int) -> Path:
    return directory / f"warnings.rank{rank:04d}"
