"""Every failure a user can act on, with its exit code.

::

    XecError                    exit  meaning
    ├── UserError                 2   the user can fix it
    │   ├── UsageError                a command or option is wrong
    │   │   └── MisnamedRun           no run is where one was named
    │   ├── ConfigError               a configuration file or key is wrong (may carry several findings)
    │   ├── DataFileError             a data file or branch is missing, unreadable or of another shape
    │   │   └── MisnamedInput             it is there and is to be named in another way
    │   └── CheckpointError           a checkpoint is missing, damaged or does not fit
    │       └── MisnamedCheckpoint        no checkpoint is where one was named
    ├── BadResult                 1   the command ran and the answer is "bad"
    │   ├── DataUnusable              the data cannot be trained on
    │   ├── RunDiverged               a guard stopped the training
    │   └── OutputsDiffer             an export or a repeated run does not agree
    └── WorldError                3   the machine failed
        ├── DeviceError               a device is absent or broke
        ├── DiskError                 a disk is full or refuses to write
        ├── OutOfMemory               host or device memory ran out
        └── TrackerError              a tracking server or database failed

Exit 130 is an interrupt, 70 a defect of xectool (the traceback is kept).
"""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Iterable, Mapping
from types import MappingProxyType

EXIT_OK = 0
EXIT_BAD_RESULT = 1
EXIT_USER = 2
EXIT_WORLD = 3
EXIT_DEFECT = 70
EXIT_INTERRUPTED = 130


