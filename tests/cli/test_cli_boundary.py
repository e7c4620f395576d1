"""Every failure is one clear message and the documented exit code."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import py_compile
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import typer
from xectool import errors
from xectool.cli import boundary
from xectool.cli.app import app
from xectool.cli.options import parse_count
from xectool.errors import UsageError, XecError

Run = Callable[..., object]


def app_raising(error: BaseException) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def fail(json: bool = False) -> None:
        raise error

    return app


LEAVES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, XecError)]


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_exit_code_follows_the_tree(kind: type[XecError], capfd: pytest.CaptureFixture[str]) -> None:
    code = boundary.run(app_raising(kind("it broke", where="here", fix="do this")), [])
    shown = capfd.readouterr().err
    assert code == kind.exit_code
    assert all(word in shown for word in ("it broke", "here", "do this"))
    assert "Traceback" not in shown


def test_exit_codes_are_those_of_the_house() -> None:
    codes = {kind.__name__: kind.exit_code for kind in LEAVES}
    assert {codes["ConfigError"], codes["DataFileError"], codes["CheckpointError"], codes["UsageError"]} == {2}
    assert {codes["DataUnusable"], codes["RunDiverged"], codes["OutputsDiffer"]} == {1}
    assert {codes["DeviceError"], codes["DiskError"], codes["OutOfMemory"], codes["TrackerError"]} == {3}


def test_error_document_carries_the_finding(capfd: pytest.CaptureFixture[str]) -> None:
    boundary.run(app_raising(UsageError("bad", where="w", fix="f", code="XT-X")), ["--json"])
    out, err = capfd.readouterr()
    assert '"status": "error"' in out
    assert '"code": "XT-X"' in out
    assert err == ""


@pytest.mark.parametrize(
    ("argv", "name", "help_line"),
    [
        (["diagnose", "query", "/nowhere", "SELECT 1"], "diagnose query", ""),
        (["diagnose", "query"], "diagnose query", "xectool diagnose query --help"),
        (["diagnose", "qery"], "diagnose", "xectool diagnose query --json"),
        (["trian", "config.yaml"], "trian", "xectool train config.yaml --json"),
        ([], "", "xectool --help"),
        (["export"], "export", "xectool export --help"),
    ],
)
def test_error_document_names_the_command_as_its_success_does(
    argv: list[str], name: str, help_line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert boundary.run(app, [*argv, "--json"]) == 2
    document = json.loads(capfd.readouterr().out)
    assert document["command"] == name
    assert help_line in document["findings"][0]["fix"]


def test_defect_keeps_its_traceback_in_a_file(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = boundary.run(app_raising(ZeroDivisionError("oops")), [])
    shown = capfd.readouterr().err
    assert code == 70
    kept = next(word for word in shown.split() if "xectool-defect-" in word)
    assert "ZeroDivisionError: oops" in Path(kept).read_text()
    assert "Traceback" not in shown
    Path(kept).unlink()


@pytest.mark.parametrize("command", ["report", "runs", "inspect-ckpt"])
def test_the_home_of_nobody_is_a_mistake_of_the_caller(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert boundary.run(app, [command, "~nobody-of-that-name/run"]) == 2
    assert "XT-DEFECT" not in capfd.readouterr().err


def test_byte_code_cut_short_by_a_full_disk_is_named_and_the_line_cures_it(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "its_byte_code_was_cut.py"
    module.write_text("TEXT = 'of some length, for a marshalled code object'\n")
    kept = Path(importlib.util.cache_from_source(str(module)))
    py_compile.compile(str(module), doraise=True)
    kept.write_bytes(kept.read_bytes()[:60])
    monkeypatch.syspath_prepend(tmp_path)

    def start(**_: object) -> None:
        importlib.import_module(module.stem)

    assert boundary.run(start, ["--json"]) == 3
    (found,) = json.loads(capfd.readouterr().out)["findings"]
    assert found["code"] == "XT-DISK"
    assert module.stem in found["problem"]
    subprocess.run(["sh", "-c", found["fix"].partition(": ")[2]], check=True)
    assert boundary.run(start, []) == 0


def open_without_end() -> None:
    """Open files until none can be opened."""
    with ExitStack() as opened:
        while True:
            opened.enter_context(open(os.devnull, encoding="utf-8"))


def take_without_end() -> None:
    """Ask for more memory than addresses there are."""
    np.empty(1 << 55, np.uint8)


def start_without_end() -> None:
    """Start a process where the kernel refuses one, as it does beyond ``ulimit -u``, which root is not held to."""
    subprocess.Popen(["true"])


@pytest.mark.parametrize(
    ("act", "code", "fix"),
    [
        (open_without_end, "XT-ENV-FILES", "ulimit -n "),
        (take_without_end, "XT-OOM-HOST", "xectool diagnose environment"),
        (start_without_end, "XT-ENV-PROCESSES", "export OMP_NUM_THREADS=1"),
    ],
)
def test_a_limit_of_the_process_is_named(
    act: Callable[[], None], code: str, fix: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them was a defect of xectool, exit code 70."""
    if act is start_without_end:
        refused = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        monkeypatch.setattr(subprocess, "_fork_exec", Mock(side_effect=refused))
        monkeypatch.setattr(subprocess, "_USE_POSIX_SPAWN", False)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 256), limits[1]))
    try:
        assert boundary.run(lambda **_: act(), ["--json"]) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    (found,) = json.loads(capfd.readouterr().out)["findings"]
    assert found["code"] == code
    assert found["fix"].startswith(fix)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EROFS])
