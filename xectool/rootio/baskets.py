"""One column of numbers of a TTree branch, read basket by basket."""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np

from xectool.rootio.alike import BIG_KEY, count_alike, decode_alike
from xectool.rootio.bulk import NearbyBaskets
from xectool.rootio.columns import READ_ERRORS, Array, Column, DamagedRangeError, check_lengths
from xectool.rootio.inflate import BLOCK_BYTES, HEADER_BYTES, MOST_GROWTH, inflate_range, packed_bytes
from xectool.rootio.source import ByteSource
from xectool.rootio.stages import DECOMPRESS, READ, timed

# What of a basket's header is read: lengths of the basket, its content and the header itself, and its own place.
_KEY_BYTES = 26
_KEY = struct.Struct(">iHi4xH2xi")


class BasketColumn:
    """Fixed-width numbers of a TTree branch, decoded from its baskets straight into the caller's array.

    Of a basket only the compressed blocks that hold wanted entries are inflated, so memory is bounded by the
    wanted entries plus one block of 16 MiB, whatever the basket size.

    Args:
        branch: uproot's branch; its interpretation is ``AsDtype``.
        source: The bytes of the file.
    """

    def __init__(self, branch: Any, source: ByteSource) -> None:
        stored = branch.interpretation.from_dtype
        base, shape = stored.subdtype if stored.subdtype else (stored, ())
        self._branch, self._source, self._stored = branch, source, base
        self.dtype = base.newbyteorder("=")
        self.width: int | None = int(np.prod(shape, dtype=np.int64))
        self._entry_bytes = base.itemsize * self.width
        self._offsets = np.asarray(branch.entry_offsets, dtype=np.int64)
        num_free = branch.num_baskets - len(branch.embedded_baskets)
        self._seeks = np.asarray(branch.member("fBasketSeek"))[:num_free]
        self._sizes = np.asarray(branch.member("fBasketBytes"), dtype=np.int64)[:num_free]
        self._large: dict[int, _LargeBasket] = {}

    def require_counts(self) -> None:
        """Check that no basket has entries of more bytes than its own can become; else raises ``ValueError``."""
        if (np.diff(self._offsets)[: len(self._sizes)] * self._entry_bytes > MOST_GROWTH * self._sizes).any():
            raise ValueError("a basket claims to hold more than its bytes can become")

    def boundaries(self) -> list[int]:
        """Return the entries at which baskets start, and the end."""
        return [int(entry) for entry in self._offsets]

    def read_starts(self) -> list[int]:
        """Return the first entries of baskets, and in baskets of several blocks the first entry inside each block."""
        starts: list[int] = []
        for first, end in itertools.pairwise(self.boundaries()):
            num_blocks = -(-(end - first) * self._entry_bytes // BLOCK_BYTES)
            inside = (first - (-number * BLOCK_BYTES // self._entry_bytes) for number in range(num_blocks))
            starts += [entry for entry in inside if entry < end]
        return starts

    def first_width(self) -> int:
        """Return the count of numbers in every entry."""
        return self.width or 0

    def read(self, start: int, stop: int, out: Array) -> None:
        """Fill ``out``, shape (stop - start, width), with the entries ``[start, stop)``, cast to its type.

        Raises:
            DamagedRangeError: A basket cannot be read; names that basket's entries.
        """
        basket = int(np.searchsorted(self._offsets, start, side="right")) - 1
        edges = self._offsets[basket : int(np.searchsorted(self._offsets, stop)) + 1]
        these = slice(basket, basket + len(edges) - 1)
        nearby = NearbyBaskets(self._source, self._seeks[these].tolist(), self._sizes[these].tolist(), basket)
        numbers = out.reshape(-1)
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, which counts as invalid
            alike, done = self._read_alike(nearby, basket, edges, start, numbers)
            for number, (first, end) in enumerate(itertools.pairwise(edges[alike:].tolist()), basket + alike):
                begin, upto = max(start, first), min(stop, end)
                count = (upto - begin) * out.shape[1]
                if count <= 0:
                    continue
                try:
                    self._read_basket(nearby, number, (begin - first, end - first), numbers[done : done + count])
                except READ_ERRORS as error:
                    raise DamagedRangeError(first, end, f"{type(error).__name__}: {error}") from error
                done += count
        if done != len(numbers):
            raise DamagedRangeError(start, stop, "no baskets follow on each other over these entries")

    def _read_alike(
        self, nearby: NearbyBaskets, basket: int, edges: Array, start: int, numbers: Array
    ) -> tuple[int, int]:
        """Fill the beginning of ``numbers``, from entry ``start`` on; return the baskets and the numbers that gives.

        It ends before baskets that are not alike, or of which one cannot be read, which shows when it is by itself.
        """
        sizes, baskets, done = self._sizes[basket : basket + len(edges) - 1], 0, 0
        while count := count_alike(edges[baskets:], sizes[baskets:], self._entry_bytes, self._source.bulk_bytes):
            first, begin = basket + baskets, int(edges[baskets])
            num_bytes = int(edges[baskets + 1] - begin) * self._entry_bytes
            low = (start - begin) * (self.width or 1) if not baskets else 0
            try:
                if low < 0 or not self._is_plain(nearby, first, num_bytes):
                    break
                entries = decode_alike(nearby.joined(first, count), self._seeks[first : first + count], num_bytes)
            except READ_ERRORS:
                break
            if entries is None:
                break
            found = np.ascontiguousarray(entries).view(self._stored).reshape(-1)[low : low + len(numbers) - done]
            numbers[done : done + len(found)] = found
            baskets, done = baskets + count, done + len(found)
        return baskets, done

    def _is_plain(self, nearby: NearbyBaskets, basket: int, num_bytes: int) -> bool:
        seek, size = int(self._seeks[basket]), int(self._sizes[basket])
        key_bytes, object_bytes = _basket_key(nearby.read(basket), seek, size, num_bytes)
        return size - key_bytes == object_bytes

    def _read_basket(self, nearby: NearbyBaskets, basket: int, entries: tuple[int, int], out: Array) -> None:
        """Fill ``out``, numbers of entries in a row, with a basket's from its entry ``entries[0]`` of ``[1]`` on."""
        begin, num_bytes = entries[0] * self._entry_bytes, entries[1] * self._entry_bytes
        wanted = begin, begin + len(out) * self._stored.itemsize
        if basket >= len(self._seeks):
            data = memoryview(self._branch.basket(basket).data)[slice(*wanted)]
        else:
            data = self._free_basket(nearby, basket, wanted, num_bytes, out)
        # Of one dimension, for numpy then swaps the bytes of what lies in its place without a copy.
        out[:] = np.frombuffer(data, self._stored, len(out))

    def _free_basket(
        self, nearby: NearbyBaskets, basket: int, wanted: tuple[int, int], num_bytes: int, out: Array
    ) -> Any:
        """Return the bytes ``[begin, end)`` of a basket's entries, in ``out`` or where `inflate_range` has them."""
        begin, end = wanted
        seek, size = int(self._seeks[basket]), int(self._sizes[basket])
        room = out.view(np.uint8) if out.dtype == self.dtype else None
        if num_bytes > BLOCK_BYTES:
            if basket not in self._large:
                self._large[basket] = timed(READ, _LargeBasket, self._source, seek, size, num_bytes)
            return self._large[basket].read(begin, end, room)
        raw = nearby.read(basket)
        key_bytes, object_bytes = _basket_key(raw, seek, size, num_bytes)
        body = raw[key_bytes:]
        if size - key_bytes == object_bytes:
            return body[begin:end]
        return timed(DECOMPRESS, inflate_range, body, begin, end, out=room)


class _LargeBasket:
    """A basket of several compressed blocks, of which only those with wanted bytes are read.

    Args:
        source: The bytes of the file.
        seek: Where the basket starts.
        size: Its bytes in the file.
        num_bytes: Bytes its entries take.

    Raises:
        ValueError: The basket's header, or that of a block, is broken.
    """

    def __init__(self, source: ByteSource, seek: int, size: int, num_bytes: int) -> None:
        self._source = source
        key_bytes, object_bytes = _basket_key(source.read(seek, _KEY_BYTES), seek, size, num_bytes)
        self._body = seek + key_bytes
        self._is_packed = size - key_bytes != object_bytes
        offsets, positions = [0], [0]
        while self._is_packed and positions[-1] < num_bytes:
            packed, unpacked = packed_bytes(source.read(self._body + offsets[-1], HEADER_BYTES))
            offsets.append(offsets[-1] + packed)
            positions.append(positions[-1] + unpacked)
            if offsets[-1] > size - key_bytes:
                raise ValueError("a compressed block says it is longer than its data")
        self._offsets, self._positions = offsets, positions

    def read(self, begin: int, end: int, room: Array | None) -> Any:
        """Return the bytes ``[begin, end)`` of the entries, in ``room`` for them or in memory of their own."""
        if not self._is_packed:
            return timed(READ, self._source.read, self._body + begin, end - begin)
        first, last = bisect_right(self._positions, begin) - 1, bisect_left(self._positions, end)
        low, skipped = self._offsets[first], self._positions[first]
        data = timed(READ, self._source.read, self._body + low, self._offsets[last] - low)
        return timed(DECOMPRESS, inflate_range, data, begin - skipped, end - skipped, out=room)


def _basket_key(raw: bytes | memoryview, seek: int, size: int, num_bytes: int) -> tuple[int, int]:
    """Return the bytes of a basket's header and those of its content, uncompressed.

    Raises:
        ValueError: The header does not agree with ``size`` bytes at ``seek`` and ``num_bytes`` of entries.
    """
    stored_bytes, version, object_bytes, key_bytes, place = _KEY.unpack_from(raw)
    if version > BIG_KEY:
        (place,) = struct.unpack_from(">q", raw, 18)
    if place != seek:
        raise ValueError(f"the basket belongs at byte {place} of the file, not at {seek}: it is of other entries")
    if stored_bytes != size or not 18 <= key_bytes <= size or object_bytes < num_bytes:
        raise ValueError("the basket's header does not agree with its branch")
    return key_bytes, object_bytes


class LooseColumn:
    """A TTree branch of variable or packed numbers (``std::vector``, ``n/I`` arrays, ``Double32_t``), read by uproot.

    Args:
        branch: uproot's branch.
        dtype: Type of one number.
        width: Numbers in an entry where that is fixed.
    """

    def __init__(self, branch: Any, dtype: np.dtype[Any], width: int | None) -> None:
        self._branch, self.dtype, self.width = branch, dtype, width

    def boundaries(self) -> list[int]:
        """Return the entries at which baskets start, and the end."""
        return [int(entry) for entry in self._branch.entry_offsets]

    def read_starts(self) -> list[int]:
        """Return the first entries of baskets: uproot reads them whole."""
        return self.boundaries()[:-1]

    def first_width(self) -> int:
        """Return the count of numbers in the first entry."""
        return int(self._flat(0, 1)[1][0])

    def read(self, start: int, stop: int, out: Array) -> None:
        """Fill ``out``, shape (stop - start, width), with the entries ``[start, stop)``, cast to its type.

        Raises:
            DamagedRangeError: A basket cannot be read.
            WrongLengthError: An entry has another length than a row of ``out``.
        """
        values, counts = self._flat(start, stop)
        check_lengths(counts, start, out.shape[1])
        with np.errstate(over="ignore"):
            out[:] = values.reshape(out.shape)

    def _flat(self, start: int, stop: int) -> tuple[Array, Array]:
        import awkward as ak

        try:
            rows = timed(DECOMPRESS, self._array, start, stop)
        except READ_ERRORS as error:
            raise DamagedRangeError(start, stop, f"{type(error).__name__}: {error}") from error
        if rows.ndim == 1:
            return ak.to_numpy(rows), np.ones(len(rows), np.int64)
        while rows.ndim > 2:  # x[n][3]: n times 3 numbers an entry
            rows = ak.flatten(rows, axis=2)
        return ak.to_numpy(ak.flatten(rows, axis=None)), ak.to_numpy(ak.num(rows, axis=1))

    def _array(self, start: int, stop: int) -> Any:
        """Return entries as uproot reads them: bytes, decompression and numbers in one go."""
        return self._branch.array(entry_start=start, entry_stop=stop, library="ak")


def tree_column(branch: Any, source: ByteSource) -> Column | None:
    """Return the column of a TTree branch, or None where it does not hold plain numbers."""
    from uproot.interpretation.jagged import AsJagged
    from uproot.interpretation.numerical import AsDtype, TruncatedNumerical

    interpretation = branch.interpretation
    if type(interpretation) is AsDtype:
        stored = interpretation.from_dtype
        base = stored.subdtype[0] if stored.subdtype else stored
        return BasketColumn(branch, source) if base.kind in "fiub" else None
    if isinstance(interpretation, TruncatedNumerical):
        shape = interpretation.to_dtype.shape
        return LooseColumn(branch, interpretation.to_dtype.base, int(np.prod(shape, dtype=np.int64)))
    if isinstance(interpretation, AsJagged) and type(interpretation.content) is AsDtype:
        base = interpretation.content.to_dtype.base
        return LooseColumn(branch, base, None) if base.kind in "fiub" else None
    return None
