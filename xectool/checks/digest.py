"""Hashes of a file and of each of its baskets, written beside it once and compared later.

They find what the file format cannot: a flipped bit in a plain or ZSTD basket or page that leaves a plausible number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import xxhash

from xectool.checks.facts import FileFacts, Trouble
from xectool.config.inputs import input_name, split_tree
from xectool.errors import DiskError, counted, in_shell, listed
from xectool.rootio.recorded import sidecar
from xectool.rootio.source import LocalSource

_FORMAT: Final = "xectool-digest-2"
_OF_ONE_TREE: Final = "xectool-digest-1"  # before two trees of a file were told apart
_CHUNK_BYTES: Final = 8 * 1024 * 1024
_COPY: Final = "copy the file again from where it was made, or take it out of the list"
_MOST_TOLD: Final = 16  # branches of one file, each with its entries


def write_digest(facts: FileFacts, advanced: Callable[[int], None] = lambda _: None) -> Path:
    """Write the hashes of a file and of its baskets beside it; returns their place.

    What is recorded of its other trees stays, if the file is still the one that was recorded.

    Raises:
        DiskError: The place cannot be written.
    """
    place, source = sidecar(facts.path), LocalSource(facts.path)
    units: dict[str, list[list[Any]]] = {}
    try:
        for branch in facts.branches.values():
            rows = zip(*(column.tolist() for column in _columns(branch.units)), strict=True)
            units[branch.name] = [[*row, xxhash.xxh3_64_hexdigest(source.read(row[2], row[3]))] for row in rows]
    finally:
        source.close()
    digest = _file_hash(facts.path, advanced)
    before = _read(place) if place.is_file() else None
    others = before["trees"] if before is not None and before["xxh3_128"] == digest else {}
    content = {
        "format": _FORMAT,
        "size_bytes": facts.size_bytes,
        "xxh3_128": digest,
        "columns": ["start", "stop", "offset", "num_bytes", "xxh3_64"],
        "trees": others | {facts.tree: units},
    }
    try:
        part = place.with_name(place.name + ".part")
        part.write_text(json.dumps(content), encoding="utf-8")
        os.replace(part, place)
    except OSError as error:
        raise DiskError(
            f"cannot write '{place}': {error.strerror}",
            where=str(place),
            fix=f"ls -ld {in_shell(place.parent)}",
        ) from (error)
    return place


def verify_digest(name: str, advanced: Callable[[int], None] = lambda _: None) -> list[Trouble]:
    """Compare a file with the hashes beside it; names what changed. Empty where there are none.

    Args:
        name: The file, as an input is named.
        advanced: Told of the bytes that were read.
    """
    path = split_tree(name)[0]
    place = sidecar(path)
    if not place.is_file() or not os.path.isfile(path):
        return []
    recorded = _read(place)
    if recorded is None:
        problem = f"the recorded hashes in '{place}' cannot be read"
        again = f"xectool check-data {in_shell(name)} --write-digest"
        return [Trouble("DAT-02", "XT-DATA-DIGEST", problem, str(place), again)]
    size = os.path.getsize(path)
    if size == recorded["size_bytes"] and _file_hash(path, advanced) == recorded["xxh3_128"]:
        return []
    anew = f"rm {in_shell(place)} && xectool check-data {in_shell(name)} --deep --write-digest"
    fix = f"{_COPY}; where it was written anew on purpose: {anew}"
    return [replace(trouble, fix=fix) for trouble in _changed(path, recorded, size)]


def _changed(path: str, recorded: dict[str, Any], size: int) -> list[Trouble]:
    """Return what changed: the baskets of one branch, or one trouble that names all branches, or what is around."""
    changed = _changed_units(path, recorded, size)
    if len(changed) > 1:
        return [_branches_trouble(path, recorded["trees"], changed)]
    if changed:
        return [_unit_trouble(path, *name, row) for name, rows in changed.items() for row in rows]
    problem = f"'{path}' changed outside of its baskets since its hashes were recorded: in its directory or tree header"
    evidence = (f"{size} bytes now, {recorded['size_bytes']} then",)
    return [Trouble("DAT-02", "XT-DATA-DIGEST", problem, path, evidence=evidence)]


def _changed_units(path: str, recorded: dict[str, Any], size: int) -> dict[tuple[str, str], list[Any]]:
    """Return what was recorded of the baskets that changed, by tree and branch."""
    source, changed = LocalSource(path), dict[tuple[str, str], list[Any]]()
    try:
        for name, row in _rows(recorded["trees"]):
            if not _is_same(source, row, size):
                changed.setdefault(name, []).append(row)
    finally:
        source.close()
    return changed


def _rows(trees: dict[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield tree and branch of every basket, and what is recorded of it."""
    for tree, branches in trees.items():
        for branch, units in branches.items():
            yield from (((tree, branch), row) for row in units)


