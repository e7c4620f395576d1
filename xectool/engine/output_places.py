"""Where a command writes: refused before any work where it would replace what it reads, or nothing can be written.

An earlier result of the same kind is replaced, as compilers and simulations do, and an empty file; nothing else is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from xectool.checkpoint import store
from xectool.config.inputs import input_paths
from xectool.config.save_places import said_of
from xectool.data.dead_channel_maps import file_of_origin
from xectool.engine.earlier_results import in_the_way
from xectool.errors import DiskError, UsageError, in_shell

_LONGEST_NAME: Final = 255
_LONGEST_PATH: Final = 4095
"""What Linux takes, in bytes."""
_LARGEST_PID: Final = 4194304
"""Of Linux: a name is refused or taken whatever process is told it."""
_SHORTENED: Final = 40


def files_read(
    models: Iterable[str | Path], data: str | Iterable[str], weights: str = "auto", dead: str | None = None
) -> list[Path]:
    """Return the local files that a command reads.

    Args:
        models: Checkpoints and exported files; what belongs to them counts too.
        data: ROOT files, globs, directories, ``@list`` files or urls; lists count too.
        weights: ``best`` reads the best checkpoint of the run instead.
        dead: Origin of dead channels.

    Raises:
        DataFileError: A path names nothing.
    """
    found = [Path(os.path.expanduser(model)) for model in models]
    beside = [path.parent / f"{path.name}.data" for path in found]
    best = [path.parent / store.BEST_NAME for path in found if weights == "best"]
    listed = file_of_origin(dead)
    return [*found, *beside, *best, *input_paths(data), *([] if listed is None else [listed])]


def require_file_place(
    place: str | Path, option: str, name: str, inputs: Iterable[Path] = (), kind: str | None = None
) -> Path:
    """Return the file to write, which is none of the files that are read, and whose folder can be written.

    Args:
        place: As the user named it.
        option: Option that names it.
        name: A name for it, where a directory is given.
        inputs: What is read.
        kind: Of result, as `in_the_way` takes it; None takes the suffix of the name.

    Raises:
        UsageError: It is a directory, a device, an input or anything but an earlier result of the same kind, its name
            is too long, or a file stands where its folder should be.
        DiskError: Its folder cannot be written.
    """
    target = Path(os.path.expanduser(place))
    _require_short(target, option, name)
    if target.is_dir():
        raise UsageError(
            f"'{target}' is a directory, not a file to write", where=option, fix=_option(option, target / name)
        )
    # /dev/stdout is a link to what the output goes to: the link itself would be replaced
    descriptor = os.path.islink(target) and os.readlink(target).startswith("/proc/")
    if descriptor or (os.path.exists(target) and not target.is_file()):
        problem = f"'{target}' is no regular file (a pipe, socket or device)"
        raise UsageError(problem, where=option, fix=_option(option, Path(name)))
    own = next(_own_inputs(target, inputs), None)
    if own is not None:
        another = target.with_name(f"{target.stem}_written{Path(name).suffix}")
        raise UsageError(f"the output would replace its own input, {own}", where=option, fix=_option(option, another))
    require_replaceable(target, option, Path(name).suffix, kind)
    require_folder(target.parent, option, target.name)
    return target


def require_replaceable(target: Path, option: str, suffix: str, kind: str | None = None) -> None:
    """Refuse a file that is no earlier result of the same kind.

    Raises:
        UsageError: It is none.
    """
    kept = in_the_way(target, suffix if kind is None else kind)
    if kept:
        another = target.with_name(f"{target.stem}_written{suffix}")
        problem = f"the output would replace {kept}, {target}"
        raise UsageError(problem, where=option, fix=f"{_option(option, another)}   # or move that file away")


def require_folder(place: str | Path, option: str, name: str = "plots") -> Path:
    """Return the folder to write into, in which a file could be made; nothing is left there.

    Raises:
        UsageError: It is a file, or lies below one.
        DiskError: It cannot be written.
    """
    folder = Path(os.path.expanduser(place))
    _require_short(folder / name, option, name)
    absolute = folder.absolute()
    standing = next(path for path in (absolute, *absolute.parents) if os.path.exists(path))
    if not standing.is_dir():
        problem = f"'{folder}' cannot hold files: {standing} is a file, not a directory"
        raise UsageError(problem, where=option, fix=_option(option, standing.parent / name))
    try:
        with tempfile.TemporaryFile(dir=standing):
            return folder
    except OSError as error:
        raise DiskError(
            f"nothing can be written to '{folder}': {said_of(error)}",
            where=f"{option} {folder}",
            fix=f"{_option(option, Path(name))}   # in the working directory, or another place that can be written",
        ) from error


def _require_short(path: Path, option: str, instead: str) -> None:
    """Refuse a name that no file system takes, with that of the unfinished file beside it."""
    if "\0" in str(path):
        raise UsageError(
            "no file can have a zero byte in its name",
            where=option,
            fix=_option(option, Path(instead.replace("\0", ""))),
        )
    beside = (path.parent / f".{path.name}.{_LARGEST_PID}.part").absolute()
    long = next((part for part in beside.parts if len(os.fsencode(part)) > _LONGEST_NAME), "")
    if long or len(os.fsencode(beside)) > _LONGEST_PATH:
        size = f"'{long[:24]}…' has {len(os.fsencode(long))} bytes" if long else "the path is beyond 4095 bytes"
        problem = f"the name is too long for a file system: {size}; {_LONGEST_NAME} are possible with '.part' after it"
        shorter = Path(Path(instead).stem[:_SHORTENED] + Path(instead).suffix[:_SHORTENED])
        raise UsageError(problem, where=option, fix=_option(option, shorter))


def _own_inputs(target: Path, inputs: Iterable[Path]) -> Iterator[Path]:
    """Yield the inputs that the target is, under whatever name; it is written as ``.part`` first."""
    written = [path for path in (target, target.with_name(f"{target.name}.part")) if path.exists()]
    return (read for read in inputs if any(os.path.exists(read) and path.samefile(read) for path in written))


def _option(option: str, path: Path) -> str:
    return f"{option} {in_shell(path)}"
