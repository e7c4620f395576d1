"""Reads entry ranges of branches into the caller's arrays, from TTree and RNTuple alike."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from xectool.config.inputs import input_name, is_remote, split_tree
from xectool.errors import DataFileError, did_you_mean, in_shell, listed, nearest
from xectool.rootio.baskets import BasketColumn, tree_column
from xectool.rootio.columns import READ_ERRORS, Array, Column, DamagedRangeError, WrongLengthError
from xectool.rootio.files import cannot_open, open_errors, open_tree
from xectool.rootio.pages import FieldIndex, PageColumn, ntuple_column
from xectool.rootio.source import ByteSource, LocalSource, RemoteSource
from xectool.rootio.stages import OPEN, timed
from xectool.rootio.writer import BranchSpec

# Storage units shorter than this are read together: ROOT writes one event a basket at the start of a file.
MIN_CLUSTER_EVENTS = 64
_STRINGS = ("char*", "std::string", "string", "TString")


class EventFile:
    """One open tree; several threads may read it at once, and it can be sent to another process.

    Args:
        path: A local path or a url; a suffix ``:tree`` wins over ``tree``.
        tree: Name of the tree.

    Raises:
        DataFileError: The file or tree is absent or damaged.
    """

    def __init__(self, path: str | os.PathLike[str], tree: str = "tree") -> None:
        self.path, self.tree = split_tree(os.fspath(path), tree)
        self._tree = open_tree(os.fspath(path), tree)  # an error tells a tree that the path names
        self.is_ntuple = "RNTuple" in type(self._tree).__name__
        try:
            self.num_entries = int(self._tree.num_entries)
            self.branch_names: tuple[str, ...] = tuple(self._tree.keys())
        except open_errors() as error:  # an RNTuple reads its header only now
            raise cannot_open(self.path, self.tree, error) from error
        self._source: ByteSource = (
            RemoteSource(self._tree.file.source) if is_remote(self.path) else LocalSource(self.path)
        )
        self._written = _last_written(self.path)
        self._columns: dict[str, Column] = {}
        self._specs: dict[str, BranchSpec | None] = {}

    @cached_property
    def _branches(self) -> Mapping[str, Any]:
        """Branches by name; looking them up in the tree misses some names that it gives itself."""
        return dict(self._tree.iteritems())

    @cached_property
    def _fields(self) -> FieldIndex:
        return FieldIndex(self._tree)

    def __reduce__(self) -> tuple[Any, ...]:
        return EventFile, (self.path, self.tree)

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._source.close()
        self._tree.file.close()

    @property
    def directory(self) -> Any:
        """The directory of the file, which has all that lies beside the tree."""
        return self._tree.file.root_directory

    @property
    def where(self) -> str:
        """File and tree, as error messages name them."""
        return input_name(self.path, self.tree)

    def column(self, branch: str) -> Column:
        """Return the column of a branch.

        Raises:
            DataFileError: The branch is not there, or does not hold plain numbers.
        """
        if branch not in self._columns:
            if branch not in self.branch_names:
                raise self.missing_branch(branch)
            self._columns[branch] = timed(OPEN, self._checked_column, branch)
        return self._columns[branch]

    def missing_branch(self, branch: str, fix: str = "", meant: str | None = None) -> DataFileError:
        """Return the error for a branch that is not there, with the nearest names that are; ``meant`` is a hint."""
        hint = did_you_mean(branch, self.branch_names) if meant is None else meant
        return DataFileError(
            f"'{self.path}' has no branch '{branch}' in tree '{self.tree}' ({self.names_like(branch)})",
            where=f"{self.where} branch {branch}",
            fix=f"{hint} {fix}".strip() or "name a branch that is there",
            code="XT-DATA-BRANCH",
        )

    def names_like(self, branch: str) -> str:
        """Return the branches of names near to one that is not there, or, none being near, what is there."""
        close = nearest(branch, self.branch_names)
        return f"nearest there: {', '.join(close)}" if close else f"branches there: {listed(self.branch_names)}"

    def type_name(self, branch: str) -> str:
        """Return the type of a branch in C++ terms; the class of its leaf where uproot stumbles over the type."""
        item = self._branches[branch]
        try:
            return str(item.typename)
        except (NameError, KeyError):  # a variable it forgets to set, of Float16_t without a range; structures
            return str(item.member("fLeaves")[0].classname)

    def cluster_starts(self, branch: str) -> tuple[int, ...]:
        """Return the entries at which reading ``branch`` starts without waste, at least 64 entries apart."""
        column = self.column(branch)
        try:
            found = column.read_starts()
        except open_errors() as error:  # the page list of an RNTuple is read only now
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise self._damaged(branch, DamagedRangeError(0, self.num_entries, reason)) from error
        starts: list[int] = []
        for entry in found:
            if not starts or entry - starts[-1] >= MIN_CLUSTER_EVENTS:
                starts.append(entry)
        return tuple(starts)

    def read_into(self, branch: str, start: int, stop: int, out: Array) -> None:
        """Fill ``out``, shape (stop - start,) or (stop - start, width), cast to its type.

        Raises:
            DataFileError: The branch is absent, of another width, or damaged; names the entries.
        """
        column = self.column(branch)
        if not 0 <= start <= stop <= self.num_entries or len(out) != stop - start:
            raise ValueError(f"entries {start} to {stop} of {self.num_entries} do not fit {len(out)} rows")
        if not out.flags.c_contiguous:
            raise ValueError("read_into fills contiguous arrays only")
        rows = out.reshape(len(out), 1) if out.ndim == 1 else out
        if column.width is not None and column.width != rows.shape[1]:
            raise self._wrong_width(branch, column.width, rows.shape[1], "")
        try:
            column.read(start, stop, rows)
        except DamagedRangeError as error:
            raise self._damaged(branch, error) from error
        except WrongLengthError as error:
            raise self._wrong_width(branch, error.found, error.expected, f" in entry {error.entry}") from error

    def read_column(self, branch: str, start: int = 0, stop: int | None = None) -> Array:
        """Return entries ``[start, stop)`` of a branch in its own type, shape (n,) or (n, width)."""
        column = self.column(branch)
        stop = self.num_entries if stop is None else stop
        width = self.first_width(branch) if self.num_entries or column.width is not None else 0
        out = np.empty((stop - start,) if width == 1 else (stop - start, width), column.dtype)
        self.read_into(branch, start, stop, out)
        return out

    def entry_spec(self, branch: str) -> BranchSpec | None:
        """Return what one entry of a branch is, in the terms of ``TreeWriter``; None for what is no plain data."""
        if branch not in self._specs:
            try:
                self._specs[branch] = self._make_spec(branch)
            except open_errors():  # a type that uproot cannot interpret
                self._specs[branch] = None
        return self._specs[branch]

    def counter(self, branch: str) -> str | None:
        """Return the branch that counts the numbers of a TTree's ``x[n]``; None for every other kind of branch."""
        found = None if self.is_ntuple else self._branches[branch].count_branch
        return None if found is None else str(found.name)

    def read_entries(self, branch: str, start: int, stop: int) -> Any:
        """Return entries ``[start, stop)`` in their own type and shape; an awkward array where their length varies.

        Raises:
            DataFileError: The branch is absent, no plain data, or damaged.
        """
        spec = self.entry_spec(branch)
        if spec is not None and not isinstance(spec, str):
            dtype, shape = spec
            out = np.empty((stop - start, int(np.prod(shape, dtype=np.int64))), dtype)
            self.read_into(branch, start, stop, out)
            return out.reshape(stop - start, *shape)
        try:
            return self._branches[branch].array(entry_start=start, entry_stop=stop, library="ak")
        except READ_ERRORS as error:
            raise self._damaged(branch, DamagedRangeError(start, stop, f"{type(error).__name__}: {error}")) from error

    def first_width(self, branch: str) -> int:
        """Return the count of numbers in the first entry of a branch.

        Raises:
            DataFileError: The branch is absent or damaged.
        """
        column = self.column(branch)
        try:
            return column.width if column.width is not None else column.first_width()
        except DamagedRangeError as error:
            raise self._damaged(branch, error) from error

    def _checked_column(self, branch: str) -> Column:
        try:
            column, kind = self._make_column(branch)
            num_entries = column.boundaries()[-1] if column is not None else self.num_entries
            if isinstance(column, BasketColumn | PageColumn):
                column.require_counts()
        except open_errors() as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise self._damaged(branch, DamagedRangeError(0, self.num_entries, reason)) from error
        if column is None:
            raise DataFileError(
                f"branch '{branch}' of '{self.path}' holds {kind or 'objects'}, not plain numbers",
                where=f"{self.where} branch {branch}",
                fix="name a branch of float or integer numbers",
                code="XT-DATA-TYPE",
            )
        if num_entries != self.num_entries:
            reason = f"the branch has {num_entries} entries, the tree {self.num_entries}"
            raise self._damaged(branch, DamagedRangeError(0, self.num_entries, reason))
        return column

    def _make_spec(self, branch: str) -> BranchSpec | None:
        item = self._branches[branch]
        kind = str(item.typename)
        if kind in _STRINGS and (self.is_ntuple or type(item.interpretation).__name__ == "AsStrings"):
            return "string"
        column = self._make_column(branch)[0]
        if column is None or column.width is None:
            return None if column is None else f"var * {column.dtype.name}"
        if self.is_ntuple:
            return column.dtype, (column.width,) if kind.startswith("std::array") else ()
        return column.dtype, tuple(item.interpretation.to_dtype.shape)

    def _make_column(self, branch: str) -> tuple[Column | None, str]:
        kind = self.type_name(branch)
        if self.is_ntuple:
            return ntuple_column(self._tree, self._source, self._branches[branch], self._fields), kind
        try:
            return tree_column(self._branches[branch], self._source), kind
        except NameError:  # as in `type_name`
            return None, kind

    def _wrong_width(self, branch: str, found: int, expected: int, place: str) -> DataFileError:
        return DataFileError(
            f"branch '{branch}' of '{self.path}' holds {found} values an event{place}, expected {expected}",
            where=f"{self.where} branch {branch}",
            fix=f"name a branch of width {expected}, or make the file again",
            code="XT-DATA-WIDTH",
        )

    def _damaged(self, branch: str, error: DamagedRangeError) -> DataFileError:
        if is_remote(self.path):
            return DataFileError(
                f"branch '{branch}' of '{self.path}', entries {error.start} to {error.stop}, cannot be read "
                f"({error.reason})",
                where=f"{self.where} branch {branch} entries [{error.start}, {error.stop})",
                fix="check the connection and your credentials; a local copy tells whether the file is damaged",
                code="XT-DATA-REMOTE",
            )
        if _last_written(self.path) != self._written:
            return DataFileError(
                f"'{self.path}' was written over, moved or deleted while it was read: branch '{branch}', entries "
                f"{error.start} to {error.stop} cannot be read ({error.reason})",
                where=f"{self.where} branch {branch} entries [{error.start}, {error.stop})",
                fix=f"xectool check-data {in_shell(self.where)}   # once the file is whole again",
                code="XT-DATA-CHANGED",
            )
        return DataFileError(
            f"'{self.path}' is damaged: branch '{branch}', entries {error.start} to {error.stop} cannot be read "
            f"({error.reason})",
            where=f"{self.where} branch {branch} entries [{error.start}, {error.stop})",
            fix="copy the file again and compare its checksum, or take it out of the list",
            code="XT-DATA-DAMAGED",
        )


def _last_written(path: str) -> tuple[int, int] | None:
    """Return size and time of a local file, which a copy over it changes; None of what is remote, or gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
