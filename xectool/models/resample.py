"""Fixed linear resampling of images: area averages (physical) and four-point interpolation (compat).

Axes: B events, H, W image, C channels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

FloatArray = npt.NDArray[np.float64]


def area_overlaps(size_in: int, size_out: int) -> FloatArray:
    """Return how much of each input cell every output cell covers, shape (size_out, size_in), in input cells.

    Both grids span the same length. Rows sum to size_in/size_out, columns to 1: nothing is lost or counted twice.

    >>> area_overlaps(3, 2)
    array([[1. , 0.5, 0. ],
           [0. , 0.5, 1. ]])
    """
    edges = np.arange(size_out + 1) * size_in / size_out
    low, high = edges[:-1, None], edges[1:, None]
    cells = np.arange(size_in)[None, :]
    overlaps: FloatArray = np.clip(np.minimum(high, cells + 1) - np.maximum(low, cells), 0.0, None)
    return overlaps


def interpolation_weights(size_in: int, size_out: int) -> FloatArray:
    """Return two-point linear interpolation at the centres of the output cells, shape (size_out, size_in).

    The older system's way (``bilinear``, ``align_corners=False``, no antialiasing): it reads at most two input cells
    for each output cell, 64 of the 966 of the inner face.
    """
    centres = np.clip((np.arange(size_out) + 0.5) * size_in / size_out - 0.5, 0.0, None)
    low = np.floor(centres).astype(np.int64)
    high = np.minimum(low + 1, size_in - 1)
    fraction = centres - low
    weights = np.zeros((size_out, size_in))
    rows = np.arange(size_out)
    np.add.at(weights, (rows, low), 1 - fraction)
    np.add.at(weights, (rows, high), fraction)
    return weights


class Resize(nn.Module):
    """Resizes images of one size by two small matrix products.

    Faster than reading windows on a CPU, and unlike the library's pooling and interpolation deterministic on CUDA.

    Args:
        size_in: Image height and width.
        size_out: Height and width of the result.
        geometry: ``physical`` averages over areas and reads every cell, ``compat`` interpolates between four cells.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, size_in: tuple[int, int], size_out: tuple[int, int], geometry: str) -> None:
        super().__init__()
        weights = area_overlaps if geometry == "physical" else interpolation_weights
        # Overlaps are sums of simple fractions, exact at any dtype; their common factor stays a plain number.
        self.factor = 1.0 if geometry == "compat" else (size_out[0] * size_out[1]) / (size_in[0] * size_in[1])
        for name, n_in, n_out in zip(("rows", "columns"), size_in, size_out, strict=True):
            matrix = torch.from_numpy(weights(n_in, n_out)).to(torch.get_default_dtype())
            self.register_buffer(name, matrix, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the resized image (B, H', W', C) of x (B, H, W, C)."""
        height, width, channels = x.shape[1:]
        by_row = torch.matmul(self.rows, x.reshape(-1, height, width * channels))
        by_row = by_row.reshape(-1, self.rows.shape[0], width, channels)
        return torch.matmul(self.columns, by_row) * self.factor
