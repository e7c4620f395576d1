"""The control socket: what is refused, where it lies, and why nobody answers; no training is needed for that."""

from __future__ import annotations

import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from xectool.errors import UsageError, WorldError
from xectool.runlog.control import ControlServer, Request, ask
from xectool.runlog.process import machine_mark


def answered(request: Request, author: int) -> dict[str, Any]:
    return {"action": request.action, "author": author}


@pytest.mark.parametrize("tag", ["best", "last", "epoch_3", "Best", "../x", "a b", "x" * 65])
def test_names_that_a_run_gives_itself_are_refused(tag: str) -> None:
    with pytest.raises(UsageError, match="name") as caught:
        Request("checkpoint", tag=tag)
    assert caught.value.code == "XT-CTL-VALUE"
    assert Request("checkpoint", tag="best-so-far").tag == "best-so-far"


@pytest.mark.parametrize("key", ["value", "wait_s"])
def test_a_number_beyond_all_bounds_is_refused_and_ends_no_thread(key: str) -> None:
    with pytest.raises(UsageError):
        Request.parse(b'{"action": "clip", "value": 1.0, "' + key.encode() + b'": 1' + b"0" * 400 + b"}\n")


def test_what_is_too_long_for_a_request_is_refused_with_one_that_is_not() -> None:
    cut = b'{"action": "checkpoint", "tag": "' + b"a" * 4063
    with pytest.raises(UsageError, match="at most 4096 bytes") as caught:
        Request.parse(cut)
    assert Request.parse(caught.value.fix.partition(": ")[2].encode()).action == "checkpoint"


def test_a_directory_too_long_for_a_socket_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as root:
        deep = Path(root) / ("d" * 90)
        deep.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
        with ControlServer(answered) as server:
            assert server.path.parent.parent == Path("/tmp")
            assert ask(server.path, Request("stop"))["action"] == "stop"
        with socket.socket(socket.AF_UNIX) as control, pytest.raises(OSError, match="too long"):
            control.bind(str(deep / "xectool" / server.path.name))


def test_sockets_of_killed_processes_are_removed_and_those_that_answer_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as root:
        monkeypatch.setenv("XDG_RUNTIME_DIR", root)
        place, none, own = Path(root) / "xectool", 2**22 + 1, machine_mark()  # above the largest number of a process
        with monkeypatch.context() as elsewhere:  # a node of the same name, as those that start from one image
            elsewhere.setattr("xectool.runlog.process.boot_id", lambda: "another")
            theirs = machine_mark()
        place.mkdir(mode=0o700)
        dead, live, there = (place / f"{mark}-x.sock" for mark in (f"{none}-{own}", f"1-{own}", f"{none}-{theirs}"))
        stopped = [place / f"{none + number}-{own}-x.sock" for number in (1, 2)]
        with ExitStack() as stack:
            for path in stopped:  # as a process of another container has it
                other = stack.enter_context(socket.socket(socket.AF_UNIX))
                other.bind(str(path))
                other.listen(0)
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(stopped[1]))  # nobody else gets in
            for path in (dead, live, there):  # nothing answers to this kernel on the socket of another machine
                with socket.socket(socket.AF_UNIX) as killed:
                    killed.bind(str(path))
            server = stack.enter_context(ControlServer(answered))
            assert set(place.iterdir()) == {*stopped, live, there, server.path}


def test_a_process_that_ends_without_an_answer_is_not_another_users(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
    with pytest.raises(WorldError, match="does not answer") as caught:
        ask(path, Request("stop", wait_s=0))
    assert caught.value.code == "XT-CTL-SILENT"


def test_an_empty_answer_of_ones_own_process_means_that_it_ended(tmp_path: Path) -> None:
    def ends(request: Request, author: int) -> dict[str, Any]:
        raise OSError

    with ControlServer(ends) as server, pytest.raises(WorldError, match="ended before it answered"):
        ask(server.path, Request("stop", wait_s=0))


def test_the_socket_of_another_user_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with ControlServer(answered) as server:
        monkeypatch.setattr("os.getuid", lambda: 12345)
        with pytest.raises(UsageError, match="another user"):
            ask(server.path, Request("stop", wait_s=0))
