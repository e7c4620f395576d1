"""One column of numbers of an RNTuple, read page by page."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import xxhash

from xectool.rootio.columns import READ_ERRORS, Array, Column, DamagedRangeError, check_lengths
from xectool.rootio.inflate import MOST_GROWTH, inflate_range
from xectool.rootio.source import ByteSource
from xectool.rootio.stages import DECOMPRESS, READ, timed

_CHECKSUM_BYTES = 8
# ROOT's pages have a megabyte at most; one beyond this is damage.
_LARGEST_BYTES = 1 << 28
# ROOT's field kinds that end in one column of numbers.
_LEAF, _COLLECTION = 0, 1


class PageColumn:
    """Numbers of one RNTuple field: a scalar, a ``std::array`` or a ``std::vector``.

    Only the pages that hold wanted entries are read, so memory is bounded by the wanted entries plus one page.

    Args:
        ntuple: uproot's RNTuple.
        source: The bytes of the file.
        value_column: Index of the column that holds the numbers.
        width: Numbers in an entry; None for a vector.
        offset_column: Index of a vector's column of offsets.
    """

    def __init__(
        self, ntuple: Any, source: ByteSource, value_column: int, width: int | None, offset_column: int | None = None
    ) -> None:
        self._ntuple, self._source = ntuple, source
        self._value_column, self._offset_column = value_column, offset_column
        self._metadata = ntuple.get_field_metadata(value_column)
        self.dtype = np.dtype(self._metadata.dtype_result)
        self.width = width
        self._clusters = [
            (int(cluster.num_first_entry), int(cluster.num_first_entry + cluster.num_entries))
            for cluster in ntuple.cluster_summaries
        ]

    def require_counts(self) -> None:
        """Check that clusters follow each other and that their pages hold as many numbers as their entries have.

        Raises:
            ValueError: Summaries and pages disagree.
        """
        expected = 0
        for cluster, (first, end) in enumerate(self._clusters):
            if first != expected or end < first:
                raise ValueError(f"cluster {cluster} starts at entry {first}, and {expected} lie before it")
            expected = end
            column = self._value_column if self._offset_column is None else self._offset_column
            pages = self._ntuple.page_link_list[cluster][column].pages
            for page in pages:
                self._require_size(page, page.num_elements * self.dtype.itemsize)
            found = sum(int(page.num_elements) for page in pages)
            wanted = (end - first) * (self.width if self.width is not None else 1)
            if pages and found != wanted:  # none where the field came later, or has another encoding here
                raise ValueError(f"the pages of cluster {cluster} hold {found} numbers instead of {wanted}")

    @staticmethod
    def _require_size(page: Any, num_bytes: int) -> None:
        if not 0 <= num_bytes <= min(_LARGEST_BYTES, MOST_GROWTH * int(page.locator.num_bytes)):
            raise ValueError(f"a page of {page.locator.num_bytes} bytes claims to hold {num_bytes}")

    def boundaries(self) -> list[int]:
        """Return the entries at which clusters start, and the end."""
        return [first for first, _ in self._clusters] + [self._clusters[-1][1] if self._clusters else 0]

    def read_starts(self) -> list[int]:
        """Return the first entries of pages; of a vector, whose offsets are read cluster by cluster, of clusters."""
        if self.width is None:
            return self.boundaries()[:-1]
        starts: list[int] = []
        for cluster, (first, end) in enumerate(self._clusters):
            pages = self._ntuple.page_link_list[cluster][self._stored_as(cluster)[0]].pages
            elements = itertools.accumulate((int(page.num_elements) for page in pages), initial=0)
            starts += [entry for number in elements if (entry := first - (-number // self.width)) < end]
        return starts

    def first_width(self) -> int:
        """Return the count of numbers in the first entry."""
        if self.width is not None:
            return self.width
        try:
            return int(self._vector_ends(0)[0])
        except READ_ERRORS as error:
            raise DamagedRangeError(*self._clusters[0], f"{type(error).__name__}: {error}") from error

    def read(self, start: int, stop: int, out: Array) -> None:
        """Fill ``out``, shape (stop - start, width), with the entries ``[start, stop)``, cast to its type.

        Raises:
            DamagedRangeError: A page cannot be read; names the entries of its cluster.
            WrongLengthError: An entry of a vector has another length than a row of ``out``.
        """
        width = out.shape[1]
        for cluster, (first, end) in enumerate(self._clusters):
            low, high = max(start, first), min(stop, end)
            if low >= high:
                continue
            target = out[low - start : high - start].reshape(-1)
            try:
                offset = self._first_element(cluster, low - first, high - first, width)
                self._read_elements(cluster, offset, target)
            except READ_ERRORS as error:
                raise DamagedRangeError(first, end, f"{type(error).__name__}: {error}") from error

    def _first_element(self, cluster: int, low: int, high: int, width: int) -> int:
        if self._offset_column is None:
            return low * width
        ends = self._vector_ends(cluster)
        starts = np.concatenate([[0], ends[:-1]])
        check_lengths((ends - starts)[low:high], self._clusters[cluster][0] + low, width)
        return int(starts[low])

    def _vector_ends(self, cluster: int) -> Array:
        first, end = self._clusters[cluster]
        for page in self._ntuple.page_link_list[cluster][self._offset_column].pages:
            self._require_size(page, 8 * page.num_elements)
        ends = timed(DECOMPRESS, self._ntuple.read_cluster_range, self._offset_column, cluster, cluster + 1)
        return np.asarray(ends[len(ends) - (end - first) :], dtype=np.int64)

    def _read_elements(self, cluster: int, offset: int, target: Array) -> None:
        column, metadata = self._stored_as(cluster)
        position, done = 0, 0
        for page in self._ntuple.page_link_list[cluster][column].pages:
            low, high = max(offset + done - position, 0), min(offset + len(target) - position, page.num_elements)
            if low < high:
                values = self._page_values(page, metadata)
                with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, which counts as invalid
                    target[done : done + high - low] = values[low:high]
                done += high - low
            position += page.num_elements
        if done != len(target):
            raise EOFError(f"the pages hold {done} of {len(target)} values")

    def _stored_as(self, cluster: int) -> tuple[int, Any]:
        """Return the column that holds the numbers in this cluster: a field may change its encoding on the way."""
        columns = self._ntuple.page_link_list[cluster]
        if not columns[self._value_column].suppressed:
            return self._value_column, self._metadata
        field_id = self._ntuple.column_records[self._value_column].field_id
        for index, record in enumerate(self._ntuple.column_records):
            if record.field_id == field_id and not columns[index].suppressed:
                return index, self._ntuple.get_field_metadata(index)
        raise ValueError("every encoding of the field is left out of this cluster")

    def _page_values(self, page: Any, metadata: Any) -> Array:
        count = int(page.num_elements)
        packed_bits = metadata.isbit or metadata.dtype_str in ("real32trunc", "real32quant")
        num_bytes = -(-count * metadata.nbits // 8) if packed_bits else count * metadata.dtype.itemsize
        data = self._page_bytes(page, num_bytes)
        if not (metadata.split or metadata.zigzag or packed_bits):
            return np.frombuffer(data, metadata.dtype, count)
        if metadata.split and not metadata.zigzag:
            return _unsplit(data, metadata.dtype, count)
        values = np.zeros(count, metadata.dtype_result)
        values.view(np.uint8)[:num_bytes] = np.frombuffer(data, np.uint8, num_bytes)
        self._ntuple.deserialize_page_decompressed_buffer(values, metadata)
        self._ntuple.post_process(values, metadata)
        return values

    def _page_bytes(self, page: Any, num_bytes: int) -> Any:
        size = int(page.locator.num_bytes)
        checksum_bytes = _CHECKSUM_BYTES if page.has_checksum else 0
        raw = memoryview(timed(READ, self._source.read, int(page.locator.offset), size + checksum_bytes))
        if checksum_bytes and xxhash.xxh3_64_intdigest(raw[:size]) != int.from_bytes(raw[size:], "little"):
            raise ValueError("the checksum of a page does not match")
        return raw[:size] if size >= num_bytes else timed(DECOMPRESS, inflate_range, raw[:size], 0, num_bytes)


def _unsplit(data: Any, dtype: np.dtype[Any], count: int) -> Array:
    """Return the numbers of a page that stores all first bytes, then all second bytes, and so on."""
    planes = np.frombuffer(data, np.uint8, count * dtype.itemsize).reshape(dtype.itemsize, count)
    return np.ascontiguousarray(planes.T).reshape(-1).view(dtype)


class FieldIndex:
    """Columns and children of every field, looked up once: files of other experiments have thousands of fields.

    Args:
        ntuple: The open RNTuple.

    Attributes:
        columns: First column of each field that has one.
        children: Fields below each field.
    """

    def __init__(self, ntuple: Any) -> None:
        records = enumerate(ntuple.column_records)
        self.columns = {int(record.field_id): index for index, record in reversed(list(records))}
        self.children: dict[int, list[int]] = {}
        for index, record in enumerate(ntuple.field_records):
            if int(record.parent_field_id) != index:
                self.children.setdefault(int(record.parent_field_id), []).append(index)


def ntuple_column(ntuple: Any, source: ByteSource, field: Any, fields: FieldIndex) -> Column | None:
    """Return the column of a field, or None where the field does not hold plain numbers."""
    field_id = int(field.field_id)
    record = ntuple.field_records[field_id]
    columns, children = fields.columns, fields.children.get(field_id, [])
    if record.struct_role == _LEAF and not record.repetition and field_id in columns:
        return _numeric(PageColumn(ntuple, source, columns[field_id], 1))
    if len(children) != 1 or children[0] not in columns:
        return None
    if record.struct_role == _LEAF and record.repetition:
        return _numeric(PageColumn(ntuple, source, columns[children[0]], int(record.repetition)))
    if record.struct_role == _COLLECTION and field_id in columns:
        return _numeric(PageColumn(ntuple, source, columns[children[0]], None, columns[field_id]))
    return None


def _numeric(column: PageColumn) -> PageColumn | None:
    return column if column.dtype.kind in "fiub" else None
