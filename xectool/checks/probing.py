"""Opens one file of any kind and says what it is; a file that is not ours gets a verdict, not a traceback."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from xectool.checks.facts import BranchFacts, FileFacts, Trouble
from xectool.checks.header import friends_of, header_troubles, is_unclosed
from xectool.checks.layout import layout_troubles, ntuple_columns, tree_branches
from xectool.config.inputs import is_remote, split_tree
from xectool.errors import DataFileError, MisnamedInput, in_shell
from xectool.rootio.files import cannot_open, open_errors, open_tree
from xectool.rootio.reader import EventFile


def probe(path: str, default_tree: str = "tree") -> FileFacts:
    """Return the structure of a file, or what keeps it from being read."""
    path, tree_name = split_tree(path, default_tree)
    size = 0 if is_remote(path) or not os.path.isfile(path) else os.path.getsize(path)
    try:
        with EventFile(path, tree_name) as file:
            return _structure(file, size)
    except DataFileError as error:
        trouble = Trouble.of("DAT-03" if error.code == "XT-DATA-TREE" else "DAT-01", error)
        if isinstance(error, MisnamedInput):  # a setting for the tree comes after the file, a list in its place
            given = f"{in_shell(path)} {error.fix}" if trouble.check == "DAT-03" else error.fix
            trouble = replace(trouble, fix=f"xectool check-data {given}")
        if size and is_unclosed(path):
            problem = f"{trouble.problem}; the file was never closed: the program that wrote it ended before that"
            trouble = replace(trouble, problem=problem)
        return FileFacts(path, tree_name, "", size, troubles=(trouble,))


def _structure(file: EventFile, size: int) -> FileFacts:
    tree = open_tree(file.path, file.tree)
    wrong: list[Trouble] = []
    odd: list[Trouble] = []
    try:
        if size:
            wrong, odd = header_troubles(file.path, file.where, size, tree.file)
        branches = ntuple_columns(tree, file) if file.is_ntuple else tree_branches(tree, file)
        friends = () if file.is_ntuple else friends_of(tree)
    except open_errors() as error:
        raise cannot_open(file.path, file.tree, error) from error
    finally:
        tree.file.close()
    kind = "RNTuple" if file.is_ntuple else "TTree"
    troubles = wrong + layout_troubles(file.where, branches, file.num_entries, size)
    troubles += _missing_entries(file, branches)
    names = tuple(file.branch_names)
    return FileFacts(
        file.path, file.tree, kind, size, file.num_entries, branches, tuple(troubles), names, tuple(odd),
        bool(size) and is_unclosed(file.path), friends,
    )  # fmt: skip


def _missing_entries(file: EventFile, branches: dict[str, BranchFacts]) -> list[Trouble]:
    """Return the branches whose number of entries differs from the tree's, as the reader sees them."""
    troubles: list[Trouble] = []
    # A branch of objects may have no basket of its own, which is no fault.
    for name in (name for name, branch in branches.items() if len(branch.units)):
        reason: Any = None
        try:
            file.column(name)
        except DataFileError as error:
            reason = error if error.code == "XT-DATA-DAMAGED" else None
        if reason is not None:
            troubles.append(Trouble.of("DAT-02", reason))
    return troubles
