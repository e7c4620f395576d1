"""The command line loads uproot without pyarrow, and everything else that asks for pyarrow gets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import awkward as ak
import pytest
import uproot

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "regressor.yaml")
FINDS = "import sys; {begin}import uproot; print('pyarrow' in sys.modules)"
LEAN = "from xectool.rootio.lean import leave_out_pyarrow; leave_out_pyarrow(); "


def said(program: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(("begin", "loaded"), [("", "True"), (LEAN, "False")], ids=["control", "lean"])
def test_uproot_brings_no_pyarrow(begin: str, loaded: str) -> None:
    assert said(FINDS.format(begin=begin)) == [loaded]


def test_code_of_a_plugin_has_the_whole_of_awkward() -> None:
    begin = f"{LEAN}import xectool.registry.plugins as plugins; plugins.are_there = lambda: True; "
    assert said(FINDS.format(begin=begin)) == ["True"]


def test_another_thread_gets_it_while_awkward_is_loaded() -> None:
    program = f"""{LEAN}
import importlib.util, sys, threading
found = []
class Asks:
    def find_spec(self, name, path=None, target=None):
        if name == "pyarrow":
            other = threading.Thread(target=lambda: found.append(sys.meta_path[1].find_spec("pyarrow", None)))
            other.start()
            other.join()
sys.meta_path.insert(0, Asks())
import uproot
print(found, "pyarrow" in sys.modules)"""
    assert said(program) == ["[None]", "False"]


@pytest.mark.parametrize("order", ["import uproot, pyarrow", "import pyarrow, uproot"])
def test_who_asks_for_pyarrow_gets_it(order: str) -> None:
    assert said(f"{LEAN}{order}; print(pyarrow.array([1, 2]).sum())") == ["3"]


def test_vectors_are_read_without_it(tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "a.root") as file:
        file.mktree("tree", {"x": "var * float32"}).extend({"x": ak.Array([[1, 2], [3, 4]])})
    program = f"{LEAN}import sys\nfrom xectool.rootio.reader import EventFile\n"
    program += "print(EventFile(sys.argv[1]).read_column('x').sum(), 'pyarrow' in sys.modules)"
    assert said(program, str(tmp_path / "a.root")) == ["10.0", "False"]


def test_a_command_reads_a_file_without_it(tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "a.root") as file:
        file.mktree("tree", {"x": "float32"}).extend({"x": [1.0]})
    program = (
        "import atexit, sys\nfrom xectool.__main__ import main\n"
        "atexit.register(lambda: print('loaded', 'uproot' in sys.modules, 'pyarrow' in sys.modules))\n"
        "sys.argv = ['xectool', 'check-data', sys.argv[1]]\nmain()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.root")]
    assert "loaded True False" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(
    "words",
    [
        ["train", "no.yaml"],
        ["submit", "no.yaml", "--partition", "p", "--time", "1:00:00"],
        ["diagnose", "loader", "no.yaml"],
        ["check-data", "a.root", "--config", "no.yaml"],
    ],
)
def test_a_configuration_that_is_not_there_is_told_before_torch_is_loaded(words: list[str], tmp_path: Path) -> None:
    """It took three seconds of CPU, four times as long."""
    program = (
        "import atexit, sys\nfrom xectool.__main__ import main\n"
        "atexit.register(lambda: print('loaded', 'torch' in sys.modules))\n"
        "sys.argv[0] = 'xectool'\nmain()"
    )
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "no such config file" in done.stderr
    assert (done.returncode, done.stdout.split()) == (2, ["loaded", "False"])


def test_every_configuration_of_a_command_line_is_looked_at_first() -> None:
    from typer.main import get_command
    from xectool.cli.app import app

    told, left = [], [get_command(app)]
    while left:
        command = left.pop()
        left += getattr(command, "commands", {}).values()
        told += [(command.name, item.callback) for item in command.params if str(item.metavar).startswith("CONFIG")]
    assert len(told) > 12
    assert {name for name, callback in told if callback is None} == {"submit"}, "which tells all that it lacks at once"


def test_a_configuration_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "xectool", "config", "show", "/dev/stdin", "--json"]
    done = subprocess.run(command, input="kind: mae\n", cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["report", "gone"],
        ["diagnose", "replay", "gone", "--step", "3"],
        ["export", "gone.pt"],
        ["inspect-ckpt", "gone.pt"],
        ["predict", "gone.pt", "data.root"],
        ["train", EXAMPLE, "--resume", "gone.pt"],
    ],
)
def test_a_run_or_checkpoint_that_is_not_there_is_told_before_torch_is_loaded(words: list[str]) -> None:
    """It took seven seconds of CPU, a minute on a busy machine."""
    program = (
        "import sys; from xectool.cli import boundary; from xectool.cli.app import app; "
        "print(boundary.run(app, sys.argv[1:]), 'torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    assert said(program, *words) == ["2", "False", "False"]
