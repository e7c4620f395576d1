"""The steps of a run as columns, in the order they happened and in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from xectool.diagnosis.evidence.statistics import Series, spread, trailing_median
from xectool.runlog.layout import StepBlock
from xectool.runlog.records import StepRecord

MAX_ROWS: Final = 200_000
"""Rows kept; beyond, every second of the older half goes. With all columns that is some 100 MB."""
SPIKE_WINDOW: Final = 201  # F040: running median over 200 steps; odd, so that it is one of them
_CHUNK_ROWS: Final = 4096
_KEEP_AROUND: Final = 64  # rows around one worth noting that thinning leaves alone
_NOTED_FACTOR: Final = 5.0  # half of what makes a spike
_MAX_NAMES: Final = 32  # loss terms and parameter blocks kept each

SCALARS: Final = (
    "step", "epoch", "time", "loss", "lr", "grad_norm", "clip_coef", "data_wait_s", "step_s", "num_events",
    "batch_start", "file_index", "entry", "nonfinite", "skipped", "amp_scale", "rank", "weight_norm", "rss_bytes",
    "device_bytes", "device_reserved_bytes", "checkpoint_s", "log_s", "own_rss_bytes",
)  # fmt: skip
_MAP_KEYS: Final = {"terms": "losses", "blocks": "block_norms"}
_UNKNOWN_BELOW_ZERO: Final = (
    "rss_bytes", "own_rss_bytes", "device_bytes", "device_reserved_bytes", "file_index", "entry",
)  # fmt: skip


class StepHistory:
    """Columns of the step records; what a record does not know is NaN.

    Attributes:
        attempt: Attempt of each row.
        terms: Mean loss of each term.
        blocks: Gradient norm of each parameter block before clipping.
        seen: Steps read, those that were thinned out later included.
    """

    def __init__(
        self,
        scalars: Mapping[str, Series],
        attempt: Series,
        terms: Mapping[str, Series],
        blocks: Mapping[str, Series],
        seen: int,
    ) -> None:
        self._scalars = scalars
        self.attempt = attempt
        self.terms = terms
        self.blocks = blocks
        self.seen = seen

    def __len__(self) -> int:
        return int(self.attempt.size)

    def __getitem__(self, name: str) -> Series:
        return self._scalars[name]

    @property
    def thinned(self) -> bool:
        """Whether older steps were left out."""
        return self.seen > len(self)

    @cached_property
    def bad(self) -> NDArray[np.bool_]:
        """Rows whose loss or gradient was not finite."""
        loss, norm = self["loss"], self["grad_norm"]
        # A gradient norm that an older record does not hold is NaN on every row, which says nothing.
        norm_known = bool(np.isfinite(norm).any())
        return (self["nonfinite"] > 0) | ~np.isfinite(loss) | (norm_known & ~np.isfinite(norm))

    @cached_property
    def good_rows(self) -> NDArray[np.intp]:
        """Rows that are finite."""
        return np.flatnonzero(~self.bad)

    @cached_property
    def loss_level(self) -> Series:
        """Median of up to 201 finite losses before each row, shape (N,)."""
        level = np.full(len(self), np.nan)
        rows = self.good_rows
        level[rows] = trailing_median(self["loss"][rows], SPIKE_WINDOW)
        last = np.maximum.accumulate(np.where(np.isfinite(level), np.arange(len(self)), -1))
        known = last >= 0
        level[known] = level[last[known]]
        return level

    def loss_spread(self, row: int) -> float:
        """Return the robust spread of up to 201 finite losses before a row."""
        return spread(self["loss"][self.before(row, SPIKE_WINDOW)])

    def before(self, row: int, count: int) -> NDArray[np.intp]:
        """Return the last ``count`` finite rows before ``row``."""
        rows = self.good_rows
        return rows[: np.searchsorted(rows, row)][-count:]

    def after(self, row: int, count: int) -> NDArray[np.intp]:
        """Return the first ``count`` finite rows after ``row``."""
        rows = self.good_rows
        return rows[np.searchsorted(rows, row, side="right") :][:count]


class HistoryBuilder:
    """Takes step records one by one and gives them back as columns."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._rows: list[tuple[float, ...]] = []
        self._maps: dict[str, list[Mapping[str, float]]] = {"terms": [], "blocks": []}
        self._names: dict[str, dict[str, None]] = {"terms": {}, "blocks": {}}
        self._kept = np.empty((0, len(SCALARS) + 1))
        self._kept_maps: dict[str, NDArray[np.float64]] = {"terms": np.empty((0, 0)), "blocks": np.empty((0, 0))}
        self.seen = 0

    def add(self, record: StepRecord, attempt: int) -> None:
        """Add the next step."""
        self.seen += 1
        self._rows.append((attempt, *(float(getattr(record, name)) for name in SCALARS)))
        for kind, key in _MAP_KEYS.items():
            values = getattr(record, key)
            self._maps[kind].append(values)
            if len(self._names[kind]) < _MAX_NAMES:
                self._names[kind].update(dict.fromkeys(values))
        if len(self._rows) >= _CHUNK_ROWS:
            self._flush()

    def add_block(self, block: StepBlock, attempt: int) -> None:
        """Add the next steps, given as columns."""
        self._flush()
        self.seen += len(block.rows)
        for start in range(0, len(block.rows), _CHUNK_ROWS):
            part = block.select(slice(start, start + _CHUNK_ROWS))
            scalars = [np.full(len(part.rows), float(attempt)), *(part.column(name) for name in SCALARS)]
            maps = {kind: self._columns(part, kind, key) for kind, key in _MAP_KEYS.items()}
            self._append(np.stack(scalars, axis=1).astype(np.float64), maps)

    def _columns(self, block: StepBlock, kind: str, key: str) -> NDArray[np.float64]:
        """Return the named values of a map, shape (rows, names); NaN where a row does not have one."""
        names = self._names[kind]
        if len(names) < _MAX_NAMES:
            names.update(dict.fromkeys(block.layout.names.get(key, ())))
        found = (block.values(key, name) for name in list(names)[:_MAX_NAMES])
        columns = [np.where(present, values, np.nan) for values, present in found]
        return np.stack(columns, axis=1) if columns else np.empty((len(block.rows), 0))

    def build(self) -> StepHistory:
        """Return the columns of all steps so far."""
        self._flush()
        columns = {name: self._kept[:, index + 1].copy() for index, name in enumerate(SCALARS)}
        for name in _UNKNOWN_BELOW_ZERO:
            columns[name][columns[name] < 0] = np.nan
        maps = {
            kind: {name: self._kept_maps[kind][:, index].copy() for index, name in enumerate(list(names)[:_MAX_NAMES])}
            for kind, names in self._names.items()
        }
        return StepHistory(columns, self._kept[:, 0].copy(), maps["terms"], maps["blocks"], self.seen)

    def _flush(self) -> None:
        if not self._rows:
            return
        maps = {}
        for kind, rows in self._maps.items():
            names = list(self._names[kind])[:_MAX_NAMES]
            values = [[row.get(name, np.nan) for name in names] for row in rows]
            maps[kind] = np.array(values, dtype=np.float64).reshape(len(rows), len(names))
            rows.clear()
        self._append(np.asarray(self._rows, dtype=np.float64), maps)
        self._rows.clear()

    def _append(self, scalars: NDArray[np.float64], maps: dict[str, NDArray[np.float64]]) -> None:
        self._kept = np.vstack([self._kept, scalars])
        for kind, new in maps.items():
            old = self._kept_maps[kind]
            wider = np.full((len(old), new.shape[1]), np.nan)
            wider[:, : old.shape[1]] = old
            self._kept_maps[kind] = np.vstack([wider, new])
        if len(self._kept) > self._max_rows:
            self._thin()

    def _thin(self) -> None:
        """Leave out every second row of the older half, but not the first, and none near a row worth noting."""
        half = len(self._kept) // 2
        keep = np.ones(len(self._kept), dtype=bool)
        keep[2:half:2] = False
        noted = self._noted()
        # A run that is bad all over has no trend worth protecting; its first bad rows are what counts.
        for row in noted[: self._max_rows // (8 * _KEEP_AROUND)]:
            keep[max(0, row - _KEEP_AROUND) : row + _KEEP_AROUND] = True
        self._kept = self._kept[keep]
        self._kept_maps = {kind: values[keep] for kind, values in self._kept_maps.items()}

    def _noted(self) -> NDArray[np.intp]:
        """Return rows that are not finite, or far above the median of the rows around them."""
        loss = self._kept[:, SCALARS.index("loss") + 1]
        bad = ~np.isfinite(loss) | (self._kept[:, SCALARS.index("nonfinite") + 1] > 0)
        good = np.flatnonzero(~bad)
        level = np.full(len(loss), np.inf)
        level[good] = np.abs(median_filter(loss[good], size=SPIKE_WINDOW, mode="nearest")) if good.size else np.inf
        return np.flatnonzero(bad | (loss > _NOTED_FACTOR * level))
