"""What a file holds beside a tree."""

from __future__ import annotations

from contextlib import suppress

from xectool.rootio.files import open_errors
from xectool.rootio.reader import EventFile

_TEXT = "TObjString"
_DIRECTORIES = ("TDirectory", "TDirectoryFile")  # as uproot writes one, and as ROOT does


def beside(file: EventFile) -> tuple[dict[str, str], dict[str, str]]:
    """Return the texts beside a tree, which can be written again as they are, and the class of all else, by name."""
    texts, others = dict[str, str](), dict[str, str]()
    directory = file.directory
    for name, kind in directory.classnames(cycle=False).items():
        if kind == _TEXT:
            with suppress(*open_errors()):  # damage: it cannot be carried
                texts[name] = str(directory[name])
        if name not in (*texts, file.tree) and kind not in _DIRECTORIES:
            others[name] = kind
    return texts, others