def _is_same(source: LocalSource, row: list[Any], size: int) -> bool:
    _, _, offset, num_bytes, expected = row
    return bool(offset + num_bytes <= size and xxhash.xxh3_64_hexdigest(source.read(offset, num_bytes)) == expected)


def _unit_trouble(path: str, tree: str, branch: str, row: list[Any]) -> Trouble:
    start, stop, offset, num_bytes, expected = row
    problem = f"'{path}' changed since its hashes were recorded: branch '{branch}', entries {start} to {stop}"
    where = f"{input_name(path, tree)} branch {branch} entries [{start}, {stop})"
    evidence = (f"{num_bytes} bytes from {offset}, recorded hash {expected}",)
    return Trouble("DAT-02", "XT-DATA-DIGEST", problem, where, evidence=evidence)


def _branches_trouble(path: str, trees: dict[str, Any], changed: dict[tuple[str, str], list[Any]]) -> Trouble:
    own = {tree for tree, _ in changed}
    where = input_name(path, *own) if len(own) == 1 else path
    named = [branch if len(own) == 1 else f"{tree} {branch}" for tree, branch in changed]
    evidence = [
        f"{name}: {len(rows)} of {len(trees[tree][branch])} baskets or pages, "
        f"of entries {min(row[0] for row in rows)} to {max(row[1] for row in rows)}"
        for name, ((tree, branch), rows) in zip(named, changed.items(), strict=True)
    ]
    more = [f"and {len(named) - _MOST_TOLD} more"] if len(named) > _MOST_TOLD else []
    said = f"{counted(len(named), 'branch')}: {listed(named)}"
    problem = f"'{path}' changed since its hashes were recorded, in {said}"
    return Trouble("DAT-02", "XT-DATA-DIGEST", problem, where, evidence=(*evidence[:_MOST_TOLD], *more))


def _columns(units: Any) -> tuple[Any, ...]:
    return units.start, units.stop, units.offset, units.num_bytes


def _read(place: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if isinstance(content, dict) and content.get("format") == _OF_ONE_TREE:
        content |= {"format": _FORMAT, "trees": {str(content.get("tree")): content.get("units")}}
    return content if isinstance(content, dict) and content.get("format") == _FORMAT and _is_whole(content) else None


def _is_whole(content: dict[str, Any]) -> bool:
    """Say whether every number and hash is there; the file of hashes can be damaged like any other."""
    trees = content.get("trees")
    if not (isinstance(content.get("size_bytes"), int) and isinstance(trees, dict) and "xxh3_128" in content):
        return False
    branches = [units for tree in trees.values() for units in (tree.values() if isinstance(tree, dict) else [None])]
    return all(isinstance(units, list) and all(map(_is_row, units)) for units in branches)


def _is_row(row: Any) -> bool:
    if not (isinstance(row, list) and len(row) == 5 and isinstance(row[4], str)):
        return False
    return all(isinstance(number, int) and 0 <= number < 1 << 60 for number in row[:4])


def _file_hash(path: str, advanced: Callable[[int], None]) -> str:
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            hasher.update(chunk)
            advanced(len(chunk))
    return hasher.hexdigest()
