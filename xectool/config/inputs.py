"""What the paths of inputs stand for: files, globs, directories, lists, urls, each with its tree."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from xectool.config.list_files import list_entries, read_list
from xectool.errors import DataFileError, in_shell, nearest
from xectool.errors.misnamed import MisnamedFile, meant

Place = tuple[object, str]  # what two names of one tree of one file have in common

# A tree in a directory of the file has a slash; what ends in .root, or has an empty part, is a path and no tree.
_TREE_SUFFIX = re.compile(r"^(?P<file>.+\.root):(?P<tree>(?!/)(?!.*//)(?!.*\.root$)[^:\\]+)$")
_REMOTE = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


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


def input_name(path: str, tree: str) -> str:
    """Return a tree of a file as an input is named; the path alone where :func:`split_tree` reads no tree after it.

    >>> input_name("a.root", "sub/events"), input_name("a.dat", "events")
    ('a.root:sub/events', 'a.dat')
    """
    name = f"{path}:{tree}"
    return name if split_tree(name, "") == (path, tree) else path


def free_name(stem: str, suffix: str) -> str:
    """Return a name that nothing here has: what is written to a link that leads nowhere yet goes where that leads."""
    numbers = itertools.chain([""], itertools.count(2))
    return next(name for number in numbers if not os.path.lexists(name := f"{stem}{number}{suffix}"))


def place_of(path: str, tree: str) -> Place:
    """Return what two names of the same tree of the same file have in common; links are followed.

    A file may hold a tree for each sample, so a file alone is not the identity of an event.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # a url, or not there
        return path, tree
    return (status.st_dev, status.st_ino), tree


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
    return list(dict.fromkeys(f"./{path}" if path.startswith("-") else path for path in found))  # else an option


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
            entries = _entries(list_path, lists)
            with _named_by(list_path):
                yield from input_paths(entries, (*lists, list_path.resolve()))
        elif urlsplit(part).scheme == "file":
            yield Path(unquote(urlsplit(split_tree(part)[0]).path))
        elif not is_remote(part):
            yield from (Path(split_tree(path, "")[0]) for path in _expand_one(part))


def _expand_list(list_path: Path, lists: tuple[Path, ...]) -> list[str]:
    within = (*lists, list_path.resolve())
    found: list[str] = []
    for entry in _entries(list_path, lists):
        with _named_by(list_path):
            found += _expand_one(entry, within)
    if not found:
        raise DataFileError(f"the list file '{list_path}' names no file", where=str(list_path), fix="one path a line")
    return found


@contextmanager
def _named_by(list_path: Path) -> Iterator[None]:
    """Say of what is not there which list named it."""
    try:
        yield
    except DataFileError as error:
        problem = f"{error.problem} (named by the list '{list_path}')"
        raise DataFileError(problem, where=error.where, fix=error.fix, code=error.code) from error


def _entries(list_path: Path, lists: tuple[Path, ...]) -> list[str]:
    """Return what the lines of a list file name; relative paths are relative to it."""
    if not os.path.isfile(list_path):  # Path.is_file raises for a name that is too long
        raise missing_file(str(list_path), kind="list file")
    entries = read_list(list_path, lists)
    return [str(list_path.parent / entry) if _is_relative(entry) else entry for entry in entries]


def is_list(lines: Iterable[str], folder: Path) -> bool:
    """Say whether lines are those of a list file in ``folder``: each that is no comment names an input."""
    entries = list_entries(lines)
    return bool(entries) and all(_is_input(entry, folder) for entry in entries)


def _is_input(entry: str, folder: Path) -> bool:
    if is_remote(entry) or entry.startswith("@") or split_tree(entry)[0].endswith(".root"):
        return True
    path = os.path.expanduser(entry)
    return os.path.exists(folder / path) or (glob.has_magic(path) and any(glob.iglob(str(folder / path))))


def _is_relative(entry: str) -> bool:
    return not (is_remote(entry) or os.path.isabs(entry) or entry.startswith(("~", "@")))


def _directory_files(directory: Path) -> list[Path]:
    files = sorted(directory.glob("*.root"))
    if not files:
        try:
            names = sorted(os.listdir(directory))
        except OSError as error:
            problem = f"the directory '{directory}' cannot be listed: {error.strerror}"
            raise DataFileError(problem, where=str(directory), fix=f"chmod u+rx {in_shell(directory)}") from error
        others = ", ".join(names[:5]) or "nothing"
        raise DataFileError(
            f"the directory '{directory}' holds no *.root file (it holds {others})",
            where=str(directory),
            fix=f"'{directory}/**/*.root' looks into its subdirectories",
        )
    return files


def missing_file(path: str, kind: str = "file") -> DataFileError:
    """Return the error for a path that is not there, with the nearest names beside it."""
    parent, problem = Path(path).parent, f"{kind} '{path}' does not exist"
    if several := several_in_one(path):
        each = " ".join(map(in_shell, several))
        return DataFileError(f"{problem}: it is read as one name", where=path, fix=f"give each as a word: {each}")
    if os.path.islink(path):
        return DataFileError(f"{problem}: it links to '{os.readlink(path)}'", where=path, fix=f"ls -l {in_shell(path)}")
    if not os.path.isdir(parent):
        return DataFileError(
            f"{problem}: there is no directory '{parent}'", where=path, fix=f"ls {in_shell(parent.parent)}"
        )
    names: list[str] = []
    with suppress(OSError):  # it may not be listed
        names = sorted(os.listdir(parent))
    if close := nearest(Path(path).name, names):
        return meant(MisnamedFile, problem, path, close)
    return DataFileError(problem, where=path, fix=f"ls {in_shell(parent)}")


def several_in_one(spec: str) -> list[str]:
    """Return the inputs that stand in one text with commas, semicolons or spaces between; none where none is there.

    A space belongs to many a name: where nothing else separates them, all of them are there.
    """
    parts = [part for part in re.split(r"[,;\s]+", spec) if part]
    there = [part for part in parts if present_inputs(part)] if len(parts) > 1 else []
    return parts if there and (re.search("[,;]", spec) or there == parts) else []


def present_inputs(paths: str | Sequence[str]) -> list[str]:
    """Return the files and urls that paths stand for, without those that stand for none."""
    found = list[str]()
    for spec in filter(None, [paths] if isinstance(paths, str) else paths):
        with suppress(DataFileError):
            found += expand_inputs(spec)
    return list(dict.fromkeys(found))
