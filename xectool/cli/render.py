"""What the user sees: one JSON document on stdout under ``--json``, everything else on stderr."""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from itertools import compress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from xectool.cli.streams import steady
from xectool.cli.tables import FittingTable
from xectool.cli.wrapping import FILE_WIDTH, Labelled, wrapped
from xectool.errors import XecError
from xectool.findings import Finding, Severity, findings_of, in_lines, to_paste

if TYPE_CHECKING:
    from rich.console import Console, Group

IN_ASCII = str.maketrans(
    {"─": "-", "±": "+-", "×": "x", "…": "...", "–": "-"} | dict(zip("▁▂▃▄▅▆▇█", ".:-=+*#@", strict=True))
)
STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
BOX_WIDTH = 80
REMARK = "   # "


class Verbosity(Enum):
    """How much beside the outcome is shown on stderr."""

    QUIET = "results and problems only"
    NORMAL = "progress as well"
    VERBOSE = "also log lines of every level and what an error came from"


VERBOSITY: ContextVar[Verbosity] = ContextVar("verbosity", default=Verbosity.NORMAL)


class AlreadyShown(Exception):
    """Ends a command whose outcome is on the screen already.

    Args:
        exit_code: Exit code of the process.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def keep_readable(*streams: object) -> None:
    """Let streams that cannot write lines, bars and signs (a log of ASCII) take plain characters in their place."""
    codecs.register_error("xectool", _in_ascii)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="xectool")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)  # these streams are only written to
    text = error.object[error.start : error.end].translate(IN_ASCII)
    return text.encode("ascii", "backslashreplace").decode(), error.end


def console(stream: TextIO | None = None) -> Console:
    """Return a console on stderr or ``stream``; plain where that is no terminal or under ``NO_COLOR``."""
    from rich.console import Console

    file = cast(IO[str], steady(stream or sys.stderr))
    # rich itself only drops colours under NO_COLOR; bold text and moving bars are escape codes as well
    force_plain = False if os.environ.get("NO_COLOR") else None
    # a table in a file or a log has all the room it needs
    width = None if file.isatty() or "COLUMNS" in os.environ else FILE_WIDTH
    return Console(  # emoji: it would make a train of `FILE:train:17`, also where markup is off
        file=file,
        stderr=True,
        highlight=False,
        soft_wrap=True,
        emoji=False,
        force_terminal=force_plain,
        width=width,
    )


def plain(value: Any) -> Any:
    """Return ``value`` as JSON types: dataclasses become objects, NaN and infinity become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value


@dataclass(frozen=True)
class Output:
    """Where a command's outcome goes.

    Attributes:
        command: Name of the command, for the JSON document.
        as_json: Whether the outcome is one JSON document on stdout instead of text on stderr.
    """

    command: str
    as_json: bool

    def result(
        self,
        result: Any,
        *,
        findings: Sequence[Finding] = (),
        bad: bool = False,
        human: Callable[[Console], None] | None = None,
        next_line: str = "",
    ) -> None:
        """Show the outcome of a command that ran.

        Args:
            result: Dataclass or mapping with the keys that the contract lists.
            findings: What was found on the way.
            bad: Whether the answer is "bad" (exit code 1).
            human: Draws the text form.
            next_line: What it ends with, which a finding need not repeat.
        """
        if self.as_json:
            self._document("bad" if bad else "ok", plain(result), findings)
            return
        screen = console()
        if human is not None:
            human(screen)
        show_findings(screen, findings, next_line)

    def error(self, error: XecError, result: Any = None, findings: Sequence[Finding] = ()) -> None:
        """Show a failure the user can act on; an error may carry one finding or several, and others follow it."""
        found = (*findings_of(error), *findings)
        if self.as_json:
            self._document("error", plain(result or {}), found)
        else:
            screen = console()
            show_findings(screen, found)
            if VERBOSITY.get() is Verbosity.VERBOSE:
                _show_causes(screen, error)

    def interrupted(self, result: Any = None, fix: str = "", findings: Sequence[Finding] = ()) -> None:
        """Say that the user stopped the command.

        Args:
            result: What the command reached, if anything.
            fix: How to go on from there.
            findings: What was found up to there.
        """
        error = XecError("interrupted", where=f"xectool {self.command}", fix=fix, code="XT-INTERRUPTED")
        self.error(error, result, findings)

    def defect(self, error: Exception, kept: str) -> None:
        """Say that xectool itself failed, and where the traceback is."""
        self.error(
            XecError(
                f"xectool itself failed: {type(error).__name__}: {error}",
                where=kept,
                fix="please report it together with that traceback; your data and checkpoints are untouched",
                code="XT-DEFECT",
            )
        )

    def _document(self, status: str, result: Any, findings: Sequence[Finding]) -> None:
        document = {
            "command": self.command,
            "status": status,
            "result": result,
            "findings": [plain(found.as_dict()) for found in findings],
        }
        stdout = steady(sys.stdout)
        stdout.write(json.dumps(document, allow_nan=False) + "\n")
        stdout.flush()


