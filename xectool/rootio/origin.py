"""What wrote a tree, told by its title: by this a later call knows which ROOT files it may replace."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Any

import uproot

from xectool.errors import DataFileError
from xectool.rootio.files import check_local_file, open_errors
from xectool.rootio.unmapped import local_handler

FLAG_BRANCH = "repaired"
"""Branch of a repaired tree: one number a sensor, 1 where an inpainter has filled it."""


class Origin(StrEnum):
    """Title of a tree of ours, as ROOT shows it."""

    PREDICTIONS = "predictions of xectool"
    REPAIRED = "events repaired by xectool"
    SIMULATED = "events simulated by xectool"


def origin_of(path: str | os.PathLike[str]) -> Origin | None:
    """Return what wrote a local ROOT file; None where none of ours did, or it cannot be read.

    >>> origin_of("/tmp/absent.root") is None
    True
    """
    try:
        check_local_file(os.fspath(path))
        with uproot.open({os.fspath(path): None}, handler=local_handler()) as directory:
            titles = {_title(directory, name) for name in directory.iterkeys()}
    except DataFileError:
        return None
    except open_errors():
        return None
    return next((origin for origin in Origin if origin in titles), None)


def _title(directory: Any, name: str) -> str:
    key = directory.key(name)
    if key.fClassName == "ROOT::RNTuple":  # its key has its name as title
        return str(directory[name].header.ntuple_description)
    return str(key.fTitle)
