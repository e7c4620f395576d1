"""The refusal of a resume, with what goes on and what begins anew as lines to paste."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Collection, Sequence
from typing import Final

from xectool.config.document import SET
from xectool.config.overrides import key_of
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
            options, _ = self.keeping
            going_on = shlex.join(["xectool", *_without((), _set_by(options), argv)])
            beginning = shlex.join(["xectool", *_without(_NAMED, {RESUME_KEY, *_set_by(self.anew)}, argv)])
            self.fix = self._lines(f"{going_on} ", f"{beginning} ")
        return self

    def _lines(self, going_on: str, beginning: str) -> str:
        options, remark = self.keeping
        without = "" if beginning else "without --resume, "
        anew = f"{beginning}{self.anew}   # {without}a new run from its weights"
        return f"{going_on}{options}   # {remark}\n{anew}" if options else anew


def _set_by(options: str) -> set[str]:
    """Return the keys that options set: what was given of these on a command line is not to stand beside them."""
    words = shlex.split(options)
    return {key_of(word) for option, word in itertools.pairwise(words) if option == SET}


def _without(options: Collection[str], keys: Collection[str], argv: Sequence[str]) -> list[str]:
    """Return arguments without options, each of which has a value, and without settings of keys.

    >>> argv = ["train", "c.yaml", "--resume", "auto", "--run-name=a", "--set", "a.b=1", "--set=c=2"]
    >>> _without(["--resume", "--run-name"], ["c"], argv)
    ['train', 'c.yaml', '--set', 'a.b=1']
    """
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        option, joined, value = word.partition("=")
        if option not in (*options, SET):
            kept.append(word)
            continue
        value = value if joined else next(words, "")
        if option == SET and key_of(value) not in keys:
            kept += [word] if joined else [word, value]
    return kept
