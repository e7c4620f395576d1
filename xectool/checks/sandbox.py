"""Opens files in another process that may be ended: damaged metadata can ask for any time and any memory.

Run as a module it is that process: it reads one request a line from stdin and answers with a pickle of known length.
"""

from __future__ import annotations

import base64
import json
import pickle
import resource
import select
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Final, Self

from xectool.checks.facts import FileFacts, Trouble, arguments
from xectool.config.inputs import input_name, is_remote, split_tree

TIME_LIMIT_S: Final = 25.0
MEMORY_LIMIT_BYTES: Final = 4 * 1024**3
_START_LIMIT_S: Final = 120.0
_COPY: Final = "copy the file again and compare its checksum, or take it out of the list"


class Sandbox:
    """Opens one file after the other in a process of its own, which is started anew when a file took it down.

    Args:
        time_limit_s: Longest time for the metadata of one file.
        memory_limit_bytes: Most memory they may ask for.
    """

    def __init__(self, time_limit_s: float = TIME_LIMIT_S, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self.time_limit_s, self.memory_limit_bytes = time_limit_s, memory_limit_bytes
        self._process: subprocess.Popen[str] | None = None
        # A file, as a pipe would fill and stop the process; it lives as long as this object.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        self._end()
        self._errors.close()

    def probe(self, path: str, default_tree: str = "tree") -> FileFacts:
        """Return the structure of a file; one that takes too long, too much, or the process with it is damaged."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"path": path, "tree": default_tree}) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], self.time_limit_s)
        line = process.stdout.readline() if ready else ""
        if line:
            # The pickle comes from our own child process, never from a file.
            facts: FileFacts = pickle.loads(base64.b64decode(line))
            return facts
        reason = self._reason(process) if ready else ""
        self._end()
        return _unreadable(path, default_tree, reason) if reason else _slow(path, default_tree, self.time_limit_s)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            command = [sys.executable, "-m", "xectool.checks.sandbox", str(self.memory_limit_bytes)]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, encoding="utf-8", errors="replace"
            )
            assert self._process.stdout is not None
            select.select([self._process.stdout], [], [], _START_LIMIT_S)
            self._process.stdout.readline()
        return self._process

    def _reason(self, process: subprocess.Popen[str]) -> str:
        process.wait(timeout=10)
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        if lines and lines[-1].startswith(("MemoryError", "numpy._core._exceptions._ArrayMemoryError")):
            return f"its metadata ask for more than {self.memory_limit_bytes / 1024**3:.1f} GiB of memory"
        return f"reading its metadata ended the process ({lines[-1] if lines else f'code {process.returncode}'})"

    def _end(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.wait()
        self._errors.seek(0)
        self._errors.truncate()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _unreadable(path: str, default_tree: str, reason: str) -> FileFacts:
    name, tree = split_tree(path, default_tree)
    fix = "check the connection" if is_remote(name) else _COPY
    trouble = Trouble("DAT-01", "XT-DATA-DAMAGED", f"'{name}' is damaged: {reason}", input_name(name, tree), fix)
    return FileFacts(name, tree, troubles=(trouble,))


def _slow(path: str, default_tree: str, limit_s: float) -> FileFacts:
    name, tree = split_tree(path, default_tree)
    problem = f"'{name}' is given up: reading its metadata takes more than {limit_s:g} s; damage or very many branches"
    fix = f"xectool check-data {arguments(name, tree)} --time-limit {10 * limit_s:g}"
    return FileFacts(name, tree, troubles=(Trouble("DAT-01", "XT-DATA-DAMAGED", problem, input_name(name, tree), fix),))


def _serve(memory_limit_bytes: int) -> None:
    from xectool.checks.probing import probe

    # Private memory only: a map of the whole file is no memory of ours, however large the file.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_limit_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        facts = probe(request["path"], request["tree"])
        sys.stdout.write(base64.b64encode(pickle.dumps(facts)).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
