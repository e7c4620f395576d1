"""What is asked of SLURM, and the batch script that asks for it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from submitit.slurm.slurm import SlurmExecutor

from xectool.engine.slurm.job import NODE_DIRECTORIES, NODE_DIRECTORY
from xectool.errors import UsageError, in_shell

SIGNAL_BEFORE_S: Final = 180
_TIME: Final = re.compile(r"^(?:(\d+)-)?(\d{1,3}):([0-5]\d):([0-5]\d)$")
_DAYS: Final = re.compile(r"(\d+)-(\d{1,2})(?::([0-5]\d))?")  # days and hours, and minutes, as SLURM reads them
_MEMORY: Final = re.compile(r"^(\d+)\s*([MGT])(?:i?B)?$", re.IGNORECASE)
_WORDS: Final = ("partition", "account", "exclude", "nodelist")
_FREE: Final = ("account", "exclude", "nodelist")  # those that may be left out
_LEAST: Final = {"gpus": 0, "nodes": 1, "cpus_per_gpu": 1, "max_requeues": 1, "signal_before_s": 10}
_MIB: Final = {"M": 1, "G": 1024, "T": 1024**2}


@dataclass(frozen=True)
class JobRequest:
    """Resources of a job, as given on the command line.

    Attributes:
        partition: Where it is queued.
        time: Limit as ``HH:MM:SS`` or ``D-HH:MM:SS``.
        gpus: GPUs of each node, one rank each; 0 for one rank on the CPU of each node; None for as many as
            ``distributed.num_gpus`` of the configuration.
        nodes: Machines.
        cpus_per_gpu: Cores of each rank.
        mem: Memory of each node, such as ``120G``; None for the partition's own.
        account: Who pays.
        exclude: Nodes not to use.
        nodelist: Nodes to use.
        requeue: Whether the job is queued again at its time limit, and by SLURM when a node fails.
        max_requeues: How often.
        signal_before_s: Time between the request to save and the limit, in s.
    """

    partition: str | None
    time: str | None
    gpus: int | None = 1
    nodes: int = 1
    cpus_per_gpu: int = 8
    mem: str | None = None
    account: str | None = None
    exclude: str | None = None
    nodelist: str | None = None
    requeue: bool = False
    max_requeues: int = 10
    signal_before_s: int = SIGNAL_BEFORE_S

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each node."""
        return max(1, 1 if self.gpus is None else self.gpus)

    @property
    def task_is_rank(self) -> bool:
        """Whether SLURM starts every rank; on one node ``xectool train --nproc`` does, and names the one that died."""
        return self.nodes > 1

    @property
    def seconds(self) -> int:
        """Time limit in s.

        Raises:
            UsageError: It is missing or not in the one form that cannot be misread.
        """
        match = _TIME.match(self.time or "")
        if match is None:
            given = f"'{self.time}' is neither HH:MM:SS nor D-HH:MM:SS" if self.time else "there is no time limit"
            said = _DAYS.fullmatch(self.time or "")
            trap = "; SLURM reads 12:00 as twelve minutes" if not said and (self.time or "").count(":") == 1 else ""
            meant = f"{said[1]}-{said[2]:0>2}:{said[3] or '00'}:00" if said else "12:00:00"
            raise UsageError(given + trap, where="--time", fix=f"--time {meant}", code="XT-SUBMIT-TIME")
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

    @property
    def memory_mib(self) -> int | None:
        """Memory of each node in MiB, which SLURM calls MB.

        Raises:
            UsageError: It is not a size.
        """
        if self.mem is None:
            return None
        match = _MEMORY.match(self.mem)
        if match is None or not int(match[1]):
            raise UsageError(f"'{self.mem}' is not a size", where="--mem", fix="--mem 120G", code="XT-SUBMIT-REQUEST")
        return int(match[1]) * _MIB[match[2].upper()]

    def faults(self) -> Iterator[UsageError]:
        """Yield all that is missing or makes no sense, as far as it can be checked without SLURM."""
        if not self.partition:
            yield UsageError(
                "no partition is given, and the cluster's default is seldom the one with the GPUs",
                where="--partition",
                fix="sinfo --summarize   # lists them; then: --partition NAME",
                code="XT-SUBMIT-REQUEST",
            )
        for option in _WORDS:
            word = getattr(self, option)
            # a line of its own would be run as a command
            if word is not None and (not word.isprintable() or len(word.split()) != 1) and (word or option in _FREE):
                sound = "".join(char for char in word if char.isprintable() and char != " ")
                yield UsageError(
                    f"{word!r} is no word that SLURM takes: no spaces, no line ends",
                    where=f"--{option}",
                    fix=f"--{option} {in_shell(sound) if sound else 'NAME'}",
                    code="XT-SUBMIT-REQUEST",
                )
        for name, lowest in _LEAST.items():
            given = getattr(self, name)
            if given is not None and given < lowest:
                option = option_of(name)
                yield UsageError(
                    f"{option} {given} is below {lowest}",
                    where=option,
                    fix=f"{option} {lowest}",
                    code="XT-SUBMIT-REQUEST",
                )
        yield from self._unreadable()

    def _unreadable(self) -> Iterator[UsageError]:
        """Yield what is wrong with time and memory."""
        for name in ("memory_mib", "training_s"):
            try:
                getattr(self, name)
            except UsageError as error:
                yield error

    @property
    def training_s(self) -> int:
        """Time for training in s, without what is kept for saving.

        Raises:
            UsageError: There is no limit, or it leaves too little.
        """
        if self.seconds < 2 * self.signal_before_s:
            raise UsageError(
                f"--time {self.time} leaves less for training than the {self.signal_before_s} s kept for saving",
                where="--time",
                fix="--time 01:00:00   # or a smaller --signal-before",
                code="XT-SUBMIT-TIME",
            )
        return self.seconds - self.signal_before_s

    def sound(self) -> JobRequest:
        """Return the request with something sound in place of each fault, by which the rest can be looked at."""
        wrong = {error.where.removeprefix("--").replace("-", "_") for error in self.faults()}
        usual: dict[str, Any] = {"partition": "p", "time": "12:00:00", "signal_before_s": SIGNAL_BEFORE_S}
        names = {name: name.removesuffix("_s") for name in (*_WORDS, *_LEAST, "time", "mem")}
        changed: dict[str, Any] = {n: usual.get(n, _LEAST.get(n)) for n, option in names.items() if option in wrong}
        return replace(self, **changed)

    def parameters(self, job_name: str) -> dict[str, Any]:
        """Return the parameters of submitit for this request."""
        tasks = self.ranks_per_node if self.task_is_rank else 1
        cores = self.cpus_per_gpu * self.ranks_per_node // tasks
        memory = self.memory_mib
        found: dict[str, Any] = {
            "job_name": job_name,
            "partition": self.partition,
            "time": math.ceil(self.seconds / 60),
            "nodes": self.nodes,
            "ntasks_per_node": tasks,
            "cpus_per_task": cores,
            "gpus_per_node": self.gpus or None,
            "mem": None if memory is None else f"{memory}M",
            "account": self.account,
            "exclude": self.exclude,
            "nodelist": self.nodelist,
            "signal_delay_s": self.signal_before_s,
            "wckey": None,  # refused where accounting does not know it
            "setup": self.setup(cores),
            "srun_args": ["--kill-on-bad-exit=1"] if self.task_is_rank else None,
            "additional_parameters": {"requeue" if self.requeue else "no_requeue": True},
        }
        return {name: value for name, value in found.items() if value is not None or name == "wckey"}

    def setup(self, cores: int) -> list[str]:
        """Return the lines of the script before the job: limits, threads, and directories of the node.

        Args:
            cores: Cores of a task.
        """
        # TMPDIR is set by the task: SLURM makes one that is missing, without its parents, or falls back to /tmp.
        directories = [
            f'export {name}="${NODE_DIRECTORY}/{leaf}"' for name, leaf in NODE_DIRECTORIES.items() if name != "TMPDIR"
        ]
        return [
            "ulimit -c 0",
            f'export {NODE_DIRECTORY}="${{SLURM_TMPDIR:-/tmp}}/xectool-$USER-$SLURM_JOB_ID"',
            *directories,
            "unset XDG_RUNTIME_DIR",  # of the machine that submitted
            f"export OMP_NUM_THREADS={self.cpus_per_gpu}",
            f"export SRUN_CPUS_PER_TASK={cores}",  # srun does not take it over from sbatch since SLURM 22.05
            "export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1 PYTHONNOUSERSITE=1",
        ]


class ScriptWriter(SlurmExecutor):
    """submitit's executor, also on a machine without SLURM, where it can write the script but not submit it."""

    @classmethod
    def affinity(cls) -> int:
        """Return that it can be used."""
        return 1

    def script(self) -> str:
        """Return the batch script."""
        return self._make_submission_file_text(self._submitit_command_str, "dry-run")


def option_of(name: str) -> str:
    """Return the option of ``submit`` that gives a field of a request.

    >>> option_of("signal_before_s")
    '--signal-before'
    """
    return "--" + name.removesuffix("_s").replace("_", "-")


def executor(request: JobRequest, folder: Path, job_name: str) -> ScriptWriter:
    """Return the executor of a request.

    Args:
        request: What is asked for.
        folder: Where script, pickled job and output go; to be seen from all nodes.
        job_name: Name in the queue.
    """
    found = ScriptWriter(folder=folder, max_num_timeout=request.max_requeues)
    found.update_parameters(**request.parameters(job_name))
    return found
