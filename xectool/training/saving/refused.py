"""The refusal of a resume, with what goes on and what begins anew as lines to paste."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from xectool.errors import CheckpointError

RESUME_KEY: Final = "checkpoint.resume_from"
_NAMED: Final = ("--resume", "--run-name")


class ResumeRefused(CheckpointError):
    """A run cannot go on with a configuration.

    Attributes:
        keeping: Options with which it goes on, and the remark on them; empty where nothing lets it.
        anew: Options of a new run from its weights.
    """

    default_code = "CFG-46"
    keeping: tuple[str, str] = ("", "")
    anew = ""

    @classmethod
    def of(
        cls, problem: str, where: str, keeping: tuple[str, str], anew: str, code: str = default_code
    ) -> ResumeRefused:
        """Return the refusal with the options alone, as a remark each tells what they do."""
        found = cls(problem, where=where, code=code)
        found.keeping, found.anew = keeping, anew
        found.fix = found._lines("", "")
        return found

    def with_line(self, argv: Sequence[str]) -> ResumeRefused:
        """Return the refusal with whole command lines; the new run is begun without ``--resume``.

        Args:
            argv: Arguments without the program name.
        """
        if argv[:1] == ["train"] and "--" not in argv:
            given = shlex.join(["xectool", *_without_resume(argv)])
            self.fix = self._lines(f"{shlex.join(['xectool', *argv])} ", f"{given} ")
        return self

    def _lines(self, going_on: str, beginning: str) -> str:
        options, remark = self.keeping
        without = "" if beginning else "without --resume, "
        anew = f"{beginning}{self.anew}   # {without}a new run from its weights"
        return f"{going_on}{options}   # {remark}\n{anew}" if options else anew


def _without_resume(argv: Sequence[str]) -> list[str]:
    """Return arguments without what says from where a run goes on and how it is called.

    >>> _without_resume(["train", "c.yaml", "--resume", "auto", "--run-name=a", "--set", "checkpoint.resume_from=b.pt"])
    ['train', 'c.yaml']
    """
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        option, joined, value = word.partition("=")
        if option not in (*_NAMED, "--set"):
            kept.append(word)
            continue
        value = value if joined else next(words, "")
        if option == "--set" and value.partition("=")[0].strip() != RESUME_KEY:
            kept += [word] if joined else [word, value]
    return kept
