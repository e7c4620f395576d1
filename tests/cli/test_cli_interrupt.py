"""A stopped training ends in one document, exit code 130, and a run that goes on; plain output is plain."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import xectool as package
from xectool import engine
from xectool.cli import boundary
from xectool.cli.app import app
from xectool.cli.render import Output, console
from xectool.errors import EXIT_WORLD
from xectool.runlog.reader import RunReader

XECTOOL = [sys.executable, "-m", "xectool"]
PLAIN = ["--set", "checkpoint.save_artifacts=false"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("shallow")
def test_signal_ends_in_one_document_and_a_run_that_goes_on(
    files: Path, xectool: Callable[..., Any], warm: Any, number: signal.Signals
) -> None:
    name = f"stopped{number}"
    argv = [
        str(warm.directory / "xectool"),
        "train",
        str(files / "config.yaml"),
        "--run-name",
        name,
        "--json",
        *PLAIN,
        "--set",
        "training.epochs=500",
    ]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    wait_for(files / "runs" / name / "checkpoint_last.pt")
    process.send_signal(number)
    time.sleep(0.05)
    os.killpg(process.pid, number)  # `timeout` sends its signal to the command, and then to the group that it is in
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    document = json.loads(out)
    assert (document["status"], document["result"]["status"]) == ("error", "interrupted")
    assert [found["code"] for found in document["findings"]] == ["XT-INTERRUPTED"]
    assert "--resume" in document["findings"][0]["fix"]
    epochs = document["result"]["epochs"]
    more = ["--run-name", name, "--json", "--resume", "auto", *PLAIN, "--set", f"training.epochs={epochs + 1}"]
    assert xectool("train", files / "config.yaml", *more).document["result"]["epochs"] == epochs + 1


LOADED = "import sys, xectool.cli.app; print('loaded', flush=True); sys.stdin.read()"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_while_the_command_line_loads_interrupts_and_kills_nothing(
    files: Path, number: signal.Signals
) -> None:
    argv = [*XECTOOL, "train", str(files / "config.yaml"), "--run-name", "early", "--json"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not hears(process.pid, signal.SIGUSR2):  # the last of those that are heard from the start
        assert process.poll() is None
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert [found["code"] for found in json.loads(out)["findings"]] == ["XT-INTERRUPTED"]
    assert not (files / "runs" / "early").exists()


def test_a_signal_kills_a_command_line_that_does_not_hear_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", LOADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "loaded\n"
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGUSR1


def test_a_signal_in_the_set_up_of_a_training_interrupts_it(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "xectool.engine.training_run.attempt.calibrate_conventional", lambda parts: os.kill(os.getpid(), signal.SIGUSR1)
    )
    with pytest.raises(KeyboardInterrupt):
        engine.train(files / "config.yaml", run_name="set_up")
    assert RunReader(files / "runs" / "set_up").status().state == "interrupted"


LOADS = """
import signal, sys, time
from xectool.cli import signals
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
signals.hear()
if sys.argv[1] == "plain":
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
try:
    import slow
    time.sleep(60)
except KeyboardInterrupt:
    sys.stdout.write("loaded" if "slow" in sys.modules else "broken")
    signal.raise_signal(signal.SIGTERM)  # passed on by a launcher
    signal.raise_signal(signal.SIGHUP)
"""


@pytest.mark.parametrize(("how", "said"), [("heard", "loaded"), ("plain", "broken")])
def test_an_interrupt_waits_for_a_module_to_be_loaded_and_comes_once(tmp_path: Path, how: str, said: str) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGUSR1)\ntime.sleep(0.3)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(package.__file__).parents[1]}"}
    command = [sys.executable, "-c", LOADS, how]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.stdout == said, done.stderr
    assert (done.returncode == 0) == (how == "heard"), done.stderr


PRESSED = """
import signal, sys, time
from xectool.cli import signals
signal.signal(signal.SIGINT, signal.SIG_DFL)  # what runs in the background ignores it
signals.hear() if sys.argv[1] == "heard" else signal.signal(signal.SIGINT, signal.default_int_handler)
told = []
for wait in (0.0, 0.0, 1.1):
    time.sleep(wait)
    try:
        signal.raise_signal(signal.SIGINT)
        told.append("passed")
    except KeyboardInterrupt:
        told.append("raised")
