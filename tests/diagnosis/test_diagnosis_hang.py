"""A run that stands still is judged from outside: what it waits for, whose fault it is; every case really happens."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from xectool import engine
from xectool.cli.app import app
from xectool.data.events import EventSource
from xectool.diagnosis.evidence.kernel import ProcessView
from xectool.diagnosis.hang.facts import RankFacts, Reader, RunFacts, gather
from xectool.diagnosis.hang.stacks import Frame, ProcessStacks, ThreadStack, parse_dump
from xectool.diagnosis.hang.tracker import TrackerFacts
from xectool.diagnosis.hang.verdict import is_late, judge
from xectool.diagnosis.hang.wording import in_file_system
from xectool.runlog.reader import RunReader
from xectool.runlog.status_page import PageView, StatusPage
from xectool.runlog.worker_slots import SlotView
from xectool.runlog.writer import RunWriter

# -- verdicts on made-up evidence: what ranks and readers say, and what the kernel says


def page(rank: int = 0, phase: str = "forward", age_s: float = 60.0, **more: Any) -> PageView:
    known: dict[str, Any] = {
        "rank": rank, "pid": 100 + rank, "pid_start": 1, "same_boot": True, "phase": phase, "phase_age_s": age_s,
        "heartbeat_age_s": 0.5, "heartbeat_time": 1.0, "step": 40, "epoch": 1, "batch": (0, 1, 0, 1), "file_index": 0,
        "entries": (0, 8), "num_events": 8, "collective_seq": 0, "collective": "", "rss_bytes": 10**9,
        "device_bytes": -1, "device_reserved_bytes": -1, "children": 0, "dropped": 0, "own_share": 0.0,
        "oom_kills": 3, "oom_kills_seen": 3,
    }  # fmt: skip
    return PageView(**(known | more))


def view(pid: int = 100, state: str = "sleeping", **more: Any) -> ProcessView:
    return ProcessView(pid, state, **more)


def reader(
    state: str = "read", age_s: float = 60.0, of: ProcessView | None = None, thread: ProcessView | None = None
) -> Reader:
    slot = SlotView("training", state, age_s, 900, 1, 3, 224, 256, 7, 10**8)
    return Reader(slot, of or view(900), "mc_003.root", thread or of or view(900))


def rank(said: PageView, seen: ProcessView | None = None, *readers: Reader) -> RankFacts:
    line = ThreadStack("MainThread", (Frame("forward", "/x/xectool/models/encoder.py", 12),))
    stacks = ProcessStacks(said.pid, "py-spy", (line,))
    return RankFacts(said, seen or view(said.pid), readers, stacks, 2.0, 120.0)


def verdict(*ranks: RankFacts, state: str = "running", **more: Any) -> Any:
    return judge(RunFacts(Path("run"), state, "", ranks, (), **({"oom_kills": 3} | more)))


NFS, FUTEX = "nfs_wait_bit_killable", view(900, waits_in="futex_do_wait")
POLL, FROZEN = view(900, waits_in="poll_schedule_timeout.constprop.0"), "percpu_rwsem_wait"
ONE_RANK: list[tuple[str, RankFacts, bool]] = [
    ("XT-HANG-NONE", rank(page(age_s=1.0)), False),
    ("XT-HANG-STOPPED", rank(page(), view(state="stopped")), True),
    ("XT-HANG-DEAD", rank(page(), view(state="gone")), True),
    ("XT-HANG-GIL", rank(page(heartbeat_age_s=60.0)), True),
    ("XT-HANG-READER-IO", rank(page(phase="data_wait"), None, reader(of=view(900, waits_in="wait_for_partner"))), True),
    (
        "XT-HANG-READER-IO",
        rank(page(phase="data_wait"), None, reader(of=view(900, "uninterruptible", waits_in=NFS))),
        True,
    ),
    ("XT-HANG-READER-LOCK", rank(page(phase="data_wait"), None, reader(of=view(900, waits_in="futex_do_wait"))), True),
    ("XT-HANG-SLOW", rank(page(phase="data_wait"), None, reader(of=view(900, "running", cpu_share=0.9))), False),
    (
        "XT-HANG-SLOW",
        rank(page(phase="data_wait"), None, reader(age_s=130.0, of=view(900, "running", cpu_share=0.9))),
        True,
    ),
    ("XT-HANG-READER-DEAD", rank(page(phase="data_wait"), None, reader(of=view(900, "gone"))), True),
    ("XT-HANG-READER-DEAD", rank(page(age_s=1.0), None, reader("idle", of=view(900, "gone"))), True),  # not missed yet
    ("XT-HANG-STOPPED", rank(page(phase="data_wait"), None, reader(of=view(900, "stopped"))), True),
    ("XT-HANG-STUCK", rank(page(phase="data_wait"), None, reader("idle")), True),
    ("XT-HANG-STUCK", rank(page(phase="data_wait"), None, reader("idle", of=POLL)), True),  # as every idle one waits
    (
        "XT-HANG-READER-IO",
        rank(page(phase="data_wait"), None, reader(of=view(900, "uninterruptible", waits_in=FROZEN))),
        True,
    ),
    # between two reads
    (
        "XT-HANG-READER-LOCK",
        rank(page(phase="data_wait"), None, reader("idle", of=view(900, waits_in="futex_do_wait"))),
        True,
    ),
    (
        "XT-HANG-READER-IO",
        rank(page(phase="data_wait"), None, reader("idle", of=view(900, waits_in="fifo_open"))),
        True,
    ),
    (
        "XT-HANG-SLOW",
        rank(page(phase="data_wait"), None, reader("idle", of=view(900, "running", cpu_share=0.9))),
        False,
    ),
    # the main thread of a process waits for the one that reads, and a pool of threads for work
    ("XT-HANG-READER-IO", rank(page(phase="data_wait"), None, reader(of=FUTEX, thread=view(901, waits_in=NFS))), True),
    ("XT-HANG-STUCK", rank(page(phase="data_wait"), None, reader("idle", thread=FUTEX)), True),
    ("XT-HANG-READER-IO", rank(page(phase="validation"), None, reader(of=FUTEX, thread=view(901, waits_in=NFS))), True),
    ("XT-HANG-STUCK", rank(page(phase="validation"), None, reader(age_s=1.0)), True),
    # many reads in one phase: a reader that has just moved gets on, also where the machine starves
    ("XT-HANG-STARTING", rank(page(phase="data_open"), None, reader("idle", age_s=1.0)), False),
    ("XT-HANG-STUCK", rank(page(phase="data_open"), None, reader("idle")), True),
    ("XT-HANG-STUCK", rank(page(phase="forward"), None, reader("idle", age_s=1.0)), True),
    ("XT-HANG-CHECKPOINT", rank(page(phase="checkpoint"), view(state="uninterruptible", waits_in=NFS)), True),
    ("XT-HANG-SLOW", rank(page(phase="checkpoint"), view(written_bytes_per_s=1e7)), False),
    ("XT-HANG-COMPILE", rank(page(phase="compile"), view(compilers=("cc1plus",))), False),
    ("XT-HANG-COMPILE", rank(page(phase="backward"), view(compilers=("cc1plus",))), False),
    ("XT-HANG-STUCK", rank(page(phase="compile")), True),
    ("XT-HANG-STARTING", rank(page(phase="data_open"), view(cpu_share=0.8)), False),
    ("XT-HANG-OPEN", rank(page(phase="data_open"), view(state="uninterruptible", waits_in=NFS)), True),
    ("XT-HANG-READER-IO", rank(page(phase="data_open"), None, reader(of=view(900, "uninterruptible"))), True),
    ("XT-HANG-SLOW", rank(page(), view(cpu_share=1.0)), False),
    ("XT-HANG-SLOW", rank(page(age_s=500.0), view(cpu_share=1.0)), True),
    ("XT-HANG-STUCK", rank(page()), True),
]


@pytest.mark.usefixtures("unread_inputs")
@pytest.mark.parametrize(("code", "facts", "bad"), ONE_RANK, ids=lambda value: value if isinstance(value, str) else "")
def test_one_rank_is_judged_by_its_phase_its_readers_and_the_kernel(code: str, facts: RankFacts, bad: bool) -> None:
    found = verdict(facts)
    assert (found.code, found.bad) == (code, bad), found.verdict
    assert_pastes(found.next)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("_compile_fx_inner", "XT-HANG-COMPILE"),
        ("fx_codegen_and_compile", "XT-HANG-COMPILE"),
        ("run", "XT-HANG-TRANSPORT"),
    ],
)
def test_a_rank_that_writes_code_by_itself_compiles(function: str, code: str) -> None:
    """Before torch calls a compiler it is at work in the rank's own process, by a little less than one core."""
    pages = [page(number, "backward", step=0) for number in (0, 1)]
    ranks = [rank(said, view(said.pid, "running", cpu_share=0.98)) for said in pages]
    line = ThreadStack("MainThread", (Frame(function, "/x/torch/_inductor/compile_fx.py", 12),))
    ranks = [replace(item, stacks=ProcessStacks(item.page.pid, "py-spy", (line,))) for item in ranks]
    found = verdict(*ranks)
    assert (found.code, found.bad) == (code, code == "XT-HANG-TRANSPORT"), found.verdict


