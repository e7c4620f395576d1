"""Patterns that name just some files, and what makes one file of many."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Collection, Sequence
from typing import Final

from xectool.config.inputs import free_name, input_name
from xectool.config.serialize import inline_yaml
from xectool.errors import in_shell

_PLAIN: Final = re.compile(r"[\w./:*+-]+")
_LONGEST: Final = 2000  # characters of a line to paste


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


def merging(files: Sequence[str], trees: Collection[str] = ()) -> str:
    """Return the line that makes one file of many, and says what reads it then.

    The shell expands the patterns of it, so one of other than plain letters gives way to the names of the files. A
    line too long to be read takes them from a list.

    Args:
        files: Paths of the files.
        trees: Names of the trees that are read of them, where it is not the one of the configuration alone.
    """
    once = list(dict.fromkeys(files))
    short = patterns(once)
    words = short if all(map(_PLAIN.fullmatch, short)) else list(map(in_shell, once))
    inputs = " ".join(f"./{word}" if word.startswith("-") else word for word in words)
    merged, names = free_name("merged", ".root"), free_name("files", ".txt")
    names_of_it = [input_name(merged, tree) for tree in sorted(trees)] or [merged]
    value = inline_yaml(names_of_it[0] if len(names_of_it) == 1 else names_of_it)
    said, told = f"then --set {in_shell(f'data.train_path={value}')}", ""
    if len(inputs) > _LONGEST:
        inputs, told = f"@{names}", f"{names}: the {len(once)} files, one a line; "
    return f"hadd {merged} {inputs}   # {told}{said}"
