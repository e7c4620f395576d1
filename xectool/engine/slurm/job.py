"""What a SLURM job runs: ``xectool train`` as a child, stopped before the time limit and continued after a requeue."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from submitit import JobEnvironment
from submitit.core.utils import DelayedSubmission
from submitit.helpers import TorchDistributedEnvironment

from xectool.errors import EXIT_INTERRUPTED, EXIT_OK

NODE_DIRECTORY: Final = "XECTOOL_NODE_DIRECTORY"
"""Variable that names the directory of the job on the local disk of each node."""
NODE_DIRECTORIES: Final = {
    "TMPDIR": "tmp",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "MIOPEN_USER_DB_PATH": "miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen",
    "MPLCONFIGDIR": "matplotlib",
}
"""Variables that name a directory of the node, and its name there; databases in them do not bear a network."""
# The signal may come before xectool's own handlers are there: then it ended by the signal, and nothing is lost.
_INTERRUPTED: Final = frozenset({EXIT_INTERRUPTED, -signal.SIGTERM, -signal.SIGINT})
# SLURM sends its signal to every process of a step. Ignored here, it is ignored by whatever is started, until that
# sets a handler of its own.
_IGNORING: Final = ("sh", "-c", "trap '' USR2; exec \"$@\"", "sh")
_OTHER_TASKS_WAIT_S: Final = 600


@dataclass(frozen=True)
class TrainingJob:
    """A training as one task of a job; submitit calls it, and `checkpoint` shortly before the time is up.

    Attributes:
        config: YAML file.
        arguments: Options of ``xectool train``, without ``--resume``.
        resume: ``--resume`` of the first start.
        task_is_rank: Whether each task is one rank, as on several nodes, instead of the launcher of all.
        max_requeues: How often the job may be queued again; 0 for never.
        requeues: How often it was.
    """

    config: str
    arguments: tuple[str, ...] = ()
    resume: str | None = None
    task_is_rank: bool = False
    max_requeues: int = 0
    requeues: int = 0

    def command(self) -> list[str]:
        """Return the command line; after a requeue, also one by SLURM itself, it goes on from its checkpoint."""
        again = self.requeues > 0 or os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
        resume = "auto" if again else self.resume
        words = [sys.executable, "-m", "xectool", "train", self.config, *self.arguments]
        return [*words, "--resume", resume] if resume else words

    def __call__(self) -> int:
        """Train and return 0; any other end leaves the process with the exit code of the training.

        Raises:
            SystemExit: The training did not end well.
        """
        make_node_directories()
        if self.task_is_rank:
            TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        words = [*_IGNORING, *self.command()]
        _CHILDREN.append(os.posix_spawnp(words[0], words, os.environ, setsigdef=[signal.SIGPIPE]))
        code = _exit_code(_CHILDREN[-1])
        if code in _INTERRUPTED and self.task_is_rank and JobEnvironment().global_rank != 0:
            # The first task queues the job again; SLURM would end that one as well if this one were gone first.
            time.sleep(_OTHER_TASKS_WAIT_S)
        _remove_node_directories()
        if code != EXIT_OK:
            raise SystemExit(code if code > 0 else 128 - code)
        return code

    def checkpoint(self) -> DelayedSubmission:
        """Have the training save and end, and return what the requeued job runs.

        A training that hangs is waited for: it cannot save, and SLURM ends the job at its time limit.

        Raises:
            SystemExit: It has finished or failed by itself, or may not be queued again.
        """
        code = EXIT_OK
        for pid in _CHILDREN:  # none where it has not begun yet
            os.kill(pid, signal.SIGTERM)
            code = _exit_code(pid)
        if _CHILDREN and code not in _INTERRUPTED:
            raise SystemExit(code if code >= 0 else 128 - code)
        if self.requeues >= self.max_requeues:
            raise SystemExit(EXIT_INTERRUPTED)
        _remove_node_directories()
        return DelayedSubmission(replace(self, requeues=self.requeues + 1))


_CHILDREN: Final[list[int]] = []  # of this process, not of the job, which is pickled


def _exit_code(pid: int) -> int:
    """Wait for a child and return its exit code, negative for a signal; it stays, so that `checkpoint` can ask again.

    ``Popen.wait`` would not do: it holds a lock, and `checkpoint` is a signal handler that runs inside of the wait.
    """
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if ended is None:
        raise ChildProcessError(f"process {pid} has not ended")
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def make_node_directories() -> None:
    """Make the directories of this job on this node, and have the training use them."""
    if NODE_DIRECTORY in os.environ:
        for name, leaf in NODE_DIRECTORIES.items():
            directory = Path(os.environ[NODE_DIRECTORY]) / leaf
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.environ[name] = str(directory)


def _remove_node_directories() -> None:
    """Leave the local disk as it was; the first task of each node does it, the others are at their end as well."""
    if NODE_DIRECTORY in os.environ and os.environ.get("SLURM_LOCALID", "0") == "0":
        shutil.rmtree(os.environ[NODE_DIRECTORY], ignore_errors=True)