def _show_causes(screen: Console, error: BaseException) -> None:
    cause = error.__cause__ or error.__context__
    while cause is not None:
        screen.print(f"  came from: {type(cause).__name__}: {cause}", markup=False)
        cause = cause.__cause__ or cause.__context__


def show_findings(screen: Console, findings: Iterable[Finding], next_line: str = "") -> None:
    """Print findings, one block each: what, where, evidence, fix; a long one that was printed already is only named."""
    from rich.markup import escape

    lines = {next_line.partition(REMARK)[0]: (next_line, "the line after Next")}
    for found in findings:
        line, mark, remark = found.fix.partition(REMARK)
        above, said = lines.setdefault(line, ("", ""))
        if above and len(line) > BOX_WIDTH:
            said += f"{mark}{remark}" if found.fix != above else ""
            found = replace(found, fix=said)
        elif not above:
            lines[line] = found.fix, f"the line of {found.code} above, of {found.where}"
        head, *below = in_lines(found)
        severity, code, problem = head.split(" ", 2)
        problem = wrapped(problem, screen.width, 2, len(severity) + len(code) + 2)
        screen.print(f"[{STYLES[found.severity]}]{severity}[/] [bold]{escape(code[:-1])}[/]: {escape(problem)}")
        for line in below:
            label, _, text = line.partition(":")
            said = wrapped(line, screen.width, 4, 0) if label == "  evidence" else line
            screen.print(f"{label}:[green]{escape(text)}[/]" if label == "  fix" else escape(said))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> FittingTable:
    """Return a table of plain values: numbers with five digits, "-" for None; columns without any are left out."""
    cells = [[_cell(value) for value in row] for row in rows]
    used = [any(row[number] for row in cells) for number in range(len(columns))]
    return FittingTable(title, list(compress(columns, used)), [list(compress(row, used)) for row in cells])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def verdict_box(verdict: str, why: Sequence[str], next_line: str, good: bool) -> Group:
    """Return the box that every diagnosis ends with: Verdict, Why, Next.

    It has no sides, so the line after Next can be selected and pasted whole, whatever its length.

    Args:
        verdict: The answer in one line.
        why: What it rests on, most telling first.
        next_line: The command or setting to go on with; empty where nothing is to be done.
        good: Whether the answer is "nothing is wrong".
    """
    from rich.console import Group
    from rich.text import Text

    edge = Text("─" * BOX_WIDTH, style="green" if good else "red")
    rows = [Labelled(f"{'Verdict':<8} ", verdict, "bold green" if good else "bold red")]
    rows += [Labelled(f"{'' if number else 'Why':<8} ", line, "") for number, line in enumerate(why)]
    following = to_paste("", next_line or "nothing to do").removeprefix(" ")
    return Group(edge, *rows, Text.assemble((f"{'Next':<8} ", "bold"), (following, "green")), edge)
