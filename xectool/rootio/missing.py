"""What is not there: a file with the nearest names, a tree with the one that holds the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_LOOKED_AT = 50


def likely_tree(directory: Any, trees: Sequence[str], broken: tuple[type[BaseException], ...]) -> str:
    """Return the tree of an open file that takes most of its bytes: readings outweigh what describes a run.

    Args:
        directory: The file as uproot opened it.
        trees: Names of its trees; the first is returned where none can be weighed, and "" where there is none.
        broken: What uproot raises on a damaged tree, which weighs nothing.
    """

    def weight(name: str) -> int:
        try:
            return _stored_bytes(directory[name])
        except broken:
            return 0

    return max(trees[:_LOOKED_AT], key=weight, default="")


def _stored_bytes(tree: Any) -> int:
    """Return the bytes of the baskets of a TTree, or of the pages of an RNTuple."""
    if hasattr(tree, "compressed_bytes"):
        return int(tree.compressed_bytes)
    columns = (column for cluster in tree.page_link_list for column in cluster if not column.suppressed)
    return sum(int(page.locator.num_bytes) for column in columns for page in column.pages)
