"""The refusal of a resume, with what goes on and what begins anew as lines to paste."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from xectool.errors import CheckpointError


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
            given = [word for word in argv if not word.startswith("--resume=")]
            for at in [at for at, word in enumerate(given) if word == "--resume"][::-1]:
                del given[at : at + 2]
            self.fix = self._lines(f"{shlex.join(['xectool', *argv])} ", f"{shlex.join(['xectool', *given])} ")
        return self

    def _lines(self, going_on: str, beginning: str) -> str:
        options, remark = self.keeping
        without = "" if beginning else "without --resume, "
        anew = f"{beginning}{self.anew}   # {without}a new run from its weights"
        return f"{going_on}{options}   # {remark}\n{anew}" if options else anew
