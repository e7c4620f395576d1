"""What the launcher of ranks says when one of them is lost."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import pytest
from torch.distributed import FileStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.launcher.api import LaunchConfig
from xectool.engine import launching
from xectool.engine.launching import _settings, command_again
from xectool.engine.ranks import processes
from xectool.engine.ranks.outcome import DIRECTORY, run_as_rank
from xectool.engine.ranks.processes import ForwardedSignals, SurvivorsEnded
from xectool.engine.ranks.verdict import Ending, verdict_of
from xectool.engine.training_run.result import TrainResult
from xectool.errors import DiskError, UsageError, WorldError, XecError

GIVEN = ["--run-name", "it's", "--set", "training.epochs=200"]


@pytest.mark.parametrize(("resume", "saved", "expected"), [
    ([], False, "auto"),
    ([], True, "RUN"),
    (["--resume", "old/checkpoint_best.pt"], False, "old/checkpoint_best.pt"),
    (["--resume", "auto"], True, "RUN"),
])  # fmt: skip
def test_the_line_to_paste_starts_the_same_training(
    tmp_path: Path, resume: list[str], saved: bool, expected: str
) -> None:
    if saved:
        (tmp_path / "checkpoint_last.pt").touch()
    words = shlex.split(command_again("c.yaml", 2, [*resume, *GIVEN], tmp_path))
    place = str(tmp_path) if expected == "RUN" else expected
    assert words == ["xectool", "train", "c.yaml", "--nproc", "2", *GIVEN, "--resume", place]
    assert "--nproc" not in command_again("c.yaml", None, GIVEN, tmp_path)


def test_a_rank_leaves_the_word_of_an_interrupt_to_its_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> TrainResult:
        raise KeyboardInterrupt

    monkeypatch.setattr("xectool.engine.ranks.outcome._end_with_launcher", lambda: None)
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    assert run_as_rank(interrupted) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("oom_kills", "says"), [(0, "by somebody"), (2, "ran out"), (-1, "most likely")])
def test_memory_is_blamed_only_where_the_kernel_may_have_killed_for_it(
    tmp_path: Path, oom_kills: int, says: str
) -> None:
    failure = SimpleNamespace(pid=7, exitcode=-signal.SIGKILL, timestamp=1.0)
    ending = Ending(2, tmp_path, {1: failure}, frozenset(), False, oom_kills=oom_kills)  # type: ignore[dict-item]
    with pytest.raises(WorldError, match=says) as caught:
        verdict_of(ending, "xectool train c.yaml")
    assert caught.value.fix == "xectool train c.yaml"


def test_a_bus_error_is_put_down_to_a_mapped_file(tmp_path: Path) -> None:
    code = (
        "import mmap, os; f = open('m', 'w+b'); f.write(bytes(9999)); f.flush(); "
        "m = mmap.mmap(f.fileno(), 0); os.truncate('m', 0); m[0]"
    )
    died = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode
    failure = SimpleNamespace(pid=7, exitcode=died, timestamp=1.0)
    ending = Ending(2, tmp_path, {1: failure}, frozenset(), False)  # type: ignore[dict-item]
    with pytest.raises(WorldError, match=r"SIGBUS.*cut short, such as a copy in data\.cache"):
        verdict_of(ending, "xectool train c.yaml")


def test_a_rank_that_is_interrupted_by_itself_ends_the_job_as_an_interrupt(tmp_path: Path) -> None:
    failure = SimpleNamespace(pid=7, exitcode=130, timestamp=1.0)
    with pytest.raises(KeyboardInterrupt):
        verdict_of(Ending(2, tmp_path, {1: failure}, frozenset(), False), "")  # type: ignore[dict-item]


WAITS = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(60)"


@pytest.mark.parametrize(("number", "told"), [(signal.SIGINT, True), (signal.SIGHUP, False)])
def test_an_interrupt_is_heard_where_a_script_had_it_ignored(number: signal.Signals, told: bool) -> None:
    """One process heard it and its launcher did not: `xectool train --nproc 2 &` in a script went on after Ctrl-C."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with ForwardedSignals() as signals, pytest.raises(KeyboardInterrupt) if told else nullcontext():
            os.kill(os.getpid(), number)
        assert signals.interrupted == told
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(("interrupts", "apart_s", "left"), [(1, 0.0, True), (2, 0.0, True), (2, 60.0, False)])
def test_a_rank_that_hears_no_interrupt_ends_some_time_after_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupts: int, apart_s: float, left: bool
) -> None:
    """As one that waits for another in a collective, where Python runs no handler; at once is the same one again."""
    monkeypatch.setattr(processes, "SAME_PRESS_S", 60.0)
    monkeypatch.setattr(processes, "AGAIN_S", 0.1)
    monkeypatch.setattr(processes, "_LOOK_EVERY_S", 0.05)
    command = [sys.executable, "-c", WAITS, "xectool"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        with ForwardedSignals() as signals, SurvivorsEnded(tmp_path, 1, 60.0, signals) as survivors:
            for _ in range(interrupts):
                signal.raise_signal(signal.SIGINT)
                signals._pressed_at -= apart_s
            until = time.monotonic() + (1.0 if left else 60.0)
            while rank.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            assert (rank.poll() is None, rank.pid in survivors.ended) == (left, not left)
    failures = {0: SimpleNamespace(pid=rank.pid, exitcode=rank.returncode, timestamp=1.0)}
    with pytest.raises(KeyboardInterrupt):
        verdict_of(Ending(1, tmp_path, failures, frozenset(survivors.ended), signals.interrupted), "")  # type: ignore[arg-type]


@pytest.mark.parametrize(("nproc", "left"), [(1, True), (2, False)])
def test_a_rank_that_is_gone_before_the_first_look_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nproc: int, left: bool
) -> None:
    """The others would wait for it at the store for as long as PyTorch's launcher lets them."""
    monkeypatch.setattr(processes, "_LOOK_EVERY_S", 0.05)
    command, ended = [sys.executable, "-c", WAITS, "xectool"], SurvivorsEnded(tmp_path, nproc, 0.1, ForwardedSignals())
    with subprocess.Popen(command, start_new_session=True) as rank, ended as survivors:
        until = time.monotonic() + (1.0 if left else 20.0)
        while rank.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert (rank.poll() is None, rank.pid in survivors.ended) == (left, not left)


