"""The command that trains with settings that another command has found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xectool.errors import in_shell
from xectool.errors.run_names import run_name


def train_line(config: str, asked: Sequence[str], found: Sequence[str] = ()) -> str:
    """Return the command that trains with what was found; of a run directory its configuration, under another name.

    Args:
        config: Configuration or run directory, as it was given.
        asked: Settings it was given with.
        found: ``key: value`` lines or ``key=value`` settings.

    >>> train_line("c.yaml", ["training.lr=1e-3"], ["data.num_workers: 2"])
    'xectool train c.yaml --set training.lr=1e-3 --set data.num_workers=2'
    """
    path = Path(config)
    words = ["xectool train", in_shell(path / "config.yaml" if path.is_dir() else config)]
    words += ["--run-name", run_name(path.resolve().name, "-again", path.resolve().parent)] if path.is_dir() else []
    settings = (*asked, *(line.replace(": ", "=", 1) for line in found))
    return " ".join([*words, *(f"--set {in_shell(setting)}" for setting in settings)])