class XecError(Exception):
    """Abstract root: what happened, where, and a line to paste that fixes it.

    Args:
        problem: One sentence that says what is wrong, with the offending value.
        where: File and line, configuration key, branch, event, or another place to look at.
        fix: What to do, with a line to paste where there is one.
        code: Stable identifier, as shown in ``findings[].code`` of the JSON output.
    """

    exit_code = EXIT_DEFECT
    default_code = "XT-ERROR"

    def __init__(self, problem: str, *, where: str = "", fix: str = "", code: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.fix = fix
        self.code = code or self.default_code

    def __str__(self) -> str:
        parts = [self.problem]
        if self.where:
            parts.append(f"where: {self.where}")
        if self.fix:
            parts.append(f"fix: {self.fix}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        # Loader workers send errors to the parent by pickle; keyword-only arguments need help.
        return _rebuild, (type(self), self.problem, self.where, self.fix, self.code)


def _rebuild(kind: type[XecError], problem: str, where: str, fix: str, code: str) -> XecError:
    return kind(problem, where=where, fix=fix, code=code)


class UserError(XecError):
    """The user can fix it; exit code 2."""

    exit_code = EXIT_USER
    default_code = "XT-USER"


class UsageError(UserError):
    """A command or option is wrong."""

    default_code = "XT-USAGE"


class Misnamed(XecError):
    """Abstract: nothing is where a run or a checkpoint was named.

    Attributes:
        meant: What to write for a word that names none.
        remark: What else there is, as the comment behind a line to paste.
    """

    meant: Mapping[str, str] = MappingProxyType({})
    remark = ""


class MisnamedRun(Misnamed, UsageError):
    """No run is where one was named."""

    def joined(self, others: Iterable[MisnamedRun]) -> MisnamedRun:
        """Return the refusal of several words at once; one without a run near it leaves no line to make."""
        every = [self, *others]
        lost = next((error for error in every if not error.meant), None)
        fix = lost.fix if lost else ", ".join(error.fix for error in every)
        one = len({error.problem for error in every}) == 1
        problem = self.problem if one else "; ".join(f"{error.where}: {error.problem}" for error in every)
        found = MisnamedRun(problem, where=", ".join(error.where for error in every), fix=fix)
        found.meant = {} if lost else {word: run for error in every for word, run in error.meant.items()}
        return found


class ConfigError(UserError):
    """A configuration file or key is wrong."""

    default_code = "XT-CONFIG"


class DataFileError(UserError):
    """A data file or branch is missing, unreadable or of another shape."""

    default_code = "XT-DATA-FILE"


class MisnamedInput(DataFileError):
    """A data file is there and is to be named in another way; its fix is arguments that every command takes."""


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or does not fit."""

    default_code = "XT-CKPT"


class MisnamedCheckpoint(Misnamed, CheckpointError):
    """No checkpoint is where one was named; its fix is a path, and what else there is."""


class BadResult(XecError):
    """The command ran and the answer is bad; exit code 1."""

    exit_code = EXIT_BAD_RESULT
    default_code = "XT-BAD"


class DataUnusable(BadResult):
    """The data cannot be trained on."""

    default_code = "XT-DATA-UNUSABLE"


class RunDiverged(BadResult):
    """A guard stopped the training."""

    default_code = "XT-DIVERGED"


class OutputsDiffer(BadResult):
    """An export or a repeated run does not agree with the original."""

    default_code = "XT-OUTPUTS-DIFFER"


class WorldError(XecError):
    """The machine failed; exit code 3."""

    exit_code = EXIT_WORLD
    default_code = "XT-WORLD"


class DeviceError(WorldError):
    """A device is absent or broke."""

    default_code = "XT-DEVICE"


class DiskError(WorldError):
    """A disk is full or refuses to write."""

    default_code = "XT-DISK"


class OutOfMemory(WorldError):
    """Host or device memory ran out."""

    default_code = "XT-OOM"


class TrackerError(WorldError):
    """A tracking server or database failed."""

    default_code = "XT-TRACKER"


def in_shell(word: object) -> str:
    """Return a path, name or setting as a shell takes it: every line to paste is made with it, options are not.

    A path that begins with - would be an option.

    >>> in_shell("run 1/config.yaml"), in_shell("run_1/config.yaml"), in_shell("-y.root")
    ("'run 1/config.yaml'", 'run_1/config.yaml', './-y.root')
    """
    return shlex.quote(f"./{word}" if str(word).startswith("-") else str(word))


def event_named(run: int, event: int) -> str:
    """Return an event as it is named everywhere; a run below zero is one that its file does not tell.

    >>> event_named(7, 3), event_named(-1, 3)
    ('run 7 event 3', 'event 3')
    """
    return f"event {event}" if run < 0 else f"run {run} event {event}"


def counted(number: int, what: str) -> str:
    """Return a number of things, one of them in the singular.

    >>> counted(1, "rank"), counted(2, "branch"), counted(3, "entry"), counted(0, "epoch")
    ('1 rank', '2 branches', '3 entries', '0 epochs')
    """
    if number == 1:
        return f"{number} {what}"
    if what.endswith("y") and what[-2] not in "aeo":
        return f"{number} {what[:-1]}ies"
    hissing = what.endswith(("ch", "ss", "sh", "x")) and not what.endswith("epoch")
    return f"{number} {what}{'es' if hissing else 's'}"


def duration(seconds: float) -> str:
    """Return a time that passed, in a unit that suits it; a dash where it is not known.

    >>> duration(0.0123), duration(3160.0), duration(86400.0), duration(math.nan)
    ('0.0123 s', '53 min', '24.0 h', '-')
    """
    if not math.isfinite(seconds):
        return "-"
    if seconds < 119.5:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


_LISTED = 40


def listed(names: Iterable[str]) -> str:
    """Return names as a list of words, and how many more there are.

    >>> listed(["npho", "run"]), listed(map(str, range(42)))[-13:]
    ('npho, run', '39 and 2 more')
    """
    every = list(names)
    return ", ".join(every[:_LISTED]) + (f" and {len(every) - _LISTED} more" if len(every) > _LISTED else "")


_SHORTEST_PART = 3  # two letters begin and end too many names


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return up to ``count`` known names closest to ``name``, best first; those that begin or end with it lead.

    >>> nearest("batchsize", ["batch_size", "chunksize", "lr"]), nearest("run", ["prunes", "runNumber", "truth"])
    (['batch_size', 'chunksize'], ['runNumber', 'prunes'])
    """
    by_lower = {candidate.lower(): candidate for candidate in reversed(list(known))}
    found = difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=0.55)
    part = name.lower() if len(name) >= _SHORTEST_PART else None
    longer = sorted((known for known in by_lower if part and known.startswith(part) | known.endswith(part)), key=len)
    return [by_lower[match] for match in dict.fromkeys([*longer, *found])][:count]


def unknown_choice(what: str, name: str, known: Iterable[str], option: str) -> UsageError:
    """Return the refusal of a name that an option does not know, with the whole option to paste.

    >>> print(unknown_choice("format", "onx", ["onnx", "pt2"], "--to"))
    unknown format 'onx', did you mean 'onnx'?
    where: --to
    fix: --to onnx
    """
    names = list(known)
    hint = did_you_mean(name, names) or f"one of {', '.join(names)}"
    return UsageError(
        f"unknown {what} '{name}', {hint}", where=option, fix=f"{option} {(nearest(name, names, 1) or names)[0]}"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"did you mean 'x'?"`` for the nearest known name, or an empty string.

    >>> did_you_mean("nphoo", ["npho", "relative_time"])
    "did you mean 'npho'?"
    """
    found = nearest(name, known, count=1)
    return f"did you mean '{found[0]}'?" if found else ""