def test_who_is_in_a_collective_waits_whatever_a_compiler_below_it_does() -> None:
    ranks = [rank(page(number, "collective"), view(100 + number, compilers=("compile_worker",))) for number in (0, 1)]
    assert verdict(*ranks).code == "XT-HANG-TRANSPORT"


@pytest.mark.parametrize(
    ("compilers", "code"), [(("cc1plus",), "XT-HANG-COMPILE"), ((), "XT-HANG-TRANSPORT")], ids=["compiles", "waits"]
)
def test_a_rank_that_compiles_its_first_backward_pass_waits_for_no_other(compilers: tuple[str, ...], code: str) -> None:
    first = rank(page(0, "backward", step=0), view(100, cpu_share=0.5, compilers=compilers))
    second = rank(page(1, "backward", step=0), view(101))
    found = verdict(first, second)
    assert (found.code, found.bad) == (code, code == "XT-HANG-TRANSPORT"), found.verdict


def assert_pastes(line: str) -> None:
    """Check that a line calls a program, and where that is ours, that it takes these words."""
    command, words = typer.main.get_command(app), shlex.split(line, comments=True)
    assert shutil.which(words[0]) or words[0] == "xectool", line
    if words.pop(0) == "xectool":
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context("line", words)


def inside(number: int, seq: int = 41, **more: Any) -> RankFacts:
    return rank(page(number, "collective", collective_seq=seq, **({"collective": "all_reduce"} | more)))


