"""Finds and opens ROOT files; each failure names the file, the tree and what is there instead."""

from __future__ import annotations

import glob
import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import uproot

from xectool.errors import DataFileError, in_shell, listed, nearest
from xectool.rootio.inflate import INFLATE_ERRORS, require_bounded
from xectool.rootio.list_files import read_list
from xectool.rootio.missing import likely_tree, missing_file
from xectool.rootio.source import client_errors
from xectool.rootio.strangers import not_a_chain, reason_of, require_released, unreadable, what_it_is
from xectool.rootio.unmapped import local_handler

# A tree in a directory of the file has a slash; what ends in .root, or has an empty part, is a path and no tree.
_TREE_SUFFIX = re.compile(r"^(?P<file>.+\.root):(?P<tree>(?!/)(?!.*//)(?!.*\.root$)[^:\\]+)$")
_REMOTE = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_COPY_AGAIN = "copy the file again and compare its checksum, or take it out of the list"

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


def is_remote(path: str) -> bool:
    """Say whether a path is a url.

    >>> is_remote("root://server//store/a.root"), is_remote("/data/a.root")
    (True, False)
    """
    return _REMOTE.match(path) is not None


def split_tree(path: str, default_tree: str = "tree") -> tuple[str, str]:
    """Split ``file.root:tree`` into file and tree.

    >>> split_tree("/data/a.root:events")
    ('/data/a.root', 'events')
    >>> split_tree("a.root:sub/events")
    ('a.root', 'sub/events')
    >>> split_tree("root://server:1094//store/a.root")
    ('root://server:1094//store/a.root', 'tree')
    """
    found = _TREE_SUFFIX.match(path)
    return (found["file"], found["tree"]) if found else (path, default_tree)


def expand_inputs(spec: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    """Return the files that ``spec`` names, in a stable order, each once.

    Args:
        spec: A file, a glob, a directory (its ``*.root``, sorted), a list file ``@files.txt`` (one input a line,
            ``#`` starts a comment, relative to the list), a url, or a sequence of these. A suffix ``:tree`` is kept.

    Raises:
        DataFileError: Nothing is there; the message names what was looked for and the nearest names.
    """
    parts = [os.fspath(spec)] if isinstance(spec, str | os.PathLike) else [os.fspath(part) for part in spec]
    if not parts or not any(part.strip() for part in parts):
        raise DataFileError("no input file is given", fix="data.train_path: /path/to/files/*.root")
    found = [path for part in parts for path in _expand_one(part)]
    return list(dict.fromkeys(found))


def _expand_one(part: str, lists: tuple[Path, ...] = ()) -> list[str]:
    if part.startswith("@"):
        return _expand_list(Path(os.path.expanduser(part[1:])), lists)
    if is_remote(part):
        return [part]
    path, tree = split_tree(part, "")
    path = os.path.expanduser(path)
    suffix = f":{tree}" if tree else ""
    if os.path.isdir(path):
        return [str(file) + suffix for file in _directory_files(Path(path))]
    if os.path.exists(path):
        return [path + suffix]
    if glob.has_magic(path):
        matches = sorted(glob.glob(path, recursive=True))
        if not matches:
            raise DataFileError(
                f"no file matches '{path}'", where=path, fix=f"ls {in_shell(os.path.dirname(path) or '.')}"
            )
        return [match + suffix for match in matches]
    raise missing_file(path)


def input_paths(spec: str | Iterable[str], lists: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the local files that reading ``spec`` opens: files and lists it names, itself named by ``lists``.

    Raises:
        DataFileError: Nothing is there, or a list is no list.
    """
    for part in [spec] if isinstance(spec, str) else spec:
        if part.startswith("@"):
            list_path = Path(os.path.expanduser(part[1:]))
            yield list_path
            yield from input_paths(_entries(list_path, lists), (*lists, list_path.resolve()))
        elif urlsplit(part).scheme == "file":
            yield Path(unquote(urlsplit(split_tree(part)[0]).path))
        elif not is_remote(part):
            yield from (Path(split_tree(path, "")[0]) for path in _expand_one(part))


def _expand_list(list_path: Path, lists: tuple[Path, ...]) -> list[str]:
    within = (*lists, list_path.resolve())
    found = [path for entry in _entries(list_path, lists) for path in _expand_one(entry, within)]
    if not found:
        raise DataFileError(f"the list file '{list_path}' names no file", where=str(list_path), fix="one path a line")
    return found


def _entries(list_path: Path, lists: tuple[Path, ...]) -> list[str]:
    """Return what the lines of a list file name; relative paths are relative to it."""
    if not os.path.isfile(list_path):  # Path.is_file raises for a name that is too long
        raise missing_file(str(list_path), kind="list file")
    entries = read_list(list_path, lists)
    return [str(list_path.parent / entry) if _is_relative(entry) else entry for entry in entries]


def _is_relative(entry: str) -> bool:
    return not (is_remote(entry) or os.path.isabs(entry) or entry.startswith(("~", "@")))


def _directory_files(directory: Path) -> list[Path]:
    files = sorted(directory.glob("*.root"))
    if not files:
        others = ", ".join(sorted(entry.name for entry in directory.iterdir())[:5]) or "nothing"
        raise DataFileError(
            f"the directory '{directory}' holds no *.root file (it holds {others})",
            where=str(directory),
            fix=f"'{directory}/**/*.root' looks into its subdirectories",
        )
    return files


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
        raise DataFileError(f"'{path}' is empty (0 bytes)", where=path, fix=_COPY_AGAIN, code="XT-DATA-EMPTY")
    if not head.startswith(b"root"):
        problem = f"'{path}' is not a ROOT file: {what_it_is(head)}"
        raise DataFileError(problem, where=path, fix=_COPY_AGAIN, code="XT-DATA-NOT-ROOT")
    end = _recorded_end(head)
    if end > size:
        problem = f"'{path}' is truncated: its header says {end} bytes, the file has {size}"
        raise DataFileError(problem, where=path, fix=_COPY_AGAIN, code="XT-DATA-TRUNCATED")
    if end <= 0:
        problem = f"'{path}' is damaged: its header names no end of the file; zeros there are an interrupted copy"
        raise DataFileError(problem, where=path, fix=_COPY_AGAIN, code="XT-DATA-DAMAGED")


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
    named, by_key = in_shell(f"{path}:{best}"), f"--set {in_shell(f'data.tree_name={best}')}"
    if not in_path:  # a name without .root takes no tree after it
        takes_tree = split_tree(f"{path}:{best}") == (path, best)
        named = f"{by_key}   # or of this file alone: {named}" if takes_tree else by_key
    return DataFileError(
        f"'{path}' has no tree '{tree_name}' ({there})" + (f"; did you mean '{best}'?" if near else ""),
        where=f"{path}:{tree_name}",
        fix=named if trees else "name a file that holds a tree",
        code="XT-DATA-TREE",
    )
