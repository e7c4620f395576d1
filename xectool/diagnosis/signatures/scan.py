"""Finds the signatures in one file: each process of it is followed by itself, a chain of exceptions gives one hit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from xectool.diagnosis.signatures.known_ranks import found_in, possible_in
from xectool.diagnosis.signatures.lines import read_lines
from xectool.diagnosis.signatures.origin import origin_of, rank_in_name, seconds_of
from xectool.diagnosis.signatures.signature import Role, Signature
from xectool.diagnosis.signatures.tracebacks import Follower, Part, Raised

UNKNOWN: Final = "XT-UNKNOWN"
KEPT: Final = 3  # hits of one code and process that are kept; the rest is counted
QUOTED: Final = 300  # characters of a line that are quoted
_BLOCK_LINES: Final = 256
_TERMINAL: Final = 50  # lines that may follow what ended a process
_OURS: Final = re.compile(r"^(?P<level>error|warning) (?P<code>(?:CFG|XT|DAT|K|X|G)-[A-Z0-9-]+): ")
_SAID: Final = re.compile(r"^\s*(?P<key>where|evidence|fix): (?P<text>\S.*)$")  # the lines below one of ours
_RAISED: Final = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?_?[A-Z]\w*(?:Error|Exception)(?::|$)")
_ABORTED: Final = "terminate called after throwing"
_UNTIL_WHAT: Final = 10  # lines of others that may stand between an abort and its message
_WHAT: Final = re.compile(r"^\s*what\(\):")
_DIED: Final = re.compile(
    r"Fatal Python error|^terminate called|Segmentation fault"
    r"|\bAborted\b.*core dumped|Illegal instruction|command not found|Bus error"
)
# One of these stands in every line that the two patterns around find.
_TROUBLE: Final = (
    "rror", "ERR", "atal", "FATAL", "CRITICAL", "terminate", "egmentation", "Aborted", "Illegal", "not found", "E0",
    "E1",
)  # fmt: skip
_LEVEL: Final = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL)\b|^\W*(?:[\w.-]+: )*(?:[Ee]rror|fatal)(?:\[\w+\])?: |^E\d{4} \d\d:"
)
_NO_ERROR: Final = re.compile(r"\b(?:0|no|without) errors?\b|\bERROR *[:=] *(?:0|none)\b", re.IGNORECASE)
_ENDS: Final = ("SystemExit", "GeneratorExit")
_INNER_FIRST: Final = "XT-WORKER-ERROR"


@dataclass(frozen=True)
class Hit:
    """One signature found, or one unknown error.

    Attributes:
        code: Finding code.
        role: What it is to the faults around it.
        confidence: From 0 to 1.
        path: File.
        number: Line.
        rank: Process that wrote it, -1 where unknown.
        time: Seconds since the start of a year, None where no line so far carried a time.
        text: The line.
        original: Exception that started the chain, where that is another line.
        fix: Line to paste that stands below it, where the text is one of ours.
    """

    code: str
    role: Role
    confidence: float
    path: Path
    number: int
    rank: int
    time: float | None
    text: str
    original: str = ""
    fix: str = ""

    @property
    def where(self) -> str:
        """The place as ``file:line``."""
        return f"{self.path}:{self.number}"

    @property
    def said(self) -> str:
        """The text without the level and code that begin one of ours."""
        return _OURS.sub("", self.text)


@dataclass
class Scan:
    """What a file holds.

    Attributes:
        path: The file.
        lines: Number of its last line with text.
        hits: What was found, in the order of the text, at most :data:`KEPT` a code and process.
        counts: How often each code was found.
    """

    path: Path
    lines: int = 0
    hits: list[Hit] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass
class _Process:
    rank: int
    follower: Follower = field(default_factory=Follower)
    found: list[Hit] = field(default_factory=list)
    time: float | None = None
    last: int = 0
    ours: Hit | None = None  # a finding of ours that the lines just before made
    aborted: list[Hit] = field(default_factory=list)  # exceptions of C++ whose message is still to come


class _Scanner:
    def __init__(self, path: Path) -> None:
        self.scan = Scan(path)
        self.processes: dict[int, _Process] = {}
        self.kept: Counter[tuple[str, int, Role]] = Counter()
        self.rank_of_file = rank_in_name(path)
        self.possible: tuple[Signature, ...] = ()
        self.looks_wrong = True

    def take_block(self, block: Sequence[tuple[int, str]]) -> None:
        lines = [line for _, line in block]
        text = "\n".join(lines)
        self.possible = possible_in(lines)
        self.looks_wrong = any(word in text for word in _TROUBLE)
        for number, line in block:
            self.take(number, line)

    def take(self, number: int, line: str) -> None:
        origin = origin_of(line, self.rank_of_file)
        process = self.processes.setdefault(origin.rank, _Process(origin.rank))
        process.time = seconds_of(line) or process.time
        process.last = self.scan.lines = number
        if process.ours and self._below_ours(process, process.ours, origin.text):
            return
        part = process.follower.feed(number, origin.text)
        if part is Part.END:
            self.close(process)
            part = process.follower.feed(number, origin.text)
        if part is Part.FRAME:
            return  # source code quotes the messages it may raise
        frames = frozenset(process.follower.frames) if part is Part.EXCEPTION else frozenset()
        hits = self._hits(process, number, origin.text, frames)
        if part is Part.OUTSIDE and _RAISED.match(origin.text):
            process.follower.begin(number, origin.text)
            process.found = hits
        elif part is Part.OUTSIDE:
            aborts = process.aborted = [hit for hit in process.aborted if number - hit.number <= _UNTIL_WHAT]
            if aborts and _WHAT.match(origin.text):
                self._say_what(aborts.pop(0), origin.text, hits)
                return
            for hit in hits or self._unnamed(process, number, origin.text):
                if self._keep(hit) and _OURS.match(hit.text):
                    process.ours = hit
                if hit.code == UNKNOWN and hit.text.startswith(_ABORTED):
                    process.aborted.append(hit)
        else:
            process.found += hits

    def _say_what(self, abort: Hit, text: str, hits: Sequence[Hit]) -> None:
        """Put the message of an exception of C++ with the line that ended the process by it, or in its place."""
        if not hits:
            told = replace(abort, text=f"{abort.text} {text.strip()}"[: 4 * QUOTED])
            self.scan.hits = [told if hit is abort else hit for hit in self.scan.hits]
            return
        self.scan.hits = [hit for hit in self.scan.hits if hit is not abort]
        self.scan.counts[abort.code] -= 1
        self.kept[abort.code, abort.rank, abort.role] -= 1
        for hit in hits:
            self._keep(replace(hit, role=Role.CAUSE) if hit.role is Role.DEGRADED else hit)

    def _below_ours(self, process: _Process, above: Hit, text: str) -> bool:
        """Return whether a line belongs to the finding of ours above it: its fix is kept, its evidence looked at."""
        said = _SAID.match(text)
        process.ours = above if said else None
        if said is None:
            return False
        if said["key"] == "fix" and not said["text"].endswith("\\"):  # half a command is none
            process.ours = replace(above, fix=said["text"])
            self.scan.hits[self.scan.hits.index(above)] = process.ours
        if said["key"] == "evidence":  # it may quote an exception of another
            for hit in self._hits(process, process.last, said["text"], frozenset()):
                if hit.code != above.code:
                    self._keep(hit)
        return True

    def close(self, process: _Process) -> None:
        """Turn the chain of exceptions a process is in into one hit."""
        found, process.found = process.found, []
        chain = process.follower.close()
        if chain and not chain[0].text.startswith(_ENDS):
            self._keep(self._of_chain(process, chain, found))

    def finish(self) -> Scan:
        for process in self.processes.values():
            self.close(process)
        ends = {process.rank: process.last for process in self.processes.values()}
        lost = {hit.rank: hit.number for hit in reversed(self.scan.hits) if hit.role is Role.CONSEQUENCE}
        self.scan.hits = [
            replace(hit, role=Role.VICTIM if lost.get(hit.rank, hit.number) < hit.number else Role.CAUSE)
            if hit.role is Role.UNKNOWN and ends[hit.rank] - hit.number < _TERMINAL
            else hit
            for hit in self.scan.hits
        ]
        return self.scan

    def _hits(self, process: _Process, number: int, text: str, frames: frozenset[str]) -> list[Hit]:
        ours = _OURS.match(text)
        if ours is not None:
            if ours["level"] == "warning" and ours["code"].startswith("CFG-"):
                return []  # advice on a configuration that was then run: no fault of the run
            role = Role.CAUSE if ours["level"] == "error" else Role.DEGRADED
            return [self._hit(process, number, text, ours["code"], role, 0.95)]
        return [
            self._hit(process, number, text, found.code, found.role, found.confidence)
            for found in found_in(text, frames, self.possible)
        ]

    def _hit(self, process: _Process, number: int, text: str, code: str, role: Role, confidence: float) -> Hit:
        return Hit(code, role, confidence, self.scan.path, number, process.rank, process.time, text[: 4 * QUOTED])

    def _unnamed(self, process: _Process, number: int, text: str) -> list[Hit]:
        if not self.looks_wrong:
            return []
        if _DIED.search(text):
            return [self._hit(process, number, text, UNKNOWN, Role.UNKNOWN, 0.3)]
        if _LEVEL.search(text) and not _NO_ERROR.search(text):
            return [self._hit(process, number, text, UNKNOWN, Role.DEGRADED, 0.2)]
        return []

    def _of_chain(self, process: _Process, chain: Sequence[Raised], found: Sequence[Hit]) -> Hit:
        first = next((raised for raised in chain if raised.inner), chain[0])
        started = {raised.number: order for order, raised in enumerate(sorted(chain, key=lambda one: not one.inner))}
        if not found:
            return self._hit(process, first.number, first.text, UNKNOWN, Role.UNKNOWN, 0.3)

        def nearness(hit: Hit) -> tuple[int, int, int]:
            own = max((number for number in started if number <= hit.number), default=hit.number)
            return max(hit.role, Role.DEGRADED), started.get(own, 0), hit.number

        best = min(found, key=nearness)
        if best.code == _INNER_FIRST:
            return self._hit(process, first.number, first.text, best.code, Role.CAUSE, best.confidence)
        role = Role.CAUSE if best.role is Role.DEGRADED else best.role
        original = first.text[:QUOTED] if first.number != best.number and first.text != best.text else ""
        said = " ".join(dict.fromkeys(hit.text for hit in found if hit.code == best.code and hit.number >= best.number))
        return replace(best, role=role, text=said[: 4 * QUOTED], original=original)

    def _keep(self, hit: Hit) -> bool:
        self.scan.counts[hit.code] += 1
        self.kept[hit.code, hit.rank, hit.role] += 1
        kept = self.kept[hit.code, hit.rank, hit.role] <= KEPT
        if kept:
            self.scan.hits.append(hit)
        return kept


def scan_file(path: Path) -> Scan:
    """Return what a log file holds, read once, in bounded memory.

    Raises:
        UsageError: The file cannot be read.
    """
    scanner = _Scanner(path)
    lines = read_lines(path)
    while block := list(islice(lines, _BLOCK_LINES)):
        scanner.take_block(block)
    return scanner.finish()