def test_the_rank_outside_the_collective_is_named() -> None:
    found = verdict(inside(0), rank(page(1, "forward", collective_seq=40)), inside(2))
    assert (found.code, found.rank) == ("XT-HANG-RANK", 1)
    assert "rank 0: all_reduce #41" in " ".join(found.why)


def test_a_rank_in_an_earlier_collective_is_named() -> None:
    assert verdict(inside(0), inside(1, seq=40)).rank == 1


def test_what_keeps_the_rank_outside_is_the_verdict() -> None:
    stuck = rank(page(1, "data_wait"), None, reader(of=view(900, waits_in="wait_for_partner")))
    found = verdict(inside(0), stuck)
    assert (found.code, found.rank, found.pid) == ("XT-HANG-READER-IO", 1, 900)
    assert "mc_003.root entries 224:256" in found.verdict


def test_all_ranks_inside_is_the_connection() -> None:
    found = verdict(inside(0), inside(1))
    assert (found.code, found.next) == ("XT-HANG-TRANSPORT", "xectool diagnose distributed")


def test_a_rank_that_left_a_collective_out_waits_in_the_next_under_its_number() -> None:
    def called(number: int, line: int, last: int, step: int = 6) -> RankFacts:
        frames = (Frame("any_of", "/x/xectool/training/ranks/group.py", 121), Frame("look", "/x/xectool/a.py", line))
        stacks = ProcessStacks(100 + number, "py-spy", (ThreadStack("MainThread", frames),))
        return replace(inside(number, batch=(0, 1, last - 1, last), step=step), stacks=stacks)

    found = verdict(called(0, 196, 6), called(1, 88, 7), called(2, 196, 6))
    assert (found.code, found.rank) == ("XT-HANG-RANK", 1)
    assert "rank 0 waits in look (xectool/a.py:196)" in found.why
    assert verdict(called(0, 196, 6), called(1, 88, 7)).rank == 1  # the one that is further
    assert verdict(called(0, 122, 7), called(1, 207, 7, step=7)).rank == 1  # also within a batch
    assert verdict(called(0, 207, 7, step=7), called(1, 122, 7)).rank == 0
    assert verdict(called(0, 196, 6), called(1, 196, 6)).code == "XT-HANG-TRANSPORT"


