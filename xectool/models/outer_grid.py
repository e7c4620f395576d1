"""The outer face as one fine image on which the coarse PMTs and the denser centre patch both fit.

Axes: B events, S sensors (4760), H, W fine grid, G grid cells (H*W), U outer sensors (234).

A coarse PMT covers 10.36 cm along z and 9.70 cm along azimuth, a centre PMT 6.20 by 6.47 cm: ratios 5:3 and 3:2. A grid
of 45 cells along z by 72 along azimuth holds both exactly: 5 x 3 cells for a coarse PMT, 3 x 2 for one of the centre,
which fills the place of 3 x 4 coarse ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xectool.detector import faces
from xectool.detector.faces import IntArray
from xectool.models.resample import FloatArray, area_overlaps

FINE_SHAPE = (45, 72)
COARSE_CELL = (5, 3)
CENTER_CELL = (3, 2)
CENTER_ROWS = slice(15, 30)
CENTER_COLUMNS = slice(30, 42)


class FaceImage(NamedTuple):
    """One face as an image.

    Attributes:
        values: npho and time in network units, shape (B, H, W, 2).
        hidden: 1 where a cell is hidden, shape (B, H, W); None when nothing is.
    """

    values: Tensor
    hidden: Tensor | None


def fine_owners(geometry: str) -> IntArray:
    """Return which sensor each fine cell belongs to, int64 (45, 72): z along the rows, azimuth along the columns."""
    owners = _repeat(faces.index_map("outer_coarse", geometry), COARSE_CELL)
    owners[CENTER_ROWS, CENTER_COLUMNS] = _repeat(faces.index_map("outer_center", geometry), CENTER_CELL)
    return owners


def pooled_shape(pool: tuple[int, int] | None) -> tuple[int, int]:
    """Return the grid's (z, azimuth) size after pooling.

    >>> pooled_shape((3, 3))
    (15, 24)
    """
    return FINE_SHAPE if pool is None else (FINE_SHAPE[0] // pool[0], FINE_SHAPE[1] // pool[1])


class PhysicalOuterGrid(nn.Module):
    """Outer face with every PMT at its place; rows run along azimuth, as on all other faces.

    A fine cell carries its PMT's own normalised value, undivided. On the other faces a pixel is what one sensor reads,
    and centre and coarse PMTs are of one type, so values are comparable as they are; splitting them over cells would
    have to happen on photons, before the logarithm, and would turn a reading into a density in a space where division
    has no meaning.

    Pooling averages by area over the sensors that a pooled cell overlaps, leaving out readings that are not valid or
    hidden; a cell with no reading at all keeps the sentinel. [5, 3] gives one cell for a coarse PMT.

    Args:
        pool: Cells along z and along azimuth to pool, or None.
        sentinels: Fill values of npho and time where no reading exists.
    """

    cells: Tensor
    weights: Tensor
    sentinels: Tensor

    def __init__(self, pool: tuple[int, int] | None, sentinels: tuple[float, float]) -> None:
        super().__init__()
        owners = fine_owners("physical").T
        self.shape = pooled_shape(pool)[::-1]
        self.pooled = self.shape != owners.shape
        fills = torch.tensor(sentinels, dtype=torch.get_default_dtype())
        self.register_buffer("sentinels", fills, persistent=False)
        sensors, local = np.unique(owners, return_inverse=True)
        cells = sensors if self.pooled else owners.reshape(-1)
        self.register_buffer("cells", torch.from_numpy(cells.copy()), persistent=False)
        weights = _sensor_weights(local.reshape(owners.shape), self.shape) if self.pooled else np.zeros((0, 0))
        self.register_buffer("weights", torch.from_numpy(weights).to(torch.get_default_dtype()), persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None, valid: Tensor | None) -> FaceImage:
        """Return the outer image of x.

        Args:
            x: Network units, shape (B, S, 2).
            mask: 1 where a sensor is hidden, shape (B, S), or None.
            valid: Whether a reading is valid, bool (B, S, 2); None takes a reading equal to its sentinel for missing.
        """
        values = x[:, self.cells]
        hidden = None if mask is None else mask[:, self.cells]
        if self.pooled:
            values, hidden = self._pool(values, hidden, None if valid is None else valid[:, self.cells])
        hidden = None if hidden is None else hidden.reshape(-1, *self.shape)
        return FaceImage(values.reshape(-1, *self.shape, 2), hidden)

    def _pool(self, values: Tensor, hidden: Tensor | None, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        usable = values != self.sentinels if valid is None else valid
        if hidden is not None:
            usable = usable & (hidden == 0).unsqueeze(-1)
        with torch.autocast(values.device.type, enabled=False):
            total = torch.matmul(self.weights, torch.where(usable, values, 0.0))
            area = torch.matmul(self.weights, usable.to(self.weights.dtype))
            covered = None if hidden is None else torch.matmul((hidden == 0).to(self.weights.dtype), self.weights.t())
        pooled = torch.where(area > 0, total / area.clamp_min(torch.finfo(area.dtype).tiny), self.sentinels)
        return pooled, None if covered is None else (covered == 0).to(values.dtype)


class CompatOuterGrid(nn.Module):
    """Outer face as the older system built it, faults included; only its checkpoints should need it.

    The coarse face is read in the wrong order, 12 of its PMTs never appear, npho is divided by the number of cells
    after the logarithm (sentinels too), pooling averages npho sentinels in and drops leftover rows, and the mask of the
    coarse face alone decides which cells are hidden.
    """

    cells: Tensor
    mask_cells: Tensor
    divisor: Tensor

    def __init__(self, pool: tuple[int, int] | None, sentinels: tuple[float, float]) -> None:
        super().__init__()
        self.pool = pool
        self.shape = pooled_shape(pool)
        self.sentinel_time = sentinels[1]
        divisor = np.full(FINE_SHAPE, COARSE_CELL[0] * COARSE_CELL[1])
        divisor[CENTER_ROWS, CENTER_COLUMNS] = CENTER_CELL[0] * CENTER_CELL[1]
        mask_cells = _repeat(faces.index_map("outer_coarse", "compat"), COARSE_CELL)
        self.register_buffer("cells", torch.from_numpy(fine_owners("compat").reshape(-1)), persistent=False)
        self.register_buffer("mask_cells", torch.from_numpy(mask_cells.reshape(-1)), persistent=False)
        divisors = torch.from_numpy(divisor).to(torch.get_default_dtype())
        self.register_buffer("divisor", divisors, persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None, valid: Tensor | None) -> FaceImage:
        """Return the outer image of x (B, S, 2) with mask (B, S) or None; ``valid`` has no influence here."""
        image = x[:, self.cells].reshape(-1, *FINE_SHAPE, 2)
        npho, time = image[..., 0] / self.divisor, image[..., 1]
        hidden = None if mask is None else mask[:, self.mask_cells].reshape(-1, *FINE_SHAPE)
        if self.pool is not None:
            known = (time != self.sentinel_time).to(time.dtype)
            share = self._average(known)
            mean = self._average(time * known) / share.clamp_min(torch.finfo(share.dtype).tiny)
            npho, time = self._average(npho), torch.where(share > 0, mean, self.sentinel_time)
            hidden = None if hidden is None else (self._average(hidden) > 0).to(time.dtype)
        return FaceImage(torch.stack((npho, time), dim=-1), hidden)

    def _average(self, image: Tensor) -> Tensor:
        assert self.pool is not None
        return F.avg_pool2d(image.unsqueeze(1), self.pool).squeeze(1)


def outer_grid(
    geometry: str, pool: tuple[int, int] | None, sentinels: tuple[float, float]
) -> PhysicalOuterGrid | CompatOuterGrid:
    """Return the outer grid of a geometry."""
    return (PhysicalOuterGrid if geometry == "physical" else CompatOuterGrid)(pool, sentinels)


def _repeat(ids: IntArray, cell: tuple[int, int]) -> IntArray:
    return ids.repeat(cell[0], axis=0).repeat(cell[1], axis=1)


def _sensor_weights(local: IntArray, shape: tuple[int, int]) -> FloatArray:
    """Return the share of every pooled cell that each outer sensor covers, shape (G, U); rows sum to 1."""
    by_row = area_overlaps(local.shape[0], shape[0])
    by_column = area_overlaps(local.shape[1], shape[1])
    one_hot = np.eye(local.max() + 1)[local]
    weights = np.einsum("ra,cb,abu->rcu", by_row, by_column, one_hot, optimize=True)
    shares: FloatArray = weights.reshape(shape[0] * shape[1], -1) / weights.sum(axis=-1).reshape(-1, 1)
    return shares
