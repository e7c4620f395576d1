"""Checkpoints that are there, for who named one that is not."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xectool.config.document import CONFIG_FILE
from xectool.errors import nearest
from xectool.errors.run_names import RUN_NAME_PATTERN

if TYPE_CHECKING:
    from xectool.config.root import RunConfig

ENDINGS: Final = (".pt", ".pth", ".safetensors")
_EXPORTS: Final = (".onnx", ".torchscript", ".pt2")  # looked for where one is meant
SHOWN: Final = 4
_KIND: Final = re.compile(r"^kind: (?P<kind>\w+)\s*$", re.MULTILINE)
_MOST_DIRECTORIES: Final = 500  # beside each of the directories a path goes through


def checkpoints_near(
    path: Path, *, also: Sequence[Path] = (), fits: Callable[[Path], bool] = lambda path: True
) -> list[Path]:
    """Return up to four checkpoints that exist near a place where none does, the likeliest first.

    That is the one whose name was mistyped; then what the same directory holds. Where no name is near, they are
    followed by those of the runs beside it, of those beside the directory above, and of ``also``; the newest of each
    first. What is not called as a checkpoint is not looked for in other directories.

    Args:
        path: A file that does not exist.
        also: Further directories of runs.
        fits: Whether one can be used.
    """
    endings = (*ENDINGS, path.suffix) if path.suffix in _EXPORTS else ENDINGS
    likely = list(filter(fits, _mistyped(path, endings)))
    same = _newest_first(path.parent / name for name in _names(path.parent, endings))
    elsewhere = iter(()) if likely else _of_runs(path, also)
    return list(itertools.islice(filter(fits, _once(itertools.chain(likely, same, elsewhere))), SHOWN))


def may_be_resumed(path: Path, kind: str = "") -> bool:
    """Return whether a file may hold a place in a run, by its name: bare weights hold none.

    Args:
        path: The file.
        kind: Of network; the configuration beside a checkpoint tells one of another kind.
    """
    return path.suffix in (".pt", ".pth") and (not kind or may_be_of_kind(path, kind))


def may_be_of_kind(path: Path, kind: str) -> bool:
    """Return whether a file may be a checkpoint of a kind of network: the configuration beside it tells another one."""
    return os.path.isfile(path) and _kind_beside(path) in ("", kind)


def resumable(config: RunConfig) -> Callable[[Path], bool]:
    """Return whether a run of a configuration may go on from a file: only from its own where its directory has some."""
    own = own_directory(config)
    names = [] if own is None or config.checkpoint.overwrite else _names(own, (".pt",))
    held = any(name.startswith("checkpoint_") for name in names)

    def fits(path: Path) -> bool:
        is_own = own is not None and os.path.realpath(path.parent) == os.path.realpath(own)
        return may_be_resumed(path, config.kind) and (is_own or not held)

    return fits


def own_directory(config: RunConfig) -> Path | None:
    """Return the directory of the run that a configuration names; None where it names none, or by what is no name."""
    name = config.mlflow.run_name or ""
    return Path(config.checkpoint.save_dir).expanduser() / name if RUN_NAME_PATTERN.match(name) else None


def _kind_beside(path: Path) -> str:
    """Return the kind of the run that a checkpoint lies in; an empty one where nothing tells it."""
    with suppress(OSError, ValueError):
        found = _KIND.search(path.with_name(CONFIG_FILE).read_text("utf-8"))
        return found["kind"] if found else ""
    return ""


def hint_of(path: Path, found: Sequence[Path]) -> str:
    """Return the question whether the first found was meant, where its name, or that of its run, is nearly the same."""
    if not found or found[0] not in _mistyped(path, (found[0].suffix,)):
        return ""
    return f", did you mean '{found[0].name if found[0].parent == path.parent else found[0]}'?"


def alternatives(found: Sequence[Path]) -> str:
    """Return the remark that names what else there is, behind a line with the first."""
    return f"   # or {', '.join(map(str, found[1:]))}" if found[1:] else ""


def _of_runs(path: Path, also: Sequence[Path]) -> Iterator[Path]:
    """Yield the checkpoints in and one level below the directories a path goes through."""
    above = [place for place in list(path.parents)[:3] if str(place) != place.anchor]
    for place in (*above, *also):
        within = [place, *_directories(place)]
        yield from _newest_first(run / name for run in within for name in _names(run, ENDINGS) if _is_ours(name))


def _is_ours(name: str) -> bool:
    return name.startswith("checkpoint")


def _mistyped(path: Path, endings: tuple[str, ...]) -> list[Path]:
    """Return the files of the same directory with nearly the name, or of that name in a directory of nearly the name.

    Another number is another file.
    """
    near = nearest(path.name, _names(path.parent, endings))
    beside = [path.with_name(name) for name in near if path.stem == Path(name).stem or _letters(name) != _letters(path)]
    place = path.parent
    runs = [] if os.path.isdir(place) else nearest(place.name, [run.name for run in _directories(place.parent)])
    return beside + [
        place.with_name(name) / path.name for name in runs if os.path.isfile(place.with_name(name) / path.name)
    ]


def _letters(name: str | Path) -> str:
    return re.sub(r"\d+", "0", Path(name).stem)


def _names(place: Path, endings: tuple[str, ...]) -> list[str]:
    return [name for name, is_directory in _entries(place) if not is_directory and name.endswith(endings)]


def _directories(place: Path) -> list[Path]:
    found = [place / name for name, is_directory in _entries(place) if is_directory and not name.startswith(".")]
    return _newest_first(found)[:_MOST_DIRECTORIES]


def _entries(place: Path) -> list[tuple[str, bool]]:
    """Return the names in a directory, and which are directories; nothing where it is none, or closed to others."""
    try:
        with os.scandir(place) as entries:
            return [(entry.name, entry.is_dir()) for entry in entries]
    except OSError:
        return []


def _newest_first(paths: Iterator[Path] | Sequence[Path]) -> list[Path]:
    """Return paths by their time; one that went away meanwhile, as a run replaces its files, is left out."""
    dated = [(_changed_ns(path), path) for path in paths]
    return [path for time_ns, path in sorted(dated, key=lambda item: (-item[0], str(item[1]))) if time_ns >= 0]


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


def _once(paths: Iterator[Path]) -> Iterator[Path]:
    seen = set[str]()
    for path in paths:
        place = os.path.realpath(path)
        if place not in seen:
            seen.add(place)
            yield path
