"""Texts that answer ``xectool explain``: one entry a topic or finding code, kept as package data beside this file.

Each file in ``texts/`` is one family. An entry is a second-level heading with its names, a title, and a body::

    ## XT-SHM: Worker processes ran out of shared memory
    see: data-loading
    Cause: one sentence.
    Fix: what to do, then the lines to paste, indented by four spaces.

Finding codes have at least the fields ``Cause`` and ``Fix``; other rooms quote those instead of repeating them.
"""

from xectool.explanations.library import Entry, Library, library

__all__ = ["Entry", "Library", "library"]
