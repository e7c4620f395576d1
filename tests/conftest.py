"""Fixtures every room uses."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

# As `make test` has it: runs of this process and of the programs it starts are compared to the bit.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A worker is told the width of the terminal, and lines would be broken there as no file has them broken.
os.environ.pop("COLUMNS", None)

import pytest
from hypothesis import settings

settings.register_profile("shared machine", deadline=None)  # how long an example takes is the load of others
settings.load_profile("shared machine")

PROGRAM = Path(__file__).parent / "programs" / "warm.py"
LEAN = Path(__file__).parent / "programs" / "lean"
OF_A_TEST = ("PYTEST_CURRENT_TEST", "XDG_CACHE_HOME")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device the numeric tests run on, e.g. cuda:0")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage among eight thousand tests, which took a third of the time, nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin each half with files that hold long tests, so that no worker is left alone with one at the end.

    Of two workers each is given a half; whoever is done steals from the end of what the other one has left.
    """
    long = list(dict.fromkeys(item.path for item in items if item.get_closest_marker("slow")))
    first, second = set(long[::2]), set(long[1::2])
    short = [item for item in items if item.path not in long]
    halves = [[item for item in items if item.path in paths] for paths in (first, second)]
    fitting = max(0, len(items) // 2 - len(halves[0]))
    items[:] = halves[0] + short[:fitting] + halves[1] + short[fitting:]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say why tests of the cache fail on a machine whose disk is nearly full."""
    from xectool.data.cache.store import left_free

    disk = shutil.disk_usage(tempfile.gettempdir())
    left = left_free(disk.total)
    if terminalreporter.stats.get("failed") and disk.free < left:
        said = f"{tempfile.gettempdir()}: {disk.free / 1e9:.3g} GB are free"
        terminalreporter.write_line(f"{said}; no cache is built below {left / 1e9:.3g} GB, and tests of it fail")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """Outputs and checkpoints of the older system; they lie beside the checkout, never in it."""
    path = Path(__file__).resolve().parents[2] / "shared" / "reference"
    if not path.is_dir():
        pytest.skip("the older system's reference files are not beside this checkout")
    return path


@contextmanager
def _lean() -> Iterator[None]:
    from xectool.models import backbones

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backbones, "STAGE_DEPTHS", (1, 1))
        patch.setattr(backbones, "NUM_HEX_LAYERS", 1)
        patch.setenv("PYTHONPATH", str(LEAN), prepend=os.pathsep)
        yield


@pytest.fixture
def shallow() -> Iterator[None]:
    """Build networks with one block a stage instead of two to four: half the CPU of a training, all its operations.

    For tests whose subject is not the network; the processes that they start build such networks too.
    """
    with _lean():
        yield


@pytest.fixture
def unread_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let command lines be parsed whose files and runs are not there: those in documents and messages."""
    monkeypatch.setattr("xectool.engine.at_hand.read_document", lambda path: None)
    monkeypatch.setattr("xectool.engine.at_hand.recorded_run", lambda word: word)
    monkeypatch.setattr("xectool.engine.at_hand.present_checkpoint", lambda word: word)


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give each module a cache of events of its own.

    A run whose epochs make a copy worth its disk leaves one, and every later run on those files reads the copy.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("MPLCONFIGDIR"):
            patch.setenv("MPLCONFIGDIR", str(_fonts()))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def _fonts() -> Path:
    """Return where matplotlib keeps its list of fonts, which takes seconds to make."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "matplotlib"


@pytest.fixture(scope="session", autouse=True)
def _kept_opener() -> Iterator[None]:
    """Let all checks of data share one process that opens files: half a second of CPU for each of them, else.

    It is the process that users have; one is started anew after a file took it down, and where a check runs in another
    directory or environment.
    """
    from xectool.checks import running
    from xectool.checks.sandbox import Sandbox

    class Kept(Sandbox):
        place: object = None

        def here(self, time_limit_s: float) -> Kept:
            self.time_limit_s = time_limit_s
            others = {name: os.environ[name] for name in os.environ if name not in OF_A_TEST}
            place = (os.getcwd(), others)
            if place != self.place:
                self._end()
            self.place = place
            return self

        def __exit__(self, *error: object) -> None: ...

    kept = Kept()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "Sandbox", kept.here)
        yield
    kept._end()
    kept._errors.close()


@pytest.fixture(scope="session")
def lean() -> Callable[[], AbstractContextManager[None]]:
    """Return what makes networks shallow while it is entered, for fixtures that outlive a module."""
    return _lean


@pytest.fixture(scope="module")
def shallow_module() -> Iterator[None]:
    """The same for all tests of a module."""
    with _lean():
        yield


@pytest.fixture(scope="module")
def room_of_trainings(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same for all modules of a room that uses it, but for those that are marked as deep."""
    with nullcontext() if request.node.get_closest_marker("deep") else _lean():
        yield


@dataclass(frozen=True)
class WarmCommands:
    """Starts commands without the four seconds of CPU that imports take: see ``programs/warm.py``.

    Attributes:
        address: Socket of the server.
        directory: Holds a program ``xectool``, to be put first in a ``PATH``.
    """

    address: str
    directory: Path
    program: ModuleType

    def start(self, *argv: str, streams: Sequence[int] = (), told: int = -1, **environment: str) -> Any:
        """Return a running ``xectool ARGV...``, with -c, -m or a file ``python ARGV...``; `subprocess.Popen` in small.

        Args:
            argv: The words.
            streams: Output and errors; neither is said without.
            told: What it reads from, nothing without.
            environment: Variables that go before those of this process.
        """
        with open(os.devnull, "r+b") as null:
            given = [null.fileno() if told < 0 else told, *(streams or [null.fileno()] * 2)]
            return self.program.WarmProcess(self.address, argv, {**os.environ, **environment}, str(Path.cwd()), given)

    def open(self, *argv: str, **environment: str) -> Any:
        """Return what `start` does with ``stdout`` and ``stderr`` to read from, and ``communicate``."""
        (out, said), (errors, complained) = os.pipe(), os.pipe()
        process = self.start(*argv, streams=[said, complained], **environment)
        os.close(said)
        os.close(complained)
        process.stdout, process.stderr = os.fdopen(out), os.fdopen(errors)
        return process

    def run(self, *argv: str, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command that reads a text as `start` does, to its end."""
        with ExitStack() as stack:
            told, out, err = streams = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
            told.write(given)
            told.seek(0)
            code = self.start(*argv, streams=[out.fileno(), err.fileno()], told=told.fileno(), **environment).wait()
            said = [(stream.seek(0), stream.read())[1] for stream in streams[1:]]
        return subprocess.CompletedProcess(argv, code, *said)


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmCommands]:
    spec = importlib.util.spec_from_file_location("warm_program", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with tempfile.TemporaryDirectory(prefix="warm") as place:
        address = f"{place}/socket"
        shim = Path(place) / "xectool"
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {PROGRAM} run {address} "$@"\n')
        shim.chmod(0o755)
        command = [sys.executable, str(PROGRAM), "serve", address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield WarmCommands(address, Path(place), program)
            assert server.stdin is not None
            server.stdin.close()


@pytest.fixture
def warm_estimates(warm: WarmCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is estimated in fresh processes that have their imports behind them, two of four seconds of CPU each.

    What a process takes itself, and how one ends that dies, is for tests without this.
    """
    from xectool.training.memory_estimate import child

    def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "estimate" not in command:
            return subprocess.run(command, check=options.pop("check"), **options)
        given = {name: options["env"][name] for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
        return warm.run(*command[command.index("-m") :], **given)

    monkeypatch.setattr(child, "subprocess", SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired))


@pytest.fixture
def paste(warm: WarmCommands) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return what runs a printed line in a shell, as a user does."""

    def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{warm.directory}:{os.environ['PATH']}"}
        return subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True)

    return run
