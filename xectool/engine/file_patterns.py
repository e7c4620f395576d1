"""Patterns that name just some files, and names that no file has yet."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Sequence


def _pattern(files: Sequence[str]) -> str | None:
    """Return the pattern that has just these files, if there is one; matches that are directories are not opened."""
    pattern = f"{_common(files)}*{_common([name[::-1] for name in files])[::-1]}"
    has_these = sorted(glob.glob(pattern)) == sorted(files) and not any(map(os.path.isdir, files))
    return pattern if has_these else None


def patterns(files: Sequence[str]) -> list[str]:
    """Return the pattern that has just these files, else that of each directory, else its files."""
    whole = _pattern(files)
    folders = {name: [file for file in files if os.path.dirname(file) == name] for name in map(os.path.dirname, files)}
    if whole or len(folders) == 1:
        return [whole] if whole else list(files)
    return [name for part in folders.values() for name in (part if len(part) == 1 else patterns(part))]


def _common(names: Sequence[str]) -> str:
    """Return how all names begin."""
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same)


def free_name(stem: str, suffix: str) -> str:
    """Return a name that nothing here has: what is written to a link that leads nowhere yet goes where that leads."""
    numbers = itertools.chain([""], itertools.count(2))
    return next(name for number in numbers if not os.path.lexists(name := f"{stem}{number}{suffix}"))