def test_a_file_system_that_fails_is_no_defect(number: int, capfd: pytest.CaptureFixture[str]) -> None:
    app = app_raising(OSError(number, os.strerror(number), "/far away/run/x.json"))
    assert boundary.run(app, ["--json"]) == 3
    (found,) = json.loads(capfd.readouterr().out)["findings"]
    assert (found["code"], found["where"]) == ("XT-DISK", "/far away/run/x.json")
    assert "'/far away/run'" in found["fix"]


def test_a_stream_that_does_not_wait_is_no_limit_of_processes(capfd: pytest.CaptureFixture[str]) -> None:
    app = app_raising(BlockingIOError(errno.EAGAIN, "write could not complete without blocking"))
    assert boundary.run(app, []) == 70


@pytest.mark.parametrize(
    ("argv", "fix"),
    [
        (["predict", "my model.pt", "--json"], "xectool predict 'my model.pt' --json"),
        (["train", "c", "--run-name=a", "--json"], "xectool train c --run-name=a --json --resume auto"),
        (["train", "c", "--run-name", "a", "--json"], "xectool train c --run-name a --json --resume auto"),
        *(
            (["train", "c", "--run-name=a", "--json", *given], f"xectool train c --run-name=a --json {' '.join(given)}")
            for given in (["--resume", "auto"], ["--resume=auto"])
        ),
    ],
)
def test_interrupt_is_130_and_says_how_to_go_on(capfd: pytest.CaptureFixture[str], argv: list[str], fix: str) -> None:
    assert boundary.run(Mock(side_effect=KeyboardInterrupt), argv) == 130
    (found,) = json.loads(capfd.readouterr().out)["findings"]
    assert (found["problem"], found["fix"]) == ("interrupted", fix)


