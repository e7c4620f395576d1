"""``train --nproc``: several ranks on this machine, started and watched by PyTorch's own launcher."""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from xectool.config.cgroups import num_cores
from xectool.config.load import load_config, read_config
from xectool.engine.ranks.first_end import FirstEnd
from xectool.engine.ranks.outcome import DIRECTORY, LAUNCHER
from xectool.engine.ranks.processes import ForwardedSignals, SurvivorsEnded
from xectool.engine.ranks.said import RankWarnings
from xectool.engine.ranks.verdict import Ending, verdict_of
from xectool.engine.ranks.watch import RankWatch
from xectool.engine.training_run.result import TrainResult
from xectool.errors import DiskError, UsageError, XecError, counted, in_shell
from xectool.runlog.process import oom_kills, oom_kills_since
from xectool.training.record.run_dir import AUTO

MEETING: Final = "rendezvous"
_NUMBER: Final = "distributed.num_gpus"
GRACE_S: Final = 12  # of ranks that are left after one has died; gloo tells them at once, NCCL may not


def ranks_wanted(config: str | Path, overrides: Sequence[str] = (), nproc: int | None = None) -> int:
    """Return how many ranks a training starts: 1 is this process itself.

    Args:
        config: YAML file; ``distributed.num_gpus`` counts where no number is given.
        overrides: ``key=value`` settings that go before the file's.
        nproc: Number of ranks.

    Raises:
        UsageError: This process is a rank already, or the number makes no sense.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        if nproc is not None and nproc != 1:
            raise UsageError(
                "this process is one of the ranks of torchrun already; it cannot start others",
                where=f"--nproc {nproc} with RANK={os.environ['RANK']}",
                fix=f"torchrun --nproc-per-node {nproc} -m xectool train {in_shell(config)}",
                code="XT-RANK-ENVIRONMENT",
            )
        return 1
    if nproc is not None and nproc < 1:
        raise UsageError(f"{counted(nproc, 'rank')} cannot train", where="--nproc", fix="--nproc 1")
    return nproc or read_config(config, overrides).config.distributed.num_gpus  # what is wrong is told by the training


def train_ranks(config: str | Path, nproc: int, arguments: Sequence[str] = ()) -> TrainResult:
    """Train on several ranks of this machine and return what the first one says.

    Args:
        config: YAML file.
        nproc: Number of ranks.
        arguments: Options of ``xectool train`` for every rank.

    Raises:
        XecError: What the rank raised that failed first, or what became of it.
    """
    number = f"{_NUMBER}={nproc}"
    overrides = [value for name, value in pairwise(arguments) if name == "--set"]
    loaded = load_config(config, [*overrides, number])  # a wrong configuration is said once, not by every rank
    command = ["-m", "xectool", "train", str(config), *arguments, "--set", number]
    with _directory() as directory:
        ending, run = _watched(_settings(nproc, directory), directory, loaded.config.guards.hang_s, command)
        with _number_by_option(nproc):
            return verdict_of(ending, command_again(config, nproc, arguments, run))


@contextmanager
def _number_by_option(nproc: int) -> Iterator[None]:
    """Let a refusal of the number of ranks alone name the option, which goes before the key."""
    try:
        yield
    except XecError as error:
        key, _, number = error.fix.partition("=")
        if key != f"--set {_NUMBER}" or not number.isdigit():
            raise
        fix = f"--nproc {number}"
        raise UsageError(error.problem, where=f"--nproc {nproc}", fix=fix, code=error.code) from error


def _watched(
    settings: LaunchConfig, directory: Path, hang_s: float, command: Sequence[str]
) -> tuple[Ending, Path | None]:
    """Run the ranks to their end; return how that was, and the directory of the run."""
    nproc, oom_before = settings.nproc_per_node, oom_kills()
    with ExitStack() as stack:
        stack.enter_context(_environment(directory, nproc))
        stack.enter_context(_quiet_launcher())
        signals = stack.enter_context(ForwardedSignals())
        survivors = stack.enter_context(SurvivorsEnded(directory, nproc, GRACE_S, signals))
        first = stack.enter_context(FirstEnd(nproc))
        watch = stack.enter_context(RankWatch(hang_s, RankWarnings(directory, nproc)))
        failures = _launch(settings, command)
        places = {rank: watch.place(rank) for rank in range(nproc)}
        ended, killed = frozenset(survivors.ended), oom_kills_since(oom_before)
        heard, first_ended = signals.interrupted, dict(first.ended)
        ending = Ending(nproc, directory, failures, ended, heard, places, watch.verdict, killed, first_ended)
    return ending, watch.run


@contextmanager
def _directory() -> Iterator[Path]:
    """Yield a directory for outcomes and logs of the ranks; it stays where an error names a log in it."""
    directory, kept = _made_directory(), False
    try:
        yield directory
    except XecError as error:
        kept = str(directory) in error.where
        raise
    finally:
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)


def command_again(config: str | Path, nproc: int | None, arguments: Sequence[str], run: Path | None) -> str:
    """Return the command that goes on with a training: from what it has saved, else as it was started.

    Args:
        config: YAML file.
        nproc: Number of ranks, None where none was given.
        arguments: Options of ``xectool train``.
        run: Directory of the run, None where there is none yet.
    """
    given, kept = dict(pairwise(arguments)).get("--resume", AUTO), list(arguments)
    if "--resume" in kept:
        at = kept.index("--resume")
        del kept[at : at + 2]
    saved = run is not None and any(run.glob("checkpoint_*.pt"))
    resume = ["--resume", str(run) if saved else given]
    ranks = [] if nproc is None else ["--nproc", str(nproc)]
    return shlex.join(["xectool", "train", str(config), *ranks, *kept, *resume])


def _launch(settings: LaunchConfig, command: Sequence[str]) -> dict[int, ProcessFailure]:
    try:
        elastic_launch(settings, sys.executable)(*command)
    except ChildFailedError as error:
        return dict(error.failures)
    return {}


def _settings(nproc: int, directory: Path) -> LaunchConfig:
    quiet = dict.fromkeys(range(1, nproc), Std.ALL)
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        # The launcher unpickles what lies in there: over TCP anybody who reaches the machine could write to it.
        rdzv_endpoint=str(directory / MEETING),
        rdzv_configs={"store_type": "file"},
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(directory), redirects=quiet),
        # the others are passed on to the ranks, which save and end by themselves
        signals_to_handle="SIGQUIT",
    )


def _made_directory() -> Path:
    """Make a private directory where the ranks can meet: PyTorch locks their file, which not every ``TMPDIR`` allows.

    Raises:
        DiskError: No place does.
    """
    failures = []
    for place in (None, "/tmp", "/dev/shm"):  # the first is that of tempfile, which may have none at all
        try:
            return _lockable(place)
        except OSError as error:
            failures.append(f"{place or 'TMPDIR'}: {error.strerror}")
    raise DiskError(
        f"the ranks cannot meet, for lack of a directory whose files can be locked: {'; '.join(failures)}",
        where="TMPDIR",
        fix="export TMPDIR=PATH   # on a local disk",
    )


def _lockable(place: str | None) -> Path:
    """Make a directory with a file that was locked; raise OSError, and leave nothing, where that cannot be."""
    directory = Path(tempfile.mkdtemp(prefix="xectool-ranks-", dir=place))
    try:
        with (directory / MEETING).open("w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory


@contextmanager
def _environment(directory: Path, nproc: int) -> Iterator[None]:
    """Set what the ranks inherit: where to leave their outcome, their share of the cores, a network that is there."""
    share = num_cores(nproc)
    wanted = {DIRECTORY: str(directory), LAUNCHER: str(os.getpid())}
    defaults = {"OMP_NUM_THREADS": str(share)}
    if any(name == "lo" for _, name in socket.if_nameindex()):
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    wanted |= {name: os.environ.get(name, value) for name, value in defaults.items()}
    before: dict[str, Any] = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _quiet_launcher() -> Iterator[None]:
    """Keep the launcher's own words back: what it knows is in the error that is raised."""
    log = logging.getLogger("torch.distributed.elastic")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
