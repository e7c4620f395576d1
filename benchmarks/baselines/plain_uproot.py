"""Read, shuffle and batch with uproot and torch, as their tutorials show it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import uproot


def batches(path: str, batch_size: int, chunk: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield npho and time, shuffled inside each chunk."""
    rng = np.random.default_rng(seed)
    names = ["npho", "relative_time", "energyTruth", "uvwTruth", "run", "event"]
    for arrays in uproot.iterate(f"{path}:tree", names, step_size=chunk, library="np"):
        order = rng.permutation(len(arrays["npho"]))
        npho, time = arrays["npho"][order], arrays["relative_time"][order]
        for start in range(0, len(order), batch_size):
            rows = slice(start, start + batch_size)
            yield torch.from_numpy(npho[rows].copy()), torch.from_numpy(time[rows].copy())
