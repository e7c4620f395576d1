"""A training that runs is watched, controlled, stopped and judged from another process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from xectool import engine
from xectool.errors import UsageError, WorldError
from xectool.runlog.control import Request, ask
from xectool.runlog.reader import RunReader
from xectool.runlog.step_log import StepFiles
from xectool.runlog.storage import attempt_dir, attempts


@pytest.fixture(scope="module", autouse=True)
def _unhurried(shallow_module: None) -> Iterator[None]:
    """The trainings rest before each step: without, each takes a core as long as the tests last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEAN_PAUSE_S", "0.1")
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    for name, seed in (("train", 1), ("val", 2)):
        engine.simulate(str(folder / f"{name}.root"), events=48, seed=seed)
    return folder


def config_of(data: Path, folder: Path) -> Path:
    """A training of a small network that never ends by itself."""
    config = {
        "kind": "regressor",
        "data": {"train_path": str(data / "train.root"), "val_path": str(data / "val.root"), "batch_size": 2},
        "model": {"encoder_dim": 32, "hidden_dim": 8, "outer_fine_pool": [5, 3], "num_fusion_layers": 1},
        "tasks": {"energy": {"enabled": True}},
        "training": {"epochs": 100_000, "device": "cpu", "warmup_epochs": 0},
        "validation": {"interval": 1000},
        "normalization": {"time_scale": 5.0e-9},
        "checkpoint": {"save_dir": str(folder), "save_artifacts": False, "save_steps": 1000},
        "mlflow": {"enabled": False},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def wait_for(what: Callable[[], Any], limit_s: float = 300.0) -> Any:
    """Return the first true answer."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        found = what()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


def step_of(run: Path) -> int:
    return RunReader(run).status().step if attempts(run) else 0


@pytest.fixture(scope="module")
def training(data: Path, tmp_path_factory: pytest.TempPathFactory, warm: Any) -> Iterator[tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("runs")
    process = warm.start("train", str(config_of(data, folder)), "--run-name", "live")
    run = folder / "live"
    try:
        wait_for(lambda: step_of(run) >= 3)
        yield run, process
        process.send_signal(signal.SIGCONT)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def recorded(run: Path, kind: str) -> list[Any]:
    return [event for event in RunReader(run).events() if event.kind == kind]


def test_rate_and_clip_change_at_the_next_step_and_stand_in_the_record(training: Any) -> None:
    run, _ = training
    before = engine.watch(run)
    slower = engine.control(run, "lr", value=0.5, wait_s=60)
    clipped = engine.control(run, "clip", value=1e-3, wait_s=60)
    assert slower.done
    assert clipped.done
    changed = {event.data["action"]: event for event in recorded(run, "control")}
    assert (changed["lr"].data["value"], changed["clip"].data["value"]) == (0.5, 1e-3)
    assert changed["lr"].data["author"] == os.getpid()
    wait_for(lambda: step_of(run) >= changed["clip"].step + 2)
    after = {step.step: step for step in RunReader(run).steps()}
    first, new = after[changed["lr"].step], after[changed["clip"].step + 1]
    assert first.lr == pytest.approx(before.lr, rel=1e-3)
    assert new.lr == pytest.approx(0.5 * before.lr, rel=1e-3)
    assert new.clip_coef == pytest.approx(1e-3 / new.grad_norm, rel=1e-3)


def test_checkpoint_is_whole_and_keeps_its_name(training: Any) -> None:
    run, _ = training
    saved = engine.control(run, "checkpoint", tag="by-hand", wait_s=60)
    assert saved.done
    found = engine.inspect_ckpt(run / "checkpoint_by-hand.pt")
    assert not found.is_bad
    assert recorded(run, "control")[-1].data["action"] == "checkpoint"


@pytest.mark.parametrize(
    ("action", "value", "tag"),
    [
        ("eval", 1.0, ""),
        ("lr", float("nan"), ""),
        ("lr", 1e9, ""),
        ("clip", -1.0, ""),
        ("checkpoint", float("nan"), "../../etc/x"),
    ],
)
def test_what_no_run_should_do_is_refused(training: Any, action: str, value: float, tag: str) -> None:
    run, _ = training
    with pytest.raises(UsageError) as caught:
        engine.control(run, action, value=value, tag=tag)
    assert caught.value.fix


@pytest.mark.parametrize(
    "line", [b"", b"[]\n", b"{}\n", b'{"action": "eval"}\n', b"\xff\xfe\n", b"[" * 4000, b"x" * 9000]
)
def test_garbage_on_the_socket_harms_nobody(training: Any, line: bytes) -> None:
    import socket

    run, process = training
    place = recorded(run, "control_socket")[-1].data["socket"]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        try:
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
        except OSError:
            answer = b""
    assert not answer or "refused" in json.loads(answer)
    assert process.poll() is None


def test_socket_is_the_users_alone(training: Any) -> None:
    run, _ = training
    place = Path(recorded(run, "control_socket")[-1].data["socket"])
    assert place.stat().st_mode & 0o077 == 0
    assert place.parent.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(training: Any) -> None:
    run, _ = training
    place = recorded(run, "control_socket")[-1].data["socket"]
    code = f"import os, socket; os.setuid(65534); socket.socket(socket.AF_UNIX).connect({place!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_even_where_the_directory_is_open(training: Any) -> None:
    run, _ = training
    place = Path(recorded(run, "control_socket")[-1].data["socket"])
    code = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.settimeout(20);"
        f's.connect({str(place)!r}); s.sendall(b\'{{"action": "stop"}}\\n\'); sys.stdout.write(repr(s.recv(100)))'
    )
    modes = [(path, path.stat().st_mode & 0o777) for path in (place.parent, place)]
    try:
        for path, _mode in modes:
            path.chmod(0o777)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    finally:
        for path, mode in modes:
            path.chmod(mode)
    refusals = ("ConnectionResetError", "BrokenPipeError", "PermissionError")
    assert done.stdout == "b''" or any(name in done.stderr for name in refusals)


@pytest.mark.parametrize("look", [engine.diagnose.hang, engine.diagnose.stacks, engine.diagnose.status])
def test_a_process_of_another_user_is_not_called_one_of_no_run(training: Any, monkeypatch: Any, look: Any) -> None:
    _, process = training
    look(pid=process.pid)
    monkeypatch.setattr(os, "getuid", lambda: 65534)
    with pytest.raises(UsageError, match="belongs to another user") as caught:
        look(pid=process.pid)
    assert caught.value.code == "XT-CTL-USER"


def test_ctl_shows_memory_as_it_shows_status_and_stacks(training: Any, xectool: Any) -> None:
    run, _ = training
    shown = xectool("ctl", str(run), "memory", "--json")
    assert shown.document["result"]["table"]
    assert "memory is sufficient" in xectool("ctl", str(run), "memory").err
    unknown = xectool("ctl", str(run), "forget")
    assert (unknown.code, "stacks, memory" in unknown.err) == (2, True)


def test_watch_shows_the_run(training: Any, xectool: Any) -> None:
    run, _ = training
    shown = xectool("watch", str(run), "--once", "--json")
    result = shown.document["result"]
    assert result["report"]["state"] == "running"
    assert len(result["losses"]) == len(result["steps"]) > 0
    plain = xectool("watch", str(run), "--once")
    assert not [
        line for line in (plain.out + plain.err).splitlines() if line.endswith((" ranks", " baseline", " input_scale"))
    ]
    assert "grad norm" in plain.err


def test_ctrl_c_ends_watch_as_its_help_says_without_an_error(
    training: Any, xectool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended in a box with XT-INTERRUPTED and the command to go on with."""
    run, process = training

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("xectool.cli.watch.time.sleep", stop)
    seen = xectool("watch", str(run))
    assert (seen.code, seen.out) == (130, "")
    assert "grad norm" in seen.err
    assert "interrupted" not in seen.err.lower()
    assert process.poll() is None


def test_stacks_come_from_the_process_itself_where_there_is_no_spy(training: Any, monkeypatch: Any) -> None:
    run, process = training
    monkeypatch.setattr("xectool.diagnosis.hang.stacks._spy", lambda: None)
    (line,) = [item for item in engine.diagnose.stacks(run) if item.role == "rank"]
    assert (line.pid, line.source) == (process.pid, "built-in")
    assert any("trainer.py" in frame for frame in line.stack)


def test_a_stopped_process_is_named_and_nothing_pretends_to_save_it(training: Any) -> None:
    run, process = training
    wait_for(lambda: not engine.diagnose.hang(run).bad)
    process.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: engine.diagnose.hang(run).findings[0].code == "XT-HANG-STOPPED")
        found = engine.diagnose.hang(run)
        assert found.findings[0].code == "XT-HANG-STOPPED"
        assert found.next == f"kill -CONT {process.pid}"
        assert engine.diagnose.hang(pid=process.pid).run == str(run)
        seen = engine.diagnose.status(run)
        assert (seen.ranks[0].state, seen.bad, seen.next) == ("stopped", True, found.next)
        place = Path(recorded(run, "control_socket")[-1].data["socket"])
        with pytest.raises(WorldError, match="does not answer"):
            ask(place, Request("checkpoint", wait_s=0))
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_run_that_was_asked_to_stop_saves_and_ends(training: Any) -> None:
    run, process = training
    assert engine.control(run, "lr", value=0.5, wait_s=60).done  # this test may be alone on its worker
    assert engine.control(run, "clip", value=1e-3, wait_s=60).done
    assert engine.control(run, "stop", wait_s=60).done
    process.wait()
    status = RunReader(run).status()
    assert status.state == "interrupted"
    assert (run / "checkpoint_last.pt").exists()
    with pytest.raises(UsageError, match="over"):
        engine.control(run, "checkpoint")
    found = engine.diagnose.hang(run)
    assert not found.bad
    resumed = engine.train(run / "config.yaml", resume="auto", run_name="live", max_steps=status.step + 1)
    assert resumed.steps == status.step + 1
    last = list(RunReader(run).steps())[-1]
    before = recorded(run, "lr_change")[-1].data["lr_after"]
    assert last.lr <= before * 1.001  # half the rate, and the clip, stay
    assert last.clip_coef == pytest.approx(1e-3 / last.grad_norm, rel=1e-3)


