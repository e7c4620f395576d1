"""The words of a step record: rows of 64-bit numbers, described by names so that any version reads any other.

A row is: sequence number, integers, one word of flags, floats, the values of the named maps (losses, block norms),
words that tell which of those values are present, and a checksum. The fields follow from `StepRecord`; a file carries
their names, so a field added later is a new column, and a reader gives the default to one that a file does not have.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.runlog.records import StepRecord

Rows = npt.NDArray[np.int64]

_BY_TYPE: Final = {
    kind: tuple(item.name for item in fields(StepRecord) if item.type == kind) for kind in ("int", "bool", "float")
}
MAPS: Final = tuple(item.name for item in fields(StepRecord) if str(item.type).startswith("Mapping"))
_DEFAULTS: Final = {item.name: item.default for item in fields(StepRecord) if item.default is not MISSING}
_INT64: Final = (-(1 << 63), (1 << 63) - 1)
_MASK_BITS: Final = 63
WORD_BYTES: Final = 8


@dataclass(frozen=True)
class Layout:
    """Names of the words of a row.

    Attributes:
        ints: Integer fields.
        flags: Boolean fields, from the lowest bit.
        floats: Float fields.
        names: For each map, the names of its values.
    """

    ints: tuple[str, ...]
    flags: tuple[str, ...]
    floats: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, names: Mapping[str, Sequence[str]]) -> Layout:
        """Return the layout of this version for maps with the given names."""
        given = {key: tuple(names.get(key, ())) for key in MAPS}
        return cls(_BY_TYPE["int"], _BY_TYPE["bool"], _BY_TYPE["float"], given)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Layout:
        """Return the layout that a file describes.

        Raises:
            ValueError: The description is damaged.
        """
        try:
            names = {str(key): tuple(map(str, value)) for key, value in content["names"].items()}
            ints, flags, floats = (tuple(map(str, content[part])) for part in ("ints", "flags", "floats"))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no description of a segment: {error!r}") from error
        needed = {item.name for item in fields(StepRecord)} - _DEFAULTS.keys() - set(MAPS)
        if not needed <= {*ints, *flags, *floats}:
            raise ValueError(f"a segment without {', '.join(sorted(needed - {*ints, *flags, *floats}))}")
        return cls(ints, flags, floats, names)

    def to_json(self) -> dict[str, Any]:
        """Return the description for a file."""
        return {"ints": self.ints, "flags": self.flags, "floats": self.floats, "names": dict(self.names)}

    @cached_property
    def values(self) -> tuple[tuple[str, str], ...]:
        """Map and name of each value, in the order of the words."""
        return tuple((key, name) for key, names in self.names.items() for name in names)

    @cached_property
    def num_masks(self) -> int:
        """Words that tell which values are present."""
        return -(-len(self.values) // _MASK_BITS)

    @cached_property
    def num_words(self) -> int:
        """Words of a row."""
        return 1 + len(self.ints) + 1 + len(self.floats) + len(self.values) + self.num_masks + 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.num_words * WORD_BYTES

    @cached_property
    def first_float(self) -> int:
        """Place of the first float word; values follow the floats."""
        return 1 + len(self.ints) + 1

    def is_int(self, word: int) -> bool:
        """Return whether a word is an integer, not a float."""
        return word < self.first_float or word >= self.first_float + len(self.floats) + len(self.values)


class MissingWordError(Exception):
    """A layout has no word for a value of a record."""


class RowWriter:
    """Turns records into rows of one layout."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        body = f"={1 + len(layout.ints) + 1}q{len(layout.floats) + len(layout.values)}d{layout.num_masks}q"
        self._struct = struct.Struct(body)
        self._ints, self._flags, self._floats = (
            attrgetter(*part) for part in (layout.ints, layout.flags, layout.floats)
        )
        self._maps = attrgetter(*MAPS)
        self._names = tuple(layout.names[key] for key in MAPS)
        self._known = tuple(frozenset(names) for names in self._names)
        self._full = _mask_words([True] * len(layout.values), layout.num_masks)

    def row(self, record: StepRecord, seq: int) -> bytes:
        """Return the row of a record.

        Raises:
            MissingWordError: The layout has no word for one of its values.
        """
        flags = 0
        for bit, flag in enumerate(self._flags(record)):
            if flag:
                flags |= 1 << bit
        maps = self._maps(record)
        masks, values = self._full, [value for given in maps for value in given.values()]
        if tuple(map(tuple, maps)) != self._names:  # nearly every step has all names, in the order of the layout
            for given, known in zip(maps, self._known, strict=True):
                if given.keys() - known:
                    raise MissingWordError(f"no word for {', '.join(sorted(given.keys() - known))}")
            places = [(given, name) for given, names in zip(maps, self._names, strict=True) for name in names]
            values = [given.get(name, math.nan) for given, name in places]
            masks = _mask_words([name in given for given, name in places], self.layout.num_masks)
        ints, floats = self._ints(record), self._floats(record)
        try:
            body = self._struct.pack(seq, *ints, flags, *floats, *values, *masks)
        except struct.error:  # an integer beyond 64 bits must not stop a training
            ints = tuple(min(max(int(value), _INT64[0]), _INT64[1]) for value in ints)
            body = self._struct.pack(seq, *ints, flags, *floats, *values, *masks)
        return body + zlib.crc32(body).to_bytes(WORD_BYTES, "little")


