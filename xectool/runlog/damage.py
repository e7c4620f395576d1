"""Which files of a run's record cannot be read, in whole or in part."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from xectool.errors import counted
from xectool.runlog.compact import PACKED_SUFFIX, PackedSegment
from xectool.runlog.json_lines import all_lines
from xectool.runlog.manifest import MANIFEST_FILE
from xectool.runlog.process import boot_id
from xectool.runlog.status_page import is_spoilt, read_page
from xectool.runlog.storage import LINES_FILE, attempt_dir, attempts, status_path


def record_damage(run_dir: Path) -> tuple[str, ...]:
    """Return what of a record is damaged, a line a file that begins with its path; empty of a sound or a live one.

    Of packed steps the descriptions are read, and the numbers of the last file of a rank: the rest takes long.
    """
    found = [text for number in attempts(run_dir) for text in _of_attempt(attempt_dir(run_dir, number))]
    return (*found, *_of_manifest(run_dir / MANIFEST_FILE))


def _of_attempt(directory: Path) -> Iterator[str]:
    pages = sorted(directory.glob("rank*.status"))
    spoilt = [page for page in pages if is_spoilt(page)]
    yield from (f"{page} is damaged: its words make no sense" for page in spoilt)
    first = read_page(status_path(directory), boot_id())
    if spoilt or (first is not None and first.phase == "done"):
        yield from _torn(directory / LINES_FILE)
    for path in sorted(directory.glob(f"*{LINES_FILE}")):
        if bad := all_lines(path).damaged:
            yield f"{path} is damaged: {counted(bad, 'line')} cannot be read"
    packed = sorted(directory.glob(f"rank*{PACKED_SUFFIX}"))
    last = {path.name.partition(".")[0]: path for path in packed}
    for path in packed:
        yield from _of_steps(path, whole=path in last.values())


def _of_steps(path: Path, whole: bool) -> Iterator[str]:
    try:
        segment = PackedSegment.open(path)
        if whole:
            segment.load(segment.first, segment.stop)
    except FileNotFoundError:
        return
    except ValueError as error:
        yield str(error)


def _torn(path: Path) -> Iterator[str]:
    """Yield that a file ends inside a line though its writer has ended, or that it is gone."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 1))
            if size and stream.read() == b"\n":
                return
    except OSError:
        yield f"{path} is gone or cannot be read"
        return
    yield f"{path} is cut: it ends inside a line, after {counted(size, 'byte')}" if size else f"{path} is empty"


def _of_manifest(path: Path) -> Iterator[str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        yield f"{path} is damaged: it is no JSON object"
