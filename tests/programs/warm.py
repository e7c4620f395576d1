"""Starts ``xectool`` in fresh processes that have the imports behind them, four seconds of CPU a start.

A server loads torch and the commands once and forks for each start. Directory, environment, arguments, standard
streams, signals and exit status are those of a process of its own; tests of the start itself use a real one.

    python warm.py serve SOCKET          serves until its standard input ends
    python warm.py run SOCKET ARGV...    one command, as ``xectool ARGV...``; with -c, -m or a file ``python ARGV...``
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, TextIO

LOADED = (
    "torch._dynamo", "torch._inductor.config",  # the first optimizer of a process loads them, for a second and a half
    "xectool.cli.app", "xectool.engine.diagnose.run_health", "xectool.engine.prediction", "xectool.engine.reporting",
    "xectool.engine.training",
)  # fmt: skip
MOST_S = 400.0  # a command that takes longer hangs, and is killed
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGHUP)


class WarmProcess:
    """One command, killed after `MOST_S`; the part of `subprocess.Popen` that tests need.

    Attributes:
        pid: Of the command.
        returncode: Exit status, minus the number of the signal that ended it; None while it runs.
        stdout: What it says, where that is a pipe.
        stderr: What it complains of, where that is one.
    """

    def __init__(
        self, address: str, argv: Sequence[str], env: Mapping[str, str], cwd: str, streams: Sequence[int]
    ) -> None:
        self.returncode: int | None = None
        self.stdout: TextIO | None = None
        self.stderr: TextIO | None = None
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(address)
        request = json.dumps({"argv": list(argv), "env": dict(env), "cwd": cwd})
        socket.send_fds(self._connection, [request.encode()], list(streams))
        self.pid = int(self._connection.recv(64))
        self._limit = threading.Timer(MOST_S, self.send_signal, (signal.SIGKILL,))
        self._limit.daemon = True
        self._limit.start()

    def poll(self) -> int | None:
        """Return the exit status, None while the command runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0.0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for the end and return the exit status."""
        if self.returncode is None:
            self.returncode = int(self._connection.recv(64))
            self._limit.cancel()
            self._connection.close()
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Read both pipes to their ends, and wait for that of the command."""
        assert self.stdout is not None
        assert self.stderr is not None
        with self.stdout, self.stderr, ThreadPoolExecutor(1) as reader:
            errors = reader.submit(self.stderr.read)
            said = self.stdout.read(), errors.result()
        self.wait()
        return said

    def send_signal(self, number: int) -> None:
        """Send a signal to a command that still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def serve(address: str) -> None:
    """Load everything, say ``ready`` and fork for each connection."""
    _load()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)  # noqa: T201
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _answer(connection)
            _reap()


def _load() -> None:
    import gc
    import threading

    for name in LOADED:
        importlib.import_module(name)
    threads = {Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")}
    if threading.active_count() != 1 or not threads <= {
        "python",
        "python3",
        "jemalloc_bg_thd",
    }:  # jemalloc survives a fork
        sys.exit(f"a process with several threads cannot be forked: {sorted(threads)}")
    gc.freeze()


def _reap() -> None:
    """Wait for what has ended, so that its CPU counts as that of the server's children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(connection: socket.socket) -> None:
    """Fork the command and tell its number and its end; returns in the command only, by its exit."""
    message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(json.loads(message), streams)
    for stream in streams:
        os.close(stream)
    connection.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: dict[str, object], streams: Sequence[int]) -> NoReturn:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if Path(folder, "sitecustomize.py").exists():  # which a process of its own would have run
            runpy.run_path(str(Path(folder, "sitecustomize.py")))
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, encoding="utf-8") for n, mode in enumerate(("r", "w", "w")))
    sys.argv = list(request["argv"])  # type: ignore[call-overload]
    if sys.argv[0] == "-c":
        program = compile(sys.argv.pop(1), "<string>", "exec")
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(program, vars(sys.modules["__main__"]))
    elif sys.argv[0] == "-m":
        sys.argv.pop(0)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif sys.argv[0].endswith(".py"):
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        _command()
    sys.exit(0)


def _command() -> None:
    from xectool.cli.app import main

    sys.argv.insert(0, "xectool")
    main()


def run(address: str, argv: Sequence[str]) -> NoReturn:
    """Run one command in place of this process."""
    process = WarmProcess(address, argv, os.environ, str(Path.cwd()), (0, 1, 2))
    for number in FORWARDED:
        signal.signal(number, lambda received, _: process.send_signal(received))
    status = process.wait()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1] == "serve" else run(sys.argv[2], sys.argv[3:])
