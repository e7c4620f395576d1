"""Finds and opens ROOT files; each failure names the file, the tree and what is there instead."""

from __future__ import annotations

import os
import stat
import struct
from typing import Any

import uproot

from xectool.config.inputs import input_name, is_remote, missing_file, split_tree
from xectool.errors import DataFileError, MisnamedInput, in_shell, listed, nearest
from xectool.rootio.inflate import INFLATE_ERRORS, require_bounded
from xectool.rootio.missing import likely_tree
from xectool.rootio.source import client_errors
from xectool.rootio.strangers import (
    COPY_AGAIN,
    is_list_file,
    is_root,
    not_a_chain,
    reason_of,
    remedy,
    require_released,
    unreadable,
    what_it_is,
)
from xectool.rootio.unmapped import local_handler

_OPEN_ERRORS = (
    *INFLATE_ERRORS,
    OSError,
    KeyError,
    IndexError,
    AttributeError,
    TypeError,
    AssertionError,
    NotImplementedError,
    RecursionError,
    OverflowError,
    struct.error,
    uproot.DeserializationError,
)


def open_errors() -> tuple[type[BaseException], ...]:
    """Return what uproot raises on broken metadata; a file of random bytes reaches each but those of a url's client."""
    return (*_OPEN_ERRORS, *client_errors())


def _require_bounded(**block: Any) -> None:
    """Refuse what uproot is about to inflate where a few bytes would become very many."""
    if block["num_blocks"]:
        return
    begin, size = block["cursor"].index, block["compressed_bytes"]
    raw = block["chunk"].get(begin, begin + size, block["cursor"], block["context"])
    require_bounded(memoryview(raw), block["uncompressed_bytes"])


uproot.compression.decompress.hook_before_block = _require_bounded


def open_tree(path: str, tree_name: str = "tree") -> Any:
    """Open one tree (TTree or RNTuple) with uproot.

    Args:
        path: A local path or a url; a suffix ``:tree`` wins over ``tree_name``.
        tree_name: The tree to open.

    Raises:
        DataFileError: The file is absent, empty, truncated, not ROOT or damaged, or the tree is not in it.
    """
    given, (path, tree_name) = path, split_tree(path, tree_name)
    if not is_remote(path):
        check_local_file(path)
    classes: dict[str, str] = {}
    try:
        directory = _open_directory(path)
        classes = directory.classnames(cycle=False)
        if classes.get(tree_name) == "TChain":
            raise not_a_chain(path, tree_name, directory.key(tree_name))
        found = directory[tree_name] if tree_name in classes else None
        is_tree = hasattr(found, "num_entries")
    except ImportError as error:
        raise _missing_package(path, error) from error
    except open_errors() as error:
        require_released(path, tree_name, classes.get(tree_name, ""))
        raise cannot_open(path, tree_name, error) from error
    if not is_tree:
        require_released(path, tree_name, classes.get(tree_name, ""))
        others = {name: kind for name, kind in classes.items() if name != tree_name}
        raise _missing_tree(path, tree_name, others, directory, in_path=given != path)
    return found


def _open_directory(path: str) -> Any:
    return uproot.open({path: None}, **({} if is_remote(path) else {"handler": local_handler()}))


def check_local_file(path: str) -> None:
    """Check that a local file is there, is a ROOT file and is as long as its header says.

    Raises:
        DataFileError: It is not.
    """
    try:
        size, mode = os.stat(path).st_size, os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise DataFileError(f"'{path}' is a directory, not a file", where=path, fix=f"'{path}/*.root'")
        if not stat.S_ISREG(mode):  # a pipe would wait for ever for who writes into it
            problem = f"'{path}' is no regular file (a pipe, socket or device)"
            raise DataFileError(problem, where=path, fix=f"ls -l {in_shell(path)}", code="XT-DATA-NOT-ROOT")
        with open(path, "rb") as stream:
            head = stream.read(64)
    except FileNotFoundError as error:
        raise missing_file(path) from error
    except OSError as error:
        raise DataFileError(
            f"cannot read '{path}': {error.strerror}", where=path, fix=f"ls -l {in_shell(path)}"
        ) from error
    if size == 0:
        raise DataFileError(f"'{path}' is empty (0 bytes)", where=path, fix=COPY_AGAIN, code="XT-DATA-EMPTY")
    if not is_root(head):
        problem = f"'{path}' is not a ROOT file: {what_it_is(head)}"
        if is_list_file(path):
            fix = f"{in_shell(f'@{path}')}   # a list of files is given so"
            raise MisnamedInput(problem, where=path, fix=fix, code="XT-DATA-NOT-ROOT")
        raise DataFileError(problem, where=path, fix=remedy(path, head), code="XT-DATA-NOT-ROOT")
    end = _recorded_end(head)
    if end > size:
        problem = f"'{path}' is truncated: its header says {end} bytes, the file has {size}"
        raise DataFileError(problem, where=path, fix=COPY_AGAIN, code="XT-DATA-TRUNCATED")
    if end <= 0:
        problem = f"'{path}' is damaged: its header names no end of the file; zeros there are an interrupted copy"
        raise DataFileError(problem, where=path, fix=COPY_AGAIN, code="XT-DATA-DAMAGED")


def _recorded_end(head: bytes) -> int:
    """Return the file's end (fEND) from a TFile header; 0 where the header itself is cut."""
    if len(head) < 20:
        return len(head) + 1
    (version,) = struct.unpack_from(">i", head, 4)
    return int(struct.unpack_from(">q" if version >= 1_000_000 else ">i", head, 12)[0])


def _missing_package(path: str, error: ImportError) -> DataFileError:
    package = "fsspec-xrootd" if path.startswith("root") else (error.name or "aiohttp")
    problem = f"cannot open '{path}': the package that reads this kind of url is not installed ({error})"
    return DataFileError(problem, where=path, fix=f"pip install {package}")


def cannot_open(path: str, tree_name: str, error: BaseException) -> DataFileError:
    """Return the error for a file whose directory or tree cannot be read, or a url that cannot be reached."""
    if is_remote(path) and isinstance(error, (OSError, *client_errors())):
        return DataFileError(
            f"cannot open '{path}': {reason_of(error)}", where=path, fix="check the url and your credentials"
        )
    return unreadable(path, tree_name, error)


def _missing_tree(path: str, tree_name: str, classes: dict[str, str], directory: Any, in_path: bool) -> DataFileError:
    trees = [name for name, kind in classes.items() if "TTree" in kind or "TNtuple" in kind or "RNTuple" in kind]
    there = f"trees there: {listed(trees)}" if trees else f"objects there: {listed(classes) or 'none'}"
    near = nearest(tree_name, trees, count=1)
    best = next(iter(near), "") or likely_tree(directory, trees, open_errors())
    name, fix = input_name(path, best), f"--set {in_shell(f'data.tree_name={best}')}"
    if name != path:  # it takes a tree after it
        fix = in_shell(name) if in_path else f"{fix}   # or of this file alone: {in_shell(name)}"
    kind = MisnamedInput if trees and not in_path else DataFileError
    return kind(
        f"'{path}' has no tree '{tree_name}' ({there})" + (f"; did you mean '{best}'?" if near else ""),
        where=input_name(path, tree_name),
        fix=fix if trees else "name a file that holds a tree",
        code="XT-DATA-TREE",
    )