def test_a_rank_that_its_launcher_ends_early_leaves_the_word_to_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another rank is lost in the first second, its own line to paste would come first, and would be wrong."""
    monkeypatch.setenv("XECTOOL_RANK_OUTCOMES", "somewhere")
    assert boundary.run(Mock(side_effect=KeyboardInterrupt), ["train", "c", "--set", "distributed.num_gpus=2"]) == 130
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["trian"], "did you mean"),
        (["train"], "config"),
        (["train", "c.yaml", "--max-step", "3"], "max-steps"),
        (["simulate", "x.root", "--events", "many"], "1_000_000"),
        (["ctl", "run", "clip", "-1"], "-1 stands where an argument is expected, and none of them is a number below"),
        (["ctl", "run", "clip", "-.5e3"], "-.5e3 stands where"),
        (["check-data", "-x.root"], "no such option: -x"),
    ],
)
def test_usage_mistake_is_exit_2_and_names_the_cure(xectool: Run, argv: list[str], said: str) -> None:
    outcome = xectool(*argv)
    assert outcome.code == 2  # type: ignore[attr-defined]
    assert said in " ".join(outcome.err.lower().split())  # type: ignore[attr-defined]
    document = xectool(*argv, "--json").document  # type: ignore[attr-defined]
    assert document["status"] == "error"
    assert len(document["findings"]) == 1


def test_a_file_that_begins_with_a_dash_is_given_as_a_path(
    xectool: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-x.root").write_bytes(b"no events")
    finding = xectool("check-data", "-x.root", "--json").document["findings"][0]  # type: ignore[attr-defined]
    assert finding["fix"] == "xectool check-data ./-x.root --json"


def test_the_line_to_paste_is_of_the_command_that_was_given(xectool: Run, tmp_path: Path) -> None:
    """`runs DIR` was "no such command", and all three who take a run or a process said "diagnose hang"."""

    def fix_of(*argv: str) -> str:
        return str(xectool(*argv, "--json").document["findings"][0]["fix"])  # type: ignore[attr-defined]

    assert fix_of("runs", str(tmp_path)) == f"xectool runs --root {tmp_path} --json"
    mistyped = xectool("runs", "nope", "--json").document["findings"][0]  # type: ignore[attr-defined]
    assert "--root DIR" in mistyped["problem"]
    for command in ("hang", "stacks", "status"):
        assert fix_of("diagnose", command).startswith(f"xectool diagnose {command} RUN")


@pytest.mark.parametrize(
    ("text", "count"),
    [("2000", 2000), ("20k", 20_000), ("1M", 10**6), ("1_000_000", 10**6), ("1.5k", 1500), ("1e6", 10**6)],
)
def test_counts_carry_units(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "k", "-5", "1.5", "1e-6", "20kk", "ten"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="20k"):
        parse_count(text)


HELP_PROBE = """
import sys
sys.argv = ["xectool", "--help"]
try:
    from xectool.cli.app import main
    main()
except SystemExit as done:
    assert done.code == 0, done.code
