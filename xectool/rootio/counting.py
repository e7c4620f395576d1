"""How many events files hold, without reading one of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from xectool.config.data import DataConfig
from xectool.config.host_memory import NumEvents
from xectool.config.inputs import expand_inputs, is_remote, split_tree
from xectool.errors import DataFileError
from xectool.rootio.reader import EventFile

MOST_OPENED: Final = 32  # some 20 ms each


def count_events(spec: str | Sequence[str], tree: str = "tree") -> int | None:
    """Return the entries of local files; of more than 32 the others count by their size.

    Args:
        spec: Files, globs, directories or ``@list`` files.
        tree: Name of the tree.

    Returns:
        The number, None where it cannot be known from here: files that are absent, damaged or behind a url.
    """
    try:
        paths = expand_inputs(spec)
        if any(is_remote(path) for path in paths):
            return None
        sizes = [os.path.getsize(split_tree(path, tree)[0]) for path in paths]
        entries = sum(_entries(path, tree) for path in paths[:MOST_OPENED])
    except (DataFileError, OSError):
        return None
    return round(entries * sum(sizes) / sum(sizes[:MOST_OPENED]))


def count_run_events(data: DataConfig) -> NumEvents:
    """Return the events of the files of a run, as far as they can be known from here."""
    validation = count_events(data.val_path, data.tree_name) if data.val_path else None
    return NumEvents(count_events(data.train_path, data.tree_name), validation)


def _entries(path: str, tree: str) -> int:
    with EventFile(path, tree) as file:
        return file.num_entries
