"""The live control of a run: a socket of the user's own, one line of JSON each way, a fixed list of actions.

No request is ever evaluated as code, nothing listens on the network, and a run that nobody asks does nothing for it:
its thread sleeps in the kernel. The kernel says who is on the other side; only the same user is answered.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xectool.errors import UsageError, WorldError
from xectool.runlog.process import machine_mark

MAX_BYTES: Final = 4096
CLIENT_S: Final = 5.0  # longest wait for the rest of a request
SILENT: Final = "XT-CTL-SILENT"
_TAG: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OWN_TAG: Final = re.compile(r"best|last|epoch_.*", re.IGNORECASE)  # checkpoints that a run names itself
_PATH_BYTES: Final = 107  # struct sockaddr_un of Linux, less the zero at its end
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid


@dataclass(frozen=True)
class Action:
    """What a run can be asked to do between two steps.

    Attributes:
        value: What the number of the request means; empty where it takes none.
        low: Smallest number allowed.
        high: Largest number allowed.
        example: A request as it is typed after ``xectool ctl RUN``.
    """

    value: str
    low: float
    high: float
    example: str


ACTIONS: Final[Mapping[str, Action]] = {
    "checkpoint": Action("", 0, 0, "checkpoint"),
    "stop": Action("", 0, 0, "stop"),
    "lr": Action("factor", 1e-3, 1e2, "lr --scale 0.1"),
    "clip": Action("largest gradient norm", 1e-6, 1e6, "clip 0.5"),
    "cancel": Action("", 0, 0, "cancel"),
}


@dataclass(frozen=True)
class Request:
    """One action somebody asks for.

    Attributes:
        action: One of `ACTIONS`.
        value: Its number; NaN where it takes none.
        tag: Name of a checkpoint that is kept, or empty.
        wait_s: How long the answer may wait for the next step boundary.
    """

    action: str
    value: float = math.nan
    tag: str = ""
    wait_s: float = 10.0

    def __post_init__(self) -> None:
        """Check the request.

        Raises:
            UsageError: There is no such action, or its number or name is out of bounds.
        """
        action = ACTIONS.get(self.action)
        if action is None:
            raise UsageError(
                f"a run knows no action '{str(self.action)[:40]}'",
                where="xectool ctl",
                fix=f"one of: {', '.join(item.example for item in ACTIONS.values())}, status, stacks, memory",
                code="XT-CTL-ACTION",
            )
        if action.value and not action.low <= self.value <= action.high:
            raise UsageError(
                f"{self.action} takes the {action.value}, from {action.low:g} to {action.high:g}, not {self.value:g}",
                where=f"xectool ctl RUN {self.action}",
                fix=f"xectool ctl RUN {action.example}",
                code="XT-CTL-VALUE",
            )
        if self.tag and not _TAG.fullmatch(self.tag):
            raise UsageError(
                f"'{self.tag[:80]}' is no name for a checkpoint: letters of English, digits, '.', '_', '-', at most 64",
                where="xectool ctl RUN checkpoint --tag",
                fix="xectool ctl RUN checkpoint --tag before-lr-change",
                code="XT-CTL-VALUE",
            )
        if _OWN_TAG.fullmatch(self.tag):
            raise UsageError(
                f"checkpoint_{self.tag} is a name that the run gives itself, and must not be overwritten",
                where="xectool ctl RUN checkpoint --tag",
                fix="xectool ctl RUN checkpoint --tag before-lr-change",
                code="XT-CTL-VALUE",
            )
        if not 0 <= self.wait_s <= 3600:
            raise UsageError("an answer may be waited for 0 to 3600 s", where="--wait", fix="--wait 60")

    @classmethod
    def parse(cls, line: bytes) -> Request:
        """Return the request of a line of JSON.

        Raises:
            UsageError: It is none.
        """
        try:
            found = json.loads(line)
            value = float(found.get("value", math.nan))
            return cls(str(found["action"]), value, str(found.get("tag", "")), float(found.get("wait_s", 10.0)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            fix = f'one line of at most {MAX_BYTES} bytes: {{"action": "checkpoint"}}'
            raise UsageError(f"not a request: {type(error).__name__}", where="control socket", fix=fix) from error

    def line(self) -> bytes:
        """Return the request as a line of JSON."""
        number = {} if math.isnan(self.value) else {"value": self.value}
        return json.dumps({"action": self.action, "tag": self.tag, "wait_s": self.wait_s, **number}).encode() + b"\n"


Answer = Callable[[Request, int], dict[str, Any]]
"""Does what a request asks for; is given the request and the process that asks."""


class ControlServer:
    """Answers requests while it is entered, each from a thread of its own.

    Args:
        answer: Called for each valid request; what it returns goes back as JSON.

    Attributes:
        path: The socket.

    Raises:
        OSError: No private directory for the socket can be had.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.path = _private_place(f"{os.getpid()}-{machine_mark()}-{secrets.token_hex(4)}.sock")
        _sweep(self.path.parent)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(self.path))
            self.path.chmod(0o600)
            self._socket.listen(8)
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> ControlServer:
        threading.Thread(target=self._serve, name="xectool-control", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._talk, args=(connection,), name="xectool-ctl", daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(CLIENT_S)
            packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, uid, _ = _CREDENTIALS.unpack(packed)
            if uid == os.getuid():
                connection.sendall(json.dumps(self._reply(_read_line(connection), pid)).encode() + b"\n")

    def _reply(self, line: bytes, pid: int) -> dict[str, Any]:
        try:
            return self._answer(Request.parse(line), pid)
        except UsageError as error:
            return {"refused": error.problem, "where": error.where, "fix": error.fix, "code": error.code}


def ask(path: Path, request: Request) -> dict[str, Any]:
    """Send a request to the socket of a run and return the answer.

    Raises:
        UsageError: The run refuses, or belongs to another user.
        WorldError: Nobody answers: the process is gone, stopped, or holds the interpreter lock.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(request.wait_s + CLIENT_S)
        try:
            connection.connect(str(path))
            connection.sendall(request.line())
            line = _read_line(connection)
        except OSError as error:
            raise _no_answer(path, f"{type(error).__name__}: {error}") from error
    if not line:
        raise _no_answer(path, "it ended before it answered")
    reply: dict[str, Any] = json.loads(line)
    if "refused" in reply:
        raise UsageError(reply["refused"], where=reply["where"], fix=reply["fix"], code=reply["code"])
    return reply


def _read_line(connection: socket.socket) -> bytes:
    """Return what comes up to a line's end or `MAX_BYTES`."""
    data = b""
    while not data.endswith(b"\n") and len(data) < MAX_BYTES:
        part = connection.recv(MAX_BYTES - len(data))
        if not part:
            break
        data += part
    return data


def _private_place(name: str) -> Path:
    """Return where a socket of that name can be: a directory that only this user can enter, and a path short enough.

    A directory that somebody else has laid out is not used.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [Path(runtime) / "xectool"] if runtime else []
    places += [Path(root) / f"xectool-{os.getuid()}" for root in (tempfile.gettempdir(), "/tmp")]
    failures = []
    for place in places:
        if len(os.fsencode(place / name)) > _PATH_BYTES:
            failures.append(f"{place} is too long for a socket")
            continue
        try:
            place.mkdir(mode=0o700, exist_ok=True)
            facts = place.lstat()
        except OSError as error:
            failures.append(str(error))
            continue
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077:
            return place / name
        failures.append(f"{place} is open to others")
    raise OSError("; ".join(failures))


def _sweep(place: Path) -> None:
    """Remove the sockets of killed processes, which nobody else would; another machine may share the directory."""
    for path in place.glob(f"*-{machine_mark()}-*.sock"):
        pid = path.name.partition("-")[0]
        if not pid.isdecimal() or Path("/proc", pid).exists():
            continue
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.setblocking(False)  # a stopped one with a full queue would be waited for
            if connection.connect_ex(str(path)) == errno.ECONNREFUSED:  # one of another container answers
                path.unlink()


def _no_answer(path: Path, reason: str) -> UsageError | WorldError:
    """Return why nobody answers: the socket is another user's, or its process is gone or stands still."""
    try:
        foreign = path.stat().st_uid != os.getuid()
    except PermissionError:  # the directory is another user's
        foreign = True
    except OSError:
        foreign = False
    return _foreign(path) if foreign else _silent(path, reason)


def _foreign(path: Path) -> UsageError:
    return UsageError(
        "the run belongs to another user and answers nobody else",
        where=str(path),
        fix="ask its owner, or log in as the owner",
        code="XT-CTL-USER",
    )


def _silent(path: Path, reason: str) -> WorldError:
    return WorldError(
        f"the run does not answer ({reason}): it has ended, is stopped, or hangs in code that holds the interpreter",
        where=str(path),
        fix="xectool diagnose hang RUN",
        code=SILENT,
    )
