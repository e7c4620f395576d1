"""The one error boundary: every failure becomes one clear message and the documented exit code."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TextIO, cast

from typer.exceptions import Abort, TyperException

from xectool.cli import render, signals
from xectool.cli.other_sample import with_the_other_sample
from xectool.cli.streams import Steady, steadied
from xectool.cli.unforeseen import failure_of_machine
from xectool.errors import (
    EXIT_DEFECT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USER,
    EXIT_WORLD,
    DiskError,
    Misnamed,
    UsageError,
    XecError,
    nearest,
)
from xectool.findings import findings_of


def _is_later_rank() -> bool:
    """Return whether another rank of torchrun, whose ranks share one stdout, speaks for this one."""
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    return rank.isdigit() and world.isdigit() and 0 < int(rank) < int(world)


def run(app: Callable[..., Any], argv: Sequence[str], first: Callable[[], None] = lambda: None) -> int:
    """Run the application and return the exit code of the process.

    Args:
        app: The Typer application.
        argv: Arguments without the program name.
        first: Called before the application.
    """
    render.keep_readable(sys.stdout, sys.stderr)
    argv = _json_last(_take_verbosity(argv))
    output = render.Output(command=_command_of(app, argv), as_json="--json" in argv and not _is_later_rank())
    with steadied() as (stdout, stderr):
        return _delivered(_outcome(app, argv, first, output), output, stdout, stderr)


def _delivered(code: int, output: render.Output, stdout: Steady, stderr: Steady) -> int:
    """Return the exit code, which is no good one where the answer found no room: the other stream has it, if it can.

    A training keeps its own: what it is asked for is in its directory, and its log is no part of that.
    """
    lost = stdout.settle(), stderr.settle()
    # beside a document stderr has remarks only, and a launcher answers for its ranks
    counts = lost[0] or (lost[1] and not output.as_json)
    if not counts or _is_later_rank() or _is_launched():
        return code
    if not lost[1]:
        _pass_on("stdout", lost[0], stdout.error, stderr)
    elif not lost[0] and not stdout.used:  # what was piped into a file or a program stays as it is
        _pass_on("stderr", lost[1], stderr.error, stdout)
    if output.command == "train" and not output.as_json:
        return code
    return code if code in (EXIT_DEFECT, EXIT_INTERRUPTED) else EXIT_WORLD


def _is_launched() -> bool:
    """Return whether this is a rank of ``xectool train --nproc``, whose launcher answers for it."""
    return "XECTOOL_RANK_OUTCOMES" in os.environ


def _pass_on(name: str, lost: str, why: OSError | None, other: Steady) -> None:
    """Say on the other stream that the answer could not be written, and what it was."""
    failure = DiskError(
        f"the answer cannot be written: {why.strerror if why else 'no room'}",
        where=name,
        fix="df -h   # free space; what found no room follows",
    )
    render.show_findings(render.console(cast(TextIO, other)), findings_of(failure))
    other.write(lost)
    other.settle()


def _outcome(app: Callable[..., Any], argv: Sequence[str], first: Callable[[], None], output: render.Output) -> int:
    """Run the application, say how it failed if it did, and return the exit code."""
    try:
        _require_working_directory()
        first()
        code = app(args=with_the_other_sample(argv), prog_name="xectool", standalone_mode=False)
    except XecError as error:
        output.error(_in_full(error, argv))
        return error.exit_code
    except render.AlreadyShown as shown:
        return shown.exit_code
    except TyperException as error:
        output.error(_mistyped(error, app, argv))
        return EXIT_USER
    except (KeyboardInterrupt, Abort):
        return _interrupted(output, argv)
    except Exception as error:  # noqa: BLE001  the boundary is where the unforeseen ends
        known = failure_of_machine(error)
        if known is not None:
            output.error(known)
            return known.exit_code
        output.defect(error, _keep_traceback())
        return EXIT_DEFECT
    if code == EXIT_INTERRUPTED:
        return _interrupted(output, argv)
    return int(code or EXIT_OK)


def _in_full(error: XecError, argv: Sequence[str]) -> XecError:
    """Return a failure with the whole line to paste, where a run or checkpoint was misnamed or much can be mended."""
    if isinstance(error, Misnamed):
        from xectool.engine.at_hand import renamed

        error.fix = renamed(error, argv)
    elif with_line := getattr(error, "with_line", None):
        return cast(XecError, with_line(argv))
    return error


def _mistyped(error: TyperException, app: Callable[..., Any], argv: Sequence[str]) -> UsageError:
    """Return what to say of a command line that cannot be taken."""
    from xectool.engine.at_hand import completed  # what reads records takes a tenth of a second to import

    wanted = getattr(getattr(error, "param", None), "metavar", None)
    problem, help_line = error.format_message(), f"xectool {_helping(app, argv)} --help".replace("  ", " ")
    fix = completed(wanted or "", argv) or _respelt(error, argv) or _with_equals(error, argv) or help_line
    if argv[:1] == ["runs"] and argv[1:] and "No such command" in problem:
        problem, fix = _of_runs(problem, argv, fix)
    if option := str(getattr(error, "option_name", "")):  # one that is not known, or that lacks its value
        word = next((word for word in argv if word.startswith(option)), option)
        if re.fullmatch(r"-[.\d]\S*", word):
            problem = f"{word} stands where an argument is expected, and none of them is a number below zero"
        elif os.path.exists(word):
            problem = f"{word} is taken for an option, as it begins with -: {problem}"
            fix = shlex.join(["xectool", *(f"./{known}" if known == word else known for known in argv)])
    return UsageError(problem or "no command is given", where="command line", fix=fix)


def _respelt(error: TyperException, argv: Sequence[str]) -> str:
    """Return the command line with the command or option that was most likely meant; nothing where none is near."""
    command = re.match(r"No such command '([^']+)'\. Did you mean '([^']+)'", error.format_message())
    wrong = command[1] if command else str(getattr(error, "option_name", ""))
    # without the dashes, which are alike in all of them
    known = {name.lstrip("-"): name for name in getattr(error, "possibilities", None) or ()}
    near = [command[2]] if command else [known[name] for name in nearest(wrong.lstrip("-"), known, 1)]
    words = [word.partition("=") for word in argv]
    at = next((at for at, word in enumerate(words) if word[0] == wrong), None)
    if not near or at is None:
        return ""
    return shlex.join(["xectool", *argv[:at], "".join((near[0], *words[at][1:])), *argv[at + 1 :]])


def _with_equals(error: TyperException, argv: Sequence[str]) -> str:
    """Return the command line with KEY=VALUE where values stand apart from their keys; nothing where more is wrong."""
    words, moved = list(argv), list[str]()
    for at in reversed(range(1, len(words) - 1)):
        is_key = words[at - 1] == "--set" and re.fullmatch(r"[a-z]\w*(\.\w+)*[:=]?", words[at])
        end = at + 2 + (words[at + 1] == "=")
        if is_key and end <= len(words) and not words[end - 1].startswith("--"):
            moved = words[at + 1 : end] + moved
            words[at:end] = [f"{words[at].rstrip(':=')}={words[end - 1].lstrip('=')}"]
    below_zero = str(getattr(error, "option_name", ""))  # a number is taken for an option
    is_all = error.format_message().endswith(f"({' '.join(moved)})")
    is_number = bool(below_zero) and any(word.startswith(below_zero) for word in moved)
    return shlex.join(["xectool", *words]) if moved and (is_all or is_number) else ""


def _of_runs(problem: str, argv: Sequence[str], fix: str) -> tuple[str, str]:
    """Return problem and fix of a word after ``runs`` that is no command of it: most mean a directory."""
    if os.path.isdir(argv[1]):
        return "the directory of the runs is an option", shlex.join(["xectool", "runs", "--root", *argv[1:]])
    return f"{problem} Other runs than those in ./artifacts: --root DIR", fix


def _require_working_directory() -> None:
    """Refuse a working directory that was removed: libraries stumble over it far from here, each in its own words.

    Raises:
        UsageError: It does not exist any more.
    """
    try:
        os.getcwd()
    except FileNotFoundError as gone:
        raise UsageError(
            "the working directory does not exist any more: it was removed, or made anew, after this shell entered it",
            where=os.environ.get("PWD", "working directory"),
            fix='cd "$PWD"   # where it was made anew; else another one: cd ~',
        ) from gone


def _take_verbosity(argv: Sequence[str]) -> list[str]:
    """Take ``--quiet`` and ``--verbose`` out of the arguments, wherever they stand, and act on them."""
    known = {"--quiet": render.Verbosity.QUIET, "--verbose": render.Verbosity.VERBOSE}
    end = list(argv).index("--") if "--" in argv else len(argv)
    wanted = [known[word] for word in argv[:end] if word in known]
    render.VERBOSITY.set(wanted[-1] if wanted else render.Verbosity.NORMAL)
    if render.VERBOSITY.get() is render.Verbosity.VERBOSE:
        shown = logging.StreamHandler(sys.stderr)
        shown.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
        logging.getLogger("xectool").addHandler(shown)
        logging.getLogger("xectool").setLevel(logging.INFO)
    return [word for word in argv[:end] if word not in known] + list(argv[end:])


def _json_last(argv: list[str]) -> list[str]:
    """Return the arguments with a ``--json`` that stands before the command behind it, as one of that.

    It stands before an option that is last: where that lacks its value, it would be taken for it.
    """
    if argv[:1] != ["--json"] or len(argv) < 2:
        return argv
    end = argv.index("--") if "--" in argv else len(argv)
    at = end - 1 if end > 1 and argv[end - 1].startswith("--") else end
    return [*argv[1:at], "--json", *argv[at:]]


def _interrupted(output: render.Output, argv: Sequence[str]) -> int:
    signals.ignore()
    if _is_launched():  # in its first second; the launcher ends its ranks where one is lost, and says which
        return EXIT_INTERRUPTED
    given = {word.partition("=")[0] for word in argv} & {"--run-name", "--resume"}
    begun = ["--resume", "auto"] if argv[:1] == ["train"] and given == {"--run-name"} else []
    output.interrupted(fix=shlex.join(["xectool", *argv, *begun]))
    return EXIT_INTERRUPTED


def _command_of(app: Callable[..., Any], argv: Sequence[str]) -> str:
    """Return the name in the JSON document: that of ``diagnose`` has two words, as each diagnosis is a command."""
    words = [word for word in argv if not word.startswith("-")]
    if words[:1] == ["diagnose"]:
        groups = {group.name: group.typer_instance for group in getattr(app, "registered_groups", ())}
        known = {command.name for command in groups["diagnose"].registered_commands}
        return " ".join(words[: 2 if known.intersection(words[1:2]) else 1])
    return words[0] if words else ""


def _helping(app: Callable[..., Any], argv: Sequence[str]) -> str:
    """Return the command whose help lists what may be written: none for a word that is no command."""
    groups, commands = getattr(app, "registered_groups", ()), getattr(app, "registered_commands", ())
    word = _command_of(app, argv)
    return word if word.partition(" ")[0] in {item.name for item in (*groups, *commands)} else ""


def _keep_traceback() -> str:
    """Write the traceback to a file and return its path, or the traceback itself where no file can be written."""
    text = f"argv: {sys.argv!r}\n{traceback.format_exc()}"
    try:
        handle, name = tempfile.mkstemp(prefix="xectool-defect-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        return f"no file ({error.strerror}), so here it is: {text}"
    return name
