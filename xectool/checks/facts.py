"""What is known of one file before a value of it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xectool.config.inputs import input_name, split_tree
from xectool.errors import DataFileError, in_shell

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Trouble:
    """One thing that is wrong with a file.

    Attributes:
        check: Which check found it, such as ``DAT-02``.
        code: What kind of fault it is, such as ``XT-DATA-DAMAGED``.
        problem: One sentence.
        where: File, tree, branch and entries.
        fix: What to do.
        evidence: Numbers it rests on.
    """

    check: str
    code: str
    problem: str
    where: str
    fix: str = ""
    evidence: tuple[str, ...] = ()

    @classmethod
    def of(cls, check: str, error: DataFileError) -> Trouble:
        """Return the trouble that an error of the reader tells of."""
        return cls(check, error.code, error.problem, error.where, error.fix)


@dataclass(frozen=True)
class Units:
    """Where the baskets or pages of one column lie: arrays with one number a unit.

    Attributes:
        start: First entry.
        stop: One past the last entry.
        offset: Place of its first byte in the file.
        num_bytes: Bytes in the file.
        raw_bytes: Bytes after decompression; -1 where only the unit itself says so.
    """

    start: IntArray
    stop: IntArray
    offset: IntArray
    num_bytes: IntArray
    raw_bytes: IntArray

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class BranchFacts:
    """One branch, or one column of an RNTuple.

    Attributes:
        name: Its full name.
        typename: Its type in C++ terms.
        dtype: NumPy name of one number; empty for what is no plain number.
        width: Numbers an entry; None where it varies or is not known.
        units: Its baskets or pages.
        stored_bytes: Bytes in the file.
        raw_bytes: Bytes after decompression, as the file states them.
        value_bytes: Bytes of one entry in a basket; 0 where it varies.
        checksums: Whether each unit carries a checksum.
    """

    name: str
    typename: str
    dtype: str
    width: int | None
    units: Units
    stored_bytes: int = 0
    raw_bytes: int = 0
    value_bytes: int = 0
    checksums: bool = False


@dataclass(frozen=True)
class FileFacts:
    """One file and its tree.

    Attributes:
        path: Path or url.
        tree: Name of the tree.
        kind: ``TTree`` or ``RNTuple``; empty where no tree could be opened.
        size_bytes: Size of the file; 0 where it is not known.
        num_entries: Entries of the tree.
        branches: Its branches by name.
        troubles: What is wrong with its structure.
        names: The branches as a reader calls them.
        notes: What is unusual in its structure, and no fault.
        unclosed: Whether the program that wrote it ended before it closed it.
        friends: Trees that ROOT reads further branches of its tree from, with their files; nothing here follows them.
    """

    path: str
    tree: str
    kind: str = ""
    size_bytes: int = 0
    num_entries: int = 0
    branches: Mapping[str, BranchFacts] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()
    names: tuple[str, ...] = ()
    notes: tuple[Trouble, ...] = ()
    unclosed: bool = False
    friends: tuple[str, ...] = ()

    @property
    def opened(self) -> bool:
        """Whether its tree could be opened."""
        return bool(self.kind)

    @property
    def where(self) -> str:
        """File and tree, as an input is named."""
        return input_name(self.path, self.tree)

    def is_named_in(self, where: str) -> bool:
        """Say whether a place, as findings tell it, lies in this tree, or in its file as a whole."""
        return any(f"{where} ".startswith(f"{name} ") for name in (self.path, self.where))

    def shares_file(self, where: str) -> bool:
        """Say whether a place lies in this file, in whatever tree."""
        rest = where.removeprefix(self.path)
        return rest != where and (not rest or rest[0] in ": ")

    def without_units(self) -> dict[str, Any]:
        """Return name to type of every branch, for reports."""
        return {name: branch.typename for name, branch in self.branches.items()}


def plain_name(path: str, tree: str) -> str:
    """Return the name of a tree of a file, which is that of the file where it is the usual one."""
    return path if split_tree(path) == (path, tree) else input_name(path, tree)


def arguments(path: str, tree: str) -> str:
    """Return the arguments of a command that name a tree of a file; a name without .root takes no tree after it.

    >>> arguments("a.root", "sub/events"), arguments("a.dat", "events")
    ('a.root:sub/events', 'a.dat --set data.tree_name=events')
    """
    name = plain_name(path, tree)
    setting = "" if split_tree(name) == (path, tree) else f" --set {in_shell(f'data.tree_name={tree}')}"
    return in_shell(name) + setting
