"""What people expect of any command line: completion, NO_COLOR, --quiet, --verbose, a schema for editors."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner
from xectool.cli import boundary, progress
from xectool.cli.app import app, with_named_commands
from xectool.errors import UsageError

PROGRAM = Path(sys.executable).with_name("xectool")


def completed(words: str) -> set[str]:
    """Return what bash is offered for a line, as its completion script asks for it."""
    environment = {
        **os.environ,
        "_XECTOOL_COMPLETE": "complete_bash",
        "COMP_WORDS": f"xectool {words}",
        "COMP_CWORD": str(len(words.split(" "))),
    }
    result = subprocess.run([str(PROGRAM)], env=environment, capture_output=True, text=True, check=False)
    return set(result.stdout.split())


def leaves(command: Any) -> list[Any]:
    """Return the commands of a group, and those of the groups in it."""
    inside = getattr(command, "commands", None)
    return [command] if inside is None else [leaf for each in inside.values() for leaf in leaves(each)]


def test_a_shell_completes_commands_and_options() -> None:
    assert {"diagnose"} == completed("diag")
    assert {"run", "replay", "reproducibility"} <= completed("diagnose r")
    assert "--max-steps" in completed("train c.yaml --m")


@pytest.mark.parametrize("line", ["", "train", "diagnose", "diagnose replay", "runs", "config check", "export"])
def test_a_start_makes_the_parameters_of_the_named_command_alone_and_helps_as_with_all(line: str) -> None:
    words = line.split()
    part = with_named_commands(app, words)
    texts = [CliRunner().invoke(each, [*words, "--help"]).output for each in (app, part)]
    assert texts[0] == texts[1]
    assert "Usage" in texts[0]
    commands = leaves(typer.main.get_command(part))
    assert len(commands) > 30
    assert {command.name for command in commands if command.params} <= {*words}


def test_a_help_that_is_written_out_stays_where_the_command_is_not_named() -> None:
    made = typer.Typer()

    @made.command(help="As it is written.")
    def first() -> None:
        """Return what is in the docstring."""

    @made.command()
    def second() -> None:
        """Say nothing."""

    whole, part = (CliRunner().invoke(each, ["--help"]).output for each in (made, with_named_commands(made, [])))
    assert whole == part
    assert "As it is written." in part
    called = CliRunner().invoke(with_named_commands(made, []), ["first"]).exception
    assert "not among the words" in str(called)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_each_shell_is_printed(shell: str) -> None:
    environment = {**os.environ, "_XECTOOL_COMPLETE": f"source_{shell}"}
    result = subprocess.run([str(PROGRAM)], env=environment, capture_output=True, text=True, check=False)
    assert "xectool" in result.stdout


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    ours = logging.getLogger("xectool")
    handlers, level = list(ours.handlers), ours.level
    yield
    ours.handlers[:] = handlers
    ours.setLevel(level)


def failing(error: Exception) -> typer.Typer:
    made = typer.Typer()

    @made.command()
    def fail() -> None:
        with progress.watcher(quiet=False) as shown:
            assert shown is not None
            shown.started({"run": "a fact"})
            shown.epoch_done(1, {"val/loss": 0.5})
            shown.message("a message")
        logging.getLogger("xectool.test").info("a log line")
        raise error from OSError("the disk is gone")

    return made


@pytest.mark.parametrize(
    ("options", "shown", "hidden"),
    [
        ([], ["a fact", "epoch 1", "a message", "it broke"], ["a log line", "the disk is gone"]),
        (["--quiet"], ["a message", "it broke"], ["a fact", "epoch 1", "a log line", "the disk is gone"]),
        (["--verbose"], ["a fact", "a log line", "it broke", "OSError: the disk is gone"], []),
        (["--verbose", "--quiet"], ["it broke"], ["a fact", "a log line"]),
    ],
)
def test_quiet_and_verbose_say_less_and_more(
    options: list[str], shown: list[str], hidden: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert boundary.run(failing(UsageError("it broke")), options) == 2
    said = capfd.readouterr().err
    assert [part for part in shown if part not in said] == []
    assert [part for part in hidden if part in said] == []


@pytest.mark.parametrize("argv", [["--quiet", "explain", "nan"], ["explain", "nan", "--quiet"]])
def test_quiet_may_stand_anywhere_and_results_stay(argv: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert boundary.run(app, argv) == 0
    assert "nan:" in capfd.readouterr().err


def test_what_follows_two_dashes_is_not_ours(capfd: pytest.CaptureFixture[str]) -> None:
    assert boundary.run(app, ["explain", "--", "--quiet"]) == 2
    assert "nothing is known about '--quiet'" in capfd.readouterr().err


@pytest.mark.parametrize("argv", [["runs", "--root", "."], ["explain", "qwertz"], ["config", "check", "no.yaml"]])
def test_no_colour_means_no_escape_codes_even_on_a_terminal(argv: list[str], tmp_path: Path) -> None:
    words = " ".join([str(PROGRAM), *argv])
    command = ["script", "-qec", words, "/dev/null"]
    seen = {
        name: subprocess.run(
            command,
            env={**os.environ, "TERM": "xterm-256color", **extra},
            cwd=tmp_path,
            capture_output=True,
            check=False,
        ).stdout
        for name, extra in (("coloured", {}), ("plain", {"NO_COLOR": "1"}))
    }
    assert b"\x1b[" in seen["coloured"]
    assert b"\x1b[" not in seen["plain"]


def test_the_schema_refuses_what_the_loader_refuses(capfd: pytest.CaptureFixture[str]) -> None:
    assert boundary.run(app, ["config", "schema"]) == 0
    schema = json.loads(capfd.readouterr().out)
    kinds = {root["$ref"].rpartition("/")[2] for root in schema["oneOf"]}
    assert kinds == {"regressor", "mae", "inpainter"}
    assert all(schema["$defs"][kind]["additionalProperties"] is False for kind in kinds)
