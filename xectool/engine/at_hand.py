"""What to write where a command was given without its configuration, run or checkpoint: one that lies here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from xectool.checkpoint.names import BEST_NAME, LAST_NAME
from xectool.errors import MisnamedRun, in_shell
from xectool.runlog.run_dirs import USUAL_DIR, newest_run, run_called

USUAL_CONFIG: Final = Path("config.yaml")


def completed(wanted: str, argv: Sequence[str]) -> str:
    """Return the command line with what it lacks, or an empty string where nothing of that kind lies here.

    Args:
        wanted: Name of the missing argument in the help, such as CONFIG, RUN or CKPT.
        argv: Arguments without the program name.
    """
    given = shlex.join(["xectool", *argv])
    if "CONFIG" in wanted:
        found = _configuration()
        first = "" if found else f"xectool config init > {USUAL_CONFIG} && "
        return f"{first}{given} {in_shell(found or USUAL_CONFIG)}"
    run = newest_run(USUAL_DIR)
    if run is None:
        return ""
    if "RUN" in wanted:
        return f"{given} {in_shell(run)}"
    if wanted in ("CKPT", "MODEL"):
        found = next((run / name for name in (BEST_NAME, LAST_NAME) if (run / name).is_file()), None)
        return f"{given} {in_shell(found)}" if found else ""
    return ""


def named_run(word: str) -> str:
    """Return the directory of a run that is named as ``xectool runs`` lists it; any other word as it is."""
    found = run_called(word)
    return word if found == Path(word).expanduser() else str(found)


def renamed(error: MisnamedRun, argv: Sequence[str]) -> str:
    """Return the command line with the runs that were meant; the fix as it is where none is near.

    Args:
        error: The refusal.
        argv: Arguments without the program name.
    """
    words = [_meant(error, word) for word in argv]
    return shlex.join(["xectool", *words]) if words != list(argv) else error.fix


def _meant(error: MisnamedRun, word: str) -> str:
    """Return an argument with the run that was meant by it, or by what stands after the = of an option."""
    option, sign, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{sign}{error.meant.get(str(Path(os.path.expanduser(value))), value)}"


def _configuration() -> Path | None:
    return USUAL_CONFIG if USUAL_CONFIG.is_file() else min(Path().glob("*.y*ml"), default=None)