@dataclass(frozen=True)
class StepBlock:
    """Rows of one layout, in the order they were written.

    Attributes:
        layout: Names of the words.
        rows: The words, shape (n, words), int64; floats are the bits of a float64.
        damaged: Rows left out because their checksum is wrong.
    """

    layout: Layout
    rows: Rows
    damaged: int = 0

    @property
    def seqs(self) -> Rows:
        """Sequence numbers, shape (n,)."""
        return self.rows[:, 0]

    def select(self, chosen: Any) -> StepBlock:
        """Return some of the rows."""
        return StepBlock(self.layout, self.rows[chosen], self.damaged)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a field of all rows, shape (n,); its default where the file does not have it."""
        layout = self.layout
        if name in layout.ints:
            return self.rows[:, 1 + layout.ints.index(name)]
        if name in layout.floats:
            return self._floats(layout.first_float + layout.floats.index(name))
        if name in layout.flags:
            bits: npt.NDArray[Any] = (self.rows[:, layout.first_float - 1] >> layout.flags.index(name)) & 1
            return bits.astype(bool)
        return np.full(len(self.rows), _DEFAULTS[name])

    def values(self, key: str, name: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Return one value of a map and whether each row has it, both of shape (n,)."""
        if (key, name) not in self.layout.values:
            return np.full(len(self.rows), math.nan), np.zeros(len(self.rows), bool)
        place = self.layout.values.index((key, name))
        masks = self.rows[:, -1 - self.layout.num_masks + place // _MASK_BITS]
        return self._floats(self.layout.first_float + len(self.layout.floats) + place), (
            masks >> (place % _MASK_BITS)
        ) & 1 == 1

    def records(self) -> list[StepRecord]:
        """Return the rows as records."""
        columns: dict[str, list[Any]] = {
            item.name: self._dicts(item.name) if item.name in MAPS else self.column(item.name).tolist()
            for item in fields(StepRecord)
            if item.name not in MAPS or item.name in self.layout.names
        }
        return [StepRecord(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]

    def _dicts(self, key: str) -> list[dict[str, float]]:
        names = self.layout.names[key]
        found: list[dict[str, float]] = [{} for _ in range(len(self.rows))]
        for name in names:
            values, present = self.values(key, name)
            for target, value, has in zip(found, values.tolist(), present.tolist(), strict=True):
                if has:
                    target[name] = value
        return found

    def _floats(self, word: int) -> npt.NDArray[np.float64]:
        return self.rows[:, word].copy().view(np.float64)


def block_of(records: Sequence[StepRecord]) -> StepBlock:
    """Return records as rows, numbered from 0."""
    names = {key: dict.fromkeys(name for record in records for name in getattr(record, key)) for key in MAPS}
    layout = Layout.of({key: tuple(found) for key, found in names.items()})
    writer = RowWriter(layout)
    return checked_rows(layout, b"".join(writer.row(record, seq) for seq, record in enumerate(records)))


def checked_rows(layout: Layout, content: bytes) -> StepBlock:
    """Return the rows in ``content``, without those whose checksum is wrong."""
    size = layout.row_bytes
    count = len(content) // size
    view = memoryview(content)
    rows = np.frombuffer(content, "<i8", count * layout.num_words).reshape(count, layout.num_words)
    sums = [zlib.crc32(view[index * size : (index + 1) * size - WORD_BYTES]) for index in range(count)]
    sound = rows[:, -1] == np.array(sums, np.int64)
    return StepBlock(layout, rows[sound], int(count - sound.sum()))


def _mask_words(present: Sequence[bool], num_words: int) -> tuple[int, ...]:
    return tuple(
        sum(has << bit for bit, has in enumerate(present[word * _MASK_BITS : (word + 1) * _MASK_BITS]))
        for word in range(num_words)
    )