heavy = {"torch", "uproot", "mlflow", "pydantic", "matplotlib", "numpy", "scipy"} & set(sys.modules)
assert not heavy, heavy
"""


def test_help_loads_nothing_heavy() -> None:
    result = subprocess.run([sys.executable, "-c", HELP_PROBE], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for command in ("simulate", "train", "predict", "config", "runs"):
        assert command in result.stdout


def test_module_and_version() -> None:
    command = [sys.executable, "-m", "xectool", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("xectool 0.")


def test_closed_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m xectool config schema | head -c 10"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("gone", "argv", "code"), [("stderr", [], 2), ("stdout", ["--json"], 2), ("stdout", ["--help"], 0)]
)
def test_exit_code_stays_where_nobody_reads(
    gone: str, argv: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, gone, unread)
        with pytest.raises(BrokenPipeError):  # what each command meets
            os.write(writer, b"x")
        assert boundary.run(app_raising(UsageError("bad", where="w", fix="f")), argv) == code
        os.write(writer, b"x")


def test_compiler_without_a_place_is_named_and_the_line_cures_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # loaded before there is no place: half a compiler would stay for the tests that follow
    compiler = importlib.import_module("torch._inductor.runtime.cache_dir_utils")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "nope"))

    def start(**_: object) -> None:
        compiler.cache_dir()

    assert boundary.run(start, ["--json"]) == 3
    (found,) = json.loads(capfd.readouterr().out)["findings"]
    assert (found["code"], found["where"]) == ("XT-DISK", f"TORCHINDUCTOR_CACHE_DIR: {tmp_path}/file/nope")
    command = f"{found['fix']} && printf %s $TORCHINDUCTOR_CACHE_DIR"
    place = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", place)
    assert boundary.run(start, []) == 0
    Path(place).rmdir()


def test_a_working_directory_that_was_removed_is_named(
    xectool: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert xectool("explain", "units").code == 0, "the control"
    gone.rmdir()
    for command in (("train", "a.yaml"), ("check-data", "a.root"), ("explain", "units"), ("--version",)):
        outcome = xectool(*command)
        assert (outcome.code, "working directory does not exist any more" in outcome.err) == (2, True)


def test_a_document_may_be_asked_for_before_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    """``--quiet`` may stand there, and this was no option at all."""
    for line in ("--json explain nan", "--json --quiet explain nan", "--json explain -- nan"):
        assert boundary.run(app, line.split()) == errors.EXIT_OK
        assert json.loads(capfd.readouterr().out)["command"] in line
    check = "check-data --against v.root a.root b.root"
    for line, fix in (
        ("trian c.yaml", "train c.yaml --json"),
        (check, "check-data a.root b.root --against v.root --json   # "),
        (f"{check} --plots", "check-data a.root b.root --against v.root --json --plots   # "),
    ):
        assert boundary.run(app, ["--json", *line.split()]) == errors.EXIT_USER
        assert json.loads(capfd.readouterr().out)["findings"][0]["fix"].startswith(f"xectool {fix}")


def test_a_document_asked_for_before_the_command_is_no_value_of_an_option_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It stood behind the line: an option there without its value took it, and a file had its name."""
    monkeypatch.chdir(tmp_path)

    def told(line: str) -> str:
        assert boundary.run(app, line.split()) == errors.EXIT_USER
        (found,) = json.loads(capfd.readouterr().out)["findings"]
        return str(found["problem"])

    assert "'--output' requires an argument" in told("--json predict a.pt val.root --output")
    assert "'--run-name' requires an argument" in told("--json train config.yaml --run-name")
    assert "'--against' requires an argument" in told("--json check-data a.root --against")
    assert "'--set' requires an argument" in told("--json diagnose loader config.yaml --set")
    for line in ("config shwo", "confg show", "runs --root mine comprae a b"):
        assert "No such command" in told(f"--json {line}")
    for line in ("runs --root mine compare a b", "runs --root=mine compare a b", "runs compare --root mine a b"):
        assert "there is no such directory" in told(f"--json {line}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["--", "explain"], ["diagnose"], ["config"], []], ids=" ".join
)
def test_a_document_without_a_command_is_refused_in_one(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert boundary.run(app, ["--json", *words]) == errors.EXIT_USER
    assert json.loads(capfd.readouterr().out)["status"] == "error"


def test_a_missing_argument_is_filled_in_with_what_lies_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The fix was the help of the command."""

    def fix_of(line: str) -> str:
        assert boundary.run(app, line.split()) == errors.EXIT_USER
        return capfd.readouterr().err.strip().splitlines()[-1].partition("fix: ")[2]

    monkeypatch.chdir(tmp_path)
    assert fix_of("train --dry-run") == "xectool config init > config.yaml && xectool train --dry-run config.yaml"
    assert [fix_of(line) for line in ("watch", "predict")] == ["xectool watch --help", "xectool predict --help"]
    record = tmp_path / "artifacts/my run/rec/a0001"
    record.mkdir(parents=True)
    (tmp_path / "mine.yaml").touch()
    assert fix_of("diagnose loader") == "xectool diagnose loader mine.yaml"
    assert fix_of("watch") == "xectool watch 'artifacts/my run'"
    assert fix_of("predict") == "xectool predict --help"
    (tmp_path / "artifacts/my run/checkpoint_last.pt").touch()
    assert fix_of("predict") == "xectool predict 'artifacts/my run/checkpoint_last.pt'"