# -- several ranks

COMMANDS = 25


@pytest.fixture(scope="module")
def ranks(data: Path, tmp_path_factory: pytest.TempPathFactory, warm: Any) -> Iterator[Path]:
    """A training on two ranks that never ends by itself."""
    folder = tmp_path_factory.mktemp("ranks")
    process = warm.start("train", str(config_of(data, folder)), "--run-name", "r", "--nproc", "2")
    try:
        wait_for(lambda: step_of(folder / "r") >= 2)
        yield folder / "r"
        process.send_signal(signal.SIGTERM)
        process.wait()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def rates(run: Path, rank: int) -> dict[int, float]:
    blocks = StepFiles(attempt_dir(run, 1), rank).blocks()
    return {record.step: record.lr for block in blocks for record in block.records()}


@pytest.mark.slow
def test_ranks_act_between_the_same_two_steps(ranks: Path) -> None:
    for _ in range(COMMANDS):
        assert engine.control(ranks, "lr", value=0.9, wait_s=120).done
    last = recorded(ranks, "control")[-1].step
    wait_for(lambda: min(max(rates(ranks, rank), default=0) for rank in (0, 1)) > last)
    first, second = rates(ranks, 0), rates(ranks, 1)
    assert len({round(lr, 12) for lr in first.values()}) == COMMANDS + 1
    common = first.keys() & second.keys()
    assert max(common) > last
    assert {step: first[step] for step in common} == {step: second[step] for step in common}


