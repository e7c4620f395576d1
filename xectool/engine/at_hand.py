"""What to write where a command was given without its configuration, run or checkpoint: one that lies here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import yaml

from xectool.checkpoint.missing import missing_checkpoint
from xectool.checkpoint.names import BEST_NAME, LAST_NAME
from xectool.config.document import read_document
from xectool.config.serialize import inline_yaml
from xectool.errors import Misnamed, in_shell
from xectool.runlog.run_dirs import USUAL_DIR, newest_run, require_record, run_called

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


def recorded_run(word: str) -> str:
    """Return the directory of a run as `named_run` does, before what draws or repeats it is imported.

    Raises:
        UsageError: No run is there.
    """
    found = named_run(word)
    require_record(Path(found).expanduser())
    return found


def present_checkpoint(word: str, kind: str = "") -> str:
    """Return the name of a checkpoint before what reads it is imported, which takes seconds.

    Args:
        word: Its name.
        kind: Of the network that is needed; any by default.

    Raises:
        CheckpointError: Nothing is there.
    """
    path = Path(word).expanduser()
    if not os.path.exists(path):
        raise missing_checkpoint(path, kind=kind)
    return word


def require_resumed(word: str | None, config: str, overrides: Sequence[str], run_name: str | None) -> None:
    """Look for what a run is to go on from, before what trains is imported, which takes seconds.

    Args:
        word: A checkpoint or the directory of a run; None, or ``auto``, is looked for by the training.
        config: The configuration, which tells the kind of network and where its runs are.
        overrides: Settings that replace its keys.
        run_name: Name of the run; that of the configuration by default.

    Raises:
        CheckpointError: Nothing is there.
        ConfigError: The configuration is not valid either.
    """
    if not word or word == "auto" or os.path.exists(path := Path(word).expanduser()):
        return
    from xectool.config.load import load_config
    from xectool.config.overrides import naming

    named = [naming(run_name)] if run_name else []
    raise missing_checkpoint(path, resuming=load_config(config, [*overrides, *named]).config)


def readable_config(word: str) -> str:
    """Return the name of a configuration that can be read, before what trains is imported, which takes seconds.

    A pipe is left alone, for it can be read once.

    Raises:
        ConfigError: It cannot be read.
    """
    if not os.path.exists(word) or os.path.isfile(word) or os.path.isdir(word):
        read_document(word)
    return word


def config_or_run(word: str) -> str:
    """Return the directory of a run as `named_run` does, else the name of a configuration that can be read.

    Raises:
        ConfigError: It cannot be read.
    """
    name = os.path.expanduser(named_run(word))
    return name if os.path.isdir(name) else readable_config(name)


def renamed(error: Misnamed, argv: Sequence[str]) -> str:
    """Return the command line with what was meant; the fix as it is where nothing is near, or no word names it.

    Args:
        error: The refusal.
        argv: Arguments without the program name.
    """
    words = [word if before == "--run-name" else _meant(error.meant, word) for before, word in pairwise(("", *argv))]
    return f"{shlex.join(['xectool', *words])}{error.remark}" if words != list(argv) else error.fix


def _meant(meant: Mapping[str, str], word: str) -> str:
    """Return an argument with what was meant by it, or by what stands after the = of an option or a setting."""
    by_place = {_place(named): found for named, found in meant.items()}
    name, sign, value = word.partition("=")
    if name in ("--run-name", "mlflow.run_name"):  # a name, whatever has it
        return word
    for head, tail in (("", word), (name + sign, value), (name + sign, _unquoted(value))):
        found = by_place.get(_place(tail))
        if tail and found is not None:
            return f"{head}{found if not head or head.startswith('-') else inline_yaml(found)}"
    return word


def _place(path: str) -> str:
    """Return where a path leads to: a refusal may name the whole of what was typed in part."""
    return os.path.abspath(os.path.expanduser(path))


def _unquoted(value: str) -> str:
    """Return what YAML reads, where that is text: a setting may be quoted."""
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    return read if isinstance(read, str) else value


def _configuration() -> Path | None:
    return USUAL_CONFIG if USUAL_CONFIG.is_file() else min(Path().glob("*.y*ml"), default=None)