sys.stdout.write(" ".join(told))
"""


@pytest.mark.parametrize(("how", "said"), [("heard", "raised passed raised"), ("plain", "raised raised raised")])
def test_the_signal_that_timeout_sends_twice_interrupts_once_and_one_a_second_later_again(how: str, said: str) -> None:
    """The second one interrupted what the first had a command do: its last words."""
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, "-c", PRESSED, how]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.stdout == said, done.stderr


def hears(pid: int, number: int) -> bool:
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.usefixtures("shallow")
def test_no_color_on_a_terminal_means_no_escape_codes_at_all(files: Path, warm: Any) -> None:
    main, terminal = pty.openpty()
    argv = [
        "train",
        str(files / "config.yaml"),
        "--run-name",
        "uncoloured",
        *PLAIN,
        "--set",
        "training.lr=1.0",
    ]
    process = warm.start(*argv, streams=[terminal, terminal], NO_COLOR="1")
    os.close(terminal)
    shown = b""
    while block := read(main):
        shown += block
    assert process.wait() == 0, shown
    assert b"epoch 1" in shown
    assert b"CFG-29" in shown
    assert b"\x1b" not in shown


@pytest.mark.parametrize("as_json", [False, True])
def test_a_closed_terminal_ends_no_command(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    main, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "stdout", stream)
        os.close(main)
        with pytest.raises(OSError, match="Input/output error"):
            os.write(terminal, b"lost")
        Output("train", as_json).interrupted()


EXPLAIN = ["explain", "XT-NAN"]
FULL = "No space left on device"


@pytest.mark.parametrize("full", ["stdout", "stderr", "both"])
@pytest.mark.parametrize("argv", [EXPLAIN, [*EXPLAIN, "--json"], ["nonsense"], ["--version"], ["--help"]])
def test_an_answer_that_finds_no_room_is_a_failure_of_the_disk_and_is_on_the_other_stream(
    argv: list[str], full: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    boundary.run(app, argv)
    usual = capsys.readouterr()
    with open("/dev/full", "w", buffering=1) as stream:
        for name in ("stdout", "stderr") if full == "both" else (full,):
            monkeypatch.setattr(sys, name, stream)
        code = boundary.run(app, argv)
    shown = capsys.readouterr()
    lost = {"stdout": usual.out, "stderr": usual.err, "both": usual.out + usual.err}[full]
    assert (code == EXIT_WORLD) == bool(lost)
    other = "" if full == "both" else shown.err if full == "stdout" else shown.out
    assert (FULL in other and "XT-DISK" in other and lost in other) == (bool(lost) and full != "both")


def test_a_training_whose_log_finds_no_room_ends_as_its_work_did(monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter((0, 0, 1))
    commands = typer.Typer()

    @commands.command()
    @commands.command("predict")
    def train() -> int:
        sys.stdout.write("epoch 1\n")
        return next(results)

    codes = []
    for command in ("train", "predict", "train"):
        with open("/dev/full", "w", buffering=1) as stream:
            monkeypatch.setattr(sys, "stdout", stream)
            codes.append(boundary.run(commands, [command]))
    assert codes == [0, EXIT_WORLD, 1]


@pytest.mark.parametrize("argv", [EXPLAIN, [*EXPLAIN, "--json"], ["nonsense"], ["--version"], ["--help"]])
def test_streams_that_the_shell_closed_are_no_defect(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = boundary.run(app, argv)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert boundary.run(app, argv) == usual


def test_a_reader_that_takes_nothing_for_a_while_gets_every_line_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xectool.cli.streams.PATIENCE_S", 0.01)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filled = os.write(writing, b"." * (1 << 20))
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        screen = console()
        screen.print("first")
        screen.print("second")
        assert os.read(reading, filled) == b"." * filled
        screen.print("third")
        assert os.read(reading, 100) == b"first\nsecond\nthird\n"
    os.close(reading)


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end of the terminal is closed
        return b""


def wait_for(path: Path) -> None:
    for _ in range(3000):
        if path.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} did not appear")