@pytest.mark.slow
def test_what_was_done_stands_alike_in_the_record_of_every_rank(ranks: Path) -> None:
    kept = engine.control(ranks, "checkpoint", tag="named", wait_s=120)
    (ranks / "checkpoint_blocked.pt").mkdir()  # no file can take this name
    refused = engine.control(ranks, "checkpoint", tag="blocked", wait_s=120)
    assert (kept.done, refused.done) == (True, False)
    assert kept.message.endswith("checkpoint_named.pt")

    def asked(events: list[Any]) -> list[tuple[Any, ...]]:
        found = [event for event in events if event.kind == "control" and event.data["action"] == "checkpoint"]
        return [(event.step, event.data["done"], event.message) for event in found[-2:]]

    wait_for(lambda: len(asked(RunReader(ranks).of_other_ranks())) == 2)
    assert asked(RunReader(ranks).events()) == asked(RunReader(ranks).of_other_ranks())
    assert [(done, message) for _, done, message in asked(RunReader(ranks).events())] == [
        (True, kept.message),
        (False, refused.message),
    ]


@pytest.mark.slow
def test_a_stopped_rank_is_named_while_the_other_waits(ranks: Path) -> None:
    pages = {page.rank: page for page in RunReader(ranks).live()}
    os.kill(pages[1].pid, signal.SIGSTOP)
    try:
        wait_for(lambda: engine.diagnose.hang(ranks).findings[0].code == "XT-HANG-STOPPED")
        found = engine.diagnose.hang(ranks)
        assert (found.findings[0].code, found.bad) == ("XT-HANG-STOPPED", True)
        assert f"process {pages[1].pid} (rank 1)" in found.verdict
        assert {line.rank for line in found.processes if line.role == "rank"} == {0, 1}
    finally:
        os.kill(pages[1].pid, signal.SIGCONT)
    before = step_of(ranks)
    wait_for(lambda: step_of(ranks) > before)
