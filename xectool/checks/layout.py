"""Where the baskets and pages of a tree lie in its file, by its metadata, checked against the size of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xectool.checks.facts import BranchFacts, Trouble, Units
from xectool.errors import DataFileError
from xectool.rootio.reader import EventFile

_COPY = "copy the file again and compare its checksum, or take it out of the list"
_CHECKSUM_BYTES = 8
_SHOWN = 5


def tree_branches(tree: Any, file: EventFile) -> dict[str, BranchFacts]:
    """Return all branches of a TTree; those without baskets of their own hold only other branches."""
    found = {}
    for name, branch in tree.iteritems(recursive=True):
        count = int(branch.num_baskets) - len(branch.embedded_baskets)
        offsets = np.asarray(branch.entry_offsets, np.int64)[: count + 1]
        sizes = np.asarray(branch.member("fBasketBytes"), np.int64)[:count]
        seeks = np.asarray(branch.member("fBasketSeek"), np.int64)[:count]
        dtype, width = _numbers(file, name)
        units = Units(offsets[:-1], offsets[1:], seeks, sizes, np.full(count, -1, np.int64))
        value_bytes = np.dtype(dtype).itemsize * (width or 0) if dtype and _is_plain(branch) else 0
        if name.rpartition("/")[2] == "fBits":  # of a TObject that others refer to, its process follows: 2 bytes more
            value_bytes = 0
        found[name] = BranchFacts(
            name, file.type_name(name), dtype, width, units,
            int(branch.compressed_bytes), int(branch.uncompressed_bytes), value_bytes,
        )  # fmt: skip
    return found


def ntuple_columns(ntuple: Any, file: EventFile) -> dict[str, BranchFacts]:
    """Return all fields of an RNTuple that are read by name, each with the pages of every column below it."""
    records = ntuple.field_records
    owner = _top_fields(records)
    pages: dict[int, list[tuple[int, ...]]] = {}
    for cluster, summary in enumerate(ntuple.cluster_summaries):
        first = int(summary.num_first_entry)
        stop = first + int(summary.num_entries)
        for index, column in enumerate(ntuple.page_link_list[cluster]):
            if not column.suppressed and index < len(ntuple.column_records):
                field = owner[int(ntuple.column_records[index].field_id)]
                bits = int(ntuple.column_records[index].nbits)
                pages.setdefault(field, []).extend(_pages(column.pages, first, stop, bits))
    found = {}
    for field in dict.fromkeys(owner.values()):
        name = str(records[field].field_name)
        rows = np.asarray(pages.get(field, []), np.int64).reshape(-1, 6)
        dtype, width = _numbers(file, name)
        found[name] = BranchFacts(
            name, str(records[field].type_name), dtype, width, Units(*(rows[:, column] for column in range(5))),
            int(rows[:, 3].sum()), int(rows[:, 4].sum()), 0, bool(len(rows) and rows[:, 5].all()),
        )  # fmt: skip
    return found


def _top_fields(records: Any) -> dict[int, int]:
    """Return for each field the outermost field it belongs to; a chain that leads in a circle ends where it started."""
    top = {}
    for index in range(len(records)):
        at, steps = index, 0
        while int(records[at].parent_field_id) != at and steps <= len(records):
            at, steps = int(records[at].parent_field_id), steps + 1
        top[index] = at
    return top


def _pages(pages: Any, first: int, stop: int, bits: int) -> Iterator[tuple[int, ...]]:
    total = sum(int(page.num_elements) for page in pages)
    per_entry, rest = divmod(total, max(stop - first, 1))
    done = 0
    for page in pages:
        count = int(page.num_elements)
        low, high = first, stop
        if per_entry and not rest:
            low, high = first + done // per_entry, min(stop, first + -(-(done + count) // per_entry))
        checked = bool(page.has_checksum)
        num_bytes = int(page.locator.num_bytes) + (_CHECKSUM_BYTES if checked else 0)
        yield low, high, int(page.locator.offset), num_bytes, -(-count * bits // 8), int(checked)
        done += count


def _numbers(file: EventFile, name: str) -> tuple[str, int | None]:
    try:
        column = file.column(name)
    except DataFileError:  # objects and strings have no numbers, and are checked as bytes only
        return "", None
    return column.dtype.name, column.width


def _is_plain(branch: Any) -> bool:
    return type(branch.interpretation).__name__ == "AsDtype"


def layout_troubles(where: str, branches: dict[str, BranchFacts], num_entries: int, size_bytes: int) -> list[Trouble]:
    """Return what is impossible in the layout: units outside of the file, entries that go backwards or are missing."""
    troubles = []
    for branch in branches.values():
        units = branch.units
        if not len(units):
            continue
        outside = (units.offset < 0) | (units.num_bytes <= 0) | (units.offset + units.num_bytes > size_bytes)
        disordered = (units.stop < units.start) | (units.start < 0) | (units.stop > num_entries)
        for bad, what in ((outside, "lies outside of the file"), (disordered, "has impossible entry numbers")):
            rows = np.flatnonzero(bad & ((units.num_bytes != 0) | (size_bytes > 0)))
            rows = rows if size_bytes else rows[:0]
            troubles += [_unit_trouble(where, branch, int(row), what, size_bytes) for row in rows[:_SHOWN]]
            if len(rows) > _SHOWN:
                troubles.append(_more(where, branch, len(rows) - _SHOWN, what))
    return troubles


def _unit_trouble(where: str, branch: BranchFacts, row: int, what: str, size_bytes: int) -> Trouble:
    units = branch.units
    start, stop = int(units.start[row]), int(units.stop[row])
    return Trouble(
        "DAT-02",
        "XT-DATA-DAMAGED",
        f"branch '{branch.name}': the basket or page of entries {start} to {stop} {what}",
        f"{where} branch {branch.name} entries [{start}, {stop})",
        _COPY,
        (f"offset {units.offset[row]}, {units.num_bytes[row]} bytes; the file has {size_bytes} bytes",),
    )


def _more(where: str, branch: BranchFacts, count: int, what: str) -> Trouble:
    problem = f"branch '{branch.name}': {count} further baskets or pages: each {what}"
    return Trouble("DAT-02", "XT-DATA-DAMAGED", problem, f"{where} branch {branch.name}", _COPY)