def test_a_rank_that_ended_its_epoch_waits_under_the_same_number_and_batch() -> None:
    def called(number: int, *names: str) -> RankFacts:
        frames = tuple(Frame(name, "/x/xectool/training/trainer.py", 9) for name in names)
        stacks = ProcessStacks(100 + number, "py-spy", (ThreadStack("MainThread", frames),))
        return replace(inside(number), stacks=stacks)

    found = verdict(called(0, "_must_stop", "_train_epoch"), called(1, "Trainer._validate", "Trainer._finish_epoch"))
    assert (found.code, found.rank) == ("XT-HANG-UNEVEN", 1)
    assert verdict(called(0, "_finish_epoch"), called(1, "_finish_epoch")).code == "XT-HANG-TRANSPORT"


@pytest.mark.parametrize(
    ("waits_in", "expected"),
    [
        ("poll_schedule_timeout.constprop.0", False), ("anon_pipe_read", False), ("do_epoll_wait", False),
        ("futex_do_wait", False), ("hrtimer_nanosleep", False), ("ll_file_read", True), ("cl_sync_io_wait", True),
        ("wait_for_partner", True), ("request_wait_answer", True), ("percpu_rwsem_wait", True), ("pipe_read", True),
    ],
)  # fmt: skip
def test_what_the_kernel_waits_in_tells_a_file_system_from_a_poll(waits_in: str, expected: bool) -> None:
    assert in_file_system(view(waits_in=waits_in)) is expected


def test_a_rank_that_spins_in_a_collective_waits_there() -> None:
    spinning = rank(page(0, "collective", collective_seq=41, collective="all_reduce"), view(100, cpu_share=1.0))
    found = verdict(spinning, rank(page(1, "data_wait", collective_seq=40)))
    assert found.rank == 1


def mirror(state: str = "sleeping", status: str = "mirroring", **more: Any) -> TrackerFacts:
    return TrackerFacts(700, view(700, state), status, uri="sqlite:////data/mlflow.db", **more)