PAIR = [(0.0, {7, 8}), (100.0, {7}), (110.0, {7}), (113.0, {7})]


@pytest.mark.parametrize(("looks", "outcomes", "ended"), [
    (PAIR[:3], {}, set()),  # it may save yet
    (PAIR, {}, {7}),
    (PAIR, {1: 8}, set()),  # the other was done
    (PAIR, {0: 7}, {7}),  # its own is written, and it hangs while it ends
    ([(0.0, {7}), (1.0, {7}), *PAIR[:3]], {}, set()),  # the second began late
    ([(0.0, {7}), (1.0, {7}), *PAIR], {}, {7}),
])  # fmt: skip
def test_who_is_left_has_its_time_from_when_another_is_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    looks: list[tuple[float, set[int]]],
    outcomes: dict[int, int],
    ended: set[int],
) -> None:
    for rank, pid in outcomes.items():
        monkeypatch.setattr("xectool.engine.ranks.outcome.os.getpid", lambda pid=pid: pid)
        monkeypatch.setenv(DIRECTORY, str(tmp_path))
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setattr("xectool.engine.ranks.outcome._end_with_launcher", lambda: None)
        run_as_rank(fails)
    survivors, found, later = SurvivorsEnded(tmp_path, 2, 12.0, ForwardedSignals()), set[int](), iter(looks)
    seen = [looks[0]]

    def wait(seconds: float) -> bool:
        seen[0] = next(later, (-1.0, set()))
        return seen[0][0] < 0

    monkeypatch.setattr(survivors, "_stop", SimpleNamespace(wait=wait))
    monkeypatch.setattr(survivors, "_end", lambda left: found.update(item.pid for item in left))
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: 1.0 + seen[0][0]))
    monkeypatch.setattr(processes, "rank_processes", lambda: [SimpleNamespace(pid=pid) for pid in sorted(seen[0][1])])
    survivors._run()
    assert found == ended


def fails() -> TrainResult:
    raise WorldError("lost the others", where="rank 0")


@pytest.mark.parametrize(
    ("error", "kept"), [(KeyboardInterrupt(), 0), (WorldError("gone", where="rank 1"), 0), (None, 1)]
)
def test_nothing_is_left_of_a_job_but_the_log_that_an_error_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, kept: int
) -> None:
    def ends(settings: LaunchConfig, command: Sequence[str]) -> None:
        raise error or WorldError("gone", where=f"{settings.rdzv_endpoint}: last words")

    (tmp_path / "c.yaml").write_text("{kind: regressor, tasks: {energy: {enabled: true}}}")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(launching, "_launch", ends)
    with pytest.raises((KeyboardInterrupt, WorldError)):
        launching.train_ranks(tmp_path / "c.yaml", 2)
    assert len(list((tmp_path / "temporary").iterdir())) == kept


@pytest.mark.parametrize("refusing", [1, 3])
def test_ranks_meet_where_files_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: int) -> None:
    """Lustre may be mounted without locks, and PyTorch's launcher then ends with an error of its own."""
    tried: list[Path] = []

    def lock(file: TextIO, operation: int) -> None:
        tried.append(Path(file.name))
        if len(tried) <= refusing:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", lock)
    if refusing == 3:
        with pytest.raises(DiskError, match="Function not implemented"):
            launching._made_directory()
    else:
        made = launching._made_directory()
        assert made.parent == Path("/tmp")
        assert _settings(2, made).rdzv_endpoint == str(tried[-1])
        shutil.rmtree(made)
    assert tried[0].is_relative_to(tmp_path)
    assert not any(path.parent.exists() for path in tried)


def test_without_any_place_of_its_own_python_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    made = launching._made_directory()
    shutil.rmtree(made)
    assert made.parent == Path("/tmp")


def test_what_the_launcher_unpickles_does_not_lie_on_the_network(tmp_path: Path) -> None:
    settings = _settings(2, tmp_path)
    place = RendezvousParameters(
        settings.rdzv_backend, settings.rdzv_endpoint, settings.run_id, 1, 1, **settings.rdzv_configs
    )
    assert isinstance(create_backend(place)[1], FileStore)
    assert Path(settings.rdzv_endpoint).parent == tmp_path  # a directory of the user's own


def test_a_refused_number_of_ranks_names_the_option_that_goes_before_the_key() -> None:
    refused = XecError("2 ranks but 1 visible GPU", where="", fix="--set distributed.num_gpus=1", code="CFG-49")
    with pytest.raises(UsageError) as caught, launching._number_by_option(2):
        raise refused
    assert (caught.value.where, caught.value.fix, caught.value.code) == ("--nproc 2", "--nproc 1", "CFG-49")
    several = XecError("2 errors", where="", fix="--set distributed.num_gpus=1\n--set training.lr=1", code="CFG-49")
    with pytest.raises(XecError) as caught_whole, launching._number_by_option(2):
        raise several
    assert caught_whole.value is several