WELL = rank(page(age_s=1.0))
WRITES = rank(page(phase="data_wait"), None, reader(of=view(900, "gone")))
NAMED: dict[str, tuple[str, Any, tuple[str, ...], str]] = {
    "dead worker": (
        "XT-HANG-READER-DEAD", verdict(WRITES), ("900", "mc_003.root entries 224:256", "0.10 GB"),
        "xectool diagnose run run",
    ),
    "worker stuck in I/O": (
        "XT-HANG-READER-IO",
        verdict(rank(page(phase="data_wait"), None, reader(of=view(900, "uninterruptible", waits_in=NFS)))),
        ("900", "mc_003.root entries 224:256", NFS), "timeout 10 head -c 1000000 mc_003.root | wc -c",
    ),
    "rank killed by the OOM killer": (
        "XT-HANG-OOM", verdict(rank(page(), view(state="gone")), oom_kills=4),
        ("100", "since its last heartbeat: 1", "1.0 GB"), "xectool diagnose memory run",
    ),
    "worker killed by the OOM killer": (
        "XT-HANG-OOM", verdict(WRITES, oom_kills=5), ("900", "mc_003.root", "since the run began: 2"),
        "xectool diagnose memory run",
    ),
    "one rank outside a collective": (
        "XT-HANG-RANK", verdict(inside(0), rank(page(1, "optimizer", collective_seq=40)), inside(2)),
        ("rank 1", "all_reduce #41", "encoder.py:12"), "xectool diagnose stacks run",
    ),
    "ranks that took different ways": (
        "XT-HANG-RANK", verdict(inside(0), inside(1, collective="broadcast")), ("all_reduce and broadcast",),
        "xectool diagnose stacks run",
    ),
    "uneven batch counts, validating": (
        "XT-HANG-UNEVEN",
        verdict(rank(page(0, "validation", collective_seq=41)), rank(page(1, "backward", collective_seq=41))),
        ("rank 0 has had its last batch", "rank 1: step 40, last batch of epoch 1: 1"), "xectool diagnose status run",
    ),
    "uneven batch counts, in another collective": (
        "XT-HANG-UNEVEN", verdict(inside(0), inside(1, collective="broadcast", batch=(0, 1, 1, 2))),
        ("rank 0: step 40, last batch of epoch 1: 1", "rank 1: step 40, last batch of epoch 1: 2"),
        "xectool diagnose status run",
    ),
    "uneven batch counts, ended": (
        "XT-HANG-UNEVEN", verdict(inside(0), rank(page(1, "done", collective_seq=41))), ("rank 1", "less to do"),
        "xectool diagnose status run",
    ),
    "compiling": (
        "XT-HANG-COMPILE", verdict(rank(page(phase="compile"), view(compilers=("cc1plus",)))), ("cc1plus",),
        "xectool diagnose compile run   # what each mode takes, and whether it is worth it",
    ),
    "checkpoint file system": (
        "XT-HANG-CHECKPOINT",
        verdict(rank(page(phase="checkpoint"), view(state="uninterruptible", waits_in=NFS)), inside(1, seq=0)),
        ("rank 0", NFS, "nothing written"),
        "timeout 10 dd if=/dev/zero of=run/.probe bs=1M count=8 conv=fsync; rm run/.probe",
    ),
    "tracker lock": (
        "XT-HANG-TRACKER", verdict(WELL, tracker=mirror(holder=800, holder_command="mlflow ui")),
        ("goes on", "/data/mlflow.db", "800 (mlflow ui)"), "xectool diagnose mlflow sqlite:////data/mlflow.db",
    ),
    "tracker without its database": (
        "XT-HANG-TRACKER", verdict(WELL, tracker=mirror(status="paused", error="no route")), ("goes on", "no route"),
        "xectool diagnose mlflow sqlite:////data/mlflow.db",
    ),
    "tracker stopped": ("XT-HANG-TRACKER", verdict(WELL, tracker=mirror("stopped")), ("700",), "kill -CONT 700"),
    "tracker gone": ("XT-HANG-TRACKER", verdict(WELL, tracker=mirror("gone")), ("700",), "xectool runs sync run"),
    "tracker late": (
        "XT-HANG-TRACKER", verdict(WELL, state="interrupted", tracker=mirror("gone", "late")), ("is late",),
        "xectool runs sync run",
    ),
    "tracker behind": (
        "XT-HANG-TRACKER", verdict(WELL, state="finished", tracker=mirror("gone", "behind")), ("has ended",),
        "xectool runs sync run",
    ),
    "lazy initialisation on one rank": (
        "XT-HANG-LAZY", verdict(inside(0, step=0), rank(page(1, "forward", step=0, collective_seq=41))),
        ("rank 1", "first forward", "encoder.py:12", "rank 0: all_reduce"), "xectool diagnose stacks run",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("unread_inputs")
@pytest.mark.parametrize("what", NAMED)
def test_each_kind_of_hang_has_a_verdict_with_its_evidence_and_a_line_to_paste(what: str) -> None:
    code, found, said, line = NAMED[what]
    assert (found.code, found.next) == (code, line), found.verdict
    text = " ".join((found.verdict, *found.why))
    assert all(part in text for part in said), text
    assert engine.explain(code).text
    assert_pastes(line)


@pytest.mark.parametrize(
    ("said", "code"),
    [({}, "XT-HANG-OOM"), ({"oom_kills_seen": 5}, "XT-HANG-DEAD"), ({"heartbeat_age_s": 7200.0}, "XT-HANG-DEAD")],
)
def test_what_the_kernel_killed_while_a_rank_lived_or_long_after_is_not_blamed(said: dict[str, Any], code: str) -> None:
    found = verdict(rank(page(**said), view(state="gone")), oom_kills=5)
    assert found.code == code
    assert any("120 minutes ago" in line for line in found.why) == ("heartbeat_age_s" in said)


@pytest.mark.parametrize("tracker", [mirror(), mirror("gone", "done")])
def test_a_sound_tracker_is_not_spoken_of(tracker: TrackerFacts) -> None:
    assert verdict(WELL, tracker=tracker).code == "XT-HANG-NONE"


def test_a_hanging_rank_comes_before_its_tracker() -> None:
    assert verdict(rank(page()), tracker=mirror("stopped")).code == "XT-HANG-STUCK"


@pytest.mark.parametrize("phase", ["checkpoint", "compile", "data_wait", "forward"])
def test_the_next_line_is_quoted_for_the_shell(phase: str) -> None:
    run_dir = Path("my run; touch owned")
    found = judge(RunFacts(run_dir, "running", "", (rank(page(phase=phase), view(waits_in=NFS)),), (), 0))
    words = shlex.split(found.next)
    assert any(word.startswith(str(run_dir)) or word.startswith(f"of={run_dir}") for word in words), found.next
    assert "touch" not in words


def test_a_dead_rank_comes_before_those_that_wait_for_it() -> None:
    found = verdict(inside(0), rank(page(1), view(101, "gone")))
    assert (found.code, found.rank) == ("XT-HANG-DEAD", 1)
    ended = rank(page(phase="done"), view(state="gone"))
    found = verdict(ended, rank(page(1), view(101, "gone")), state="interrupted")  # as the launcher ends the others
    assert (found.code, found.rank) == ("XT-HANG-DEAD", 1)
    assert verdict(ended, rank(page(1, "done"), view(101, "gone")), state="interrupted").code == "XT-HANG-NONE"


def test_ranks_that_are_all_gone_without_a_word_were_ended_together() -> None:
    left = [rank(page(number), view(100 + number, "gone")) for number in (0, 1)]
    found = verdict(*left, state="killed")
    assert (found.code, found.rank) == ("XT-HANG-DEAD", -1)
    assert "their launcher or job was killed" in found.verdict
    told = verdict(left[0], rank(page(1, "done"), view(101, "gone")), state="killed")  # it lost the first
    assert (told.code, told.rank) == ("XT-HANG-DEAD", 0)


def test_threads_of_a_dump_come_with_the_main_one_first() -> None:
    text = 'Thread 0x00007f (most recent call first):\n  File "a.py", line 3 in run\n\n'
    text += (
        'Current thread 0x00008f (most recent call first):\n  File "b.py", line 7 in main\n  File "b.py", line 1 in x\n'
    )
    first, second = parse_dump(text.splitlines())
    assert [frame.line for frame in first.frames] == [7, 1]
    assert second.frames[0].function == "run"


# -- the same on trainings that really stand still

DRIVER = """
import sys, threading
import xectool.training.stepping.step as step, xectool.data.events as events, xectool.checkpoint.store as store
after, what = 4, sys.argv.pop(1)
count = {"run": 0}
def hang():
    if what == "gil":
        import ctypes
        ctypes.PyDLL(None).sleep(600)
    if what == "lock":
        lock = threading.Lock(); lock.acquire(); lock.acquire()
    if what in ("fifo", "checkpoint"):
        open(FIFO).read()
FIFO = sys.argv.pop(1)
run, read, save = step.Stepper.run, events.EventSource.read_piece, store.save
def stepping(self, *args, **kwargs):
    count["run"] += 1
    if count["run"] > after and what in ("gil", "lock"): hang()
    return run(self, *args, **kwargs)
def reading(self, *args, **kwargs):
    if count["run"] > after and what == "fifo": hang()
    return read(self, *args, **kwargs)
def saving(*args, **kwargs):
    if count["run"] > after and what == "checkpoint": hang()
    return save(*args, **kwargs)
step.Stepper.run, events.EventSource.read_piece, store.save = stepping, reading, saving
from xectool.cli.app import main
main()
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hang")
    for name, seed in (("train", 1), ("val", 2)):
        engine.simulate(str(folder / f"{name}.root"), events=24, seed=seed)
    path = folder / "config.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "kind": "regressor",
                "data": {
                    "train_path": str(folder / "train.root"), "val_path": str(folder / "val.root"), "batch_size": 2,
                    "num_threads": 1, "cache": "off",
                },
                "model": {"encoder_dim": 32, "hidden_dim": 8, "outer_fine_pool": [5, 3], "num_fusion_layers": 1},
                "tasks": {"energy": {"enabled": True}},
                "training": {"epochs": 100_000, "device": "cpu"},
                "validation": {"interval": 1000},
                "normalization": {"time_scale": 5.0e-9},
                "checkpoint": {"save_artifacts": False, "save_steps": 3},
                "mlflow": {"enabled": False},
            }
        )
    )  # fmt: skip
    return path


def test_the_first_reading_of_a_record_is_said_to_be_one(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, reading = list[str](), list[str]()
    phase, read = StatusPage.phase, EventSource.read_piece

    def saying(self: StatusPage, name: str) -> None:
        said.append(name)
        phase(self, name)

    def noted(self: EventSource, *args: Any, **options: Any) -> Any:
        reading.extend(said[-1:])
        return read(self, *args, **options)

    monkeypatch.setattr(StatusPage, "phase", saying)
    monkeypatch.setattr(EventSource, "read_piece", noted)
    engine.train(config, run_name="o", overrides=[f"checkpoint.save_dir={tmp_path}"], max_steps=1)
    assert reading[0] == "data_open"
    assert said[:3] == ["data_open", "build", "data_wait"]


@contextmanager
def hanging(warm: Any, config: Path, folder: Path, what: str) -> Iterator[tuple[Path, int]]:
    """Train until the run hangs in the way asked for; yields its directory and process."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    command = ["-c", DRIVER, what, str(fifo), "train", str(config), "--run-name", "h"]
    process = warm.start(*command, "--set", f"checkpoint.save_dir={folder}")
    try:
        wait_for(lambda: any(folder.glob("h/rec/a*/*.status")) and stands_still(folder / "h"), 300)
        yield folder / "h", process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def stands_still(run: Path) -> bool:
    """Whether no step has ended for as long as a hang is told from a slow step."""
    return bool(RunReader(run).live()) and any(item.page.step >= 3 and is_late(item) for item in gather(run).ranks)


def wait_for(what: Callable[[], Any], limit_s: float = 180.0) -> None:
    until = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < until
        time.sleep(0.2)


CASES = {
    "gil": ("XT-HANG-GIL", "holds the interpreter"),
    "lock": ("XT-HANG-STUCK", "does nothing"),
    "fifo": ("XT-HANG-READER-IO", "train.root"),
    "checkpoint": ("XT-HANG-CHECKPOINT", "does not take the checkpoint"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CASES)
def test_a_training_that_hangs_is_judged_from_outside(warm: Any, config: Path, tmp_path: Path, what: str) -> None:
    code, words = CASES[what]
    with hanging(warm, config, tmp_path, what) as (run, pid):
        wait_for(lambda: engine.diagnose.hang(run).findings[0].code == code)
        took_s = list[float]()
        while len(took_s) < 3 and min(took_s, default=30.0) >= 30:  # a busy machine may stand still once
            began = time.monotonic()
            found = engine.diagnose.hang(run)
            took_s.append(time.monotonic() - began)
        stacks = engine.diagnose.stacks(run)
    assert found.findings[0].code == code, found.verdict
    assert words in found.verdict
    assert min(took_s) < 30
    (line,) = [item for item in stacks if item.pid == pid]
    assert any(
        "hang (<string>" in frame or "reading (" in frame for frames in line.threads.values() for frame in frames
    )


@pytest.mark.slow
def test_a_killed_training_is_dead_and_not_hanging(warm: Any, config: Path, tmp_path: Path) -> None:
    with hanging(warm, config, tmp_path, "lock") as (run, pid):
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: RunReader(run).status().state == "killed")
        found = engine.diagnose.hang(run)
    assert found.findings[0].code == "XT-HANG-DEAD"
    assert found.next.startswith("xectool diagnose run")


@pytest.mark.parametrize(("state", "lasted"), [("running", 2.0), ("failed", 2.0)])
def test_a_rank_that_is_gone_was_in_its_phase_until_it_was_last_heard_of(
    state: str, lasted: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = page(age_s=3890.0, heartbeat_age_s=3888.0, pid=2**22 + 1)  # no process has this number
    with RunWriter(tmp_path) as writer:
        writer.event("run_start")
        if state == "failed":
            writer.event("failed")
        monkeypatch.setattr(RunReader, "live", lambda _: [said])
        (line,) = engine.diagnose.status(tmp_path).ranks
    assert (line.state, line.phase_age_s) == ("killed" if state == "running" else state, lasted)
