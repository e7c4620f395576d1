"""Outputs for four fixed events: where the same weights give other numbers, they are read as another network.

Axes: B events (4), S sensors (4760).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from xectool.detector.constants import DEAD_VALUE, NUM_SENSORS
from xectool.models.inpainter import Inpainter
from xectool.models.mae import MaskedAutoencoder
from xectool.models.regressor import Regressor

NUM_EVENTS: Final = 4
KEPT_SENSORS: Final = 16
CLOSE: Final = 1e-4  # over the value, or over 1 where the value is smaller
_ROUNDINGS: Final = 4.0  # other machines and GPUs round otherwise
_NO_ROUNDING: Final = 0.1  # in network units, where a prediction is wrong by as much as a resolution
RECORDS: Final[Mapping[str, str]] = {"model": "fingerprint", "ema": "fingerprint_ema"}
"""Facts of a checkpoint that hold the outputs, by the set of weights that gave them; early files lack the second."""
Outputs = dict[str, list[float]]


def fixed_events(device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Return npho (B, S) in photons, time (B, S) in seconds and a mask (B, S): whole numbers, the same everywhere."""
    event, sensor = torch.arange(NUM_EVENTS).unsqueeze(1), torch.arange(NUM_SENSORS)
    npho = ((7919 * sensor + 104_729 * event) % 4001).float() * 0.5
    time = (((31 * sensor + 17 * event) % 997).float() - 498.0) * 2e-10
    unread = (sensor + event) % 97 == 0
    npho, time = (torch.where(unread, DEAD_VALUE, value) for value in (npho, time))
    return npho.to(device), time.to(device), ((sensor + event) % 20 == 7).to(device)


@torch.no_grad()
def outputs_of(network: nn.Module) -> Outputs:
    """Return what a network gives for the fixed events, in network units, by output; empty for other networks.

    Of a network that predicts sensors, ``KEPT_SENSORS`` hidden ones of each event. One of float64 gets float64.
    """
    if not isinstance(network, Regressor | MaskedAutoencoder | Inpainter):
        return {}
    first = next(network.parameters())
    device, dtype = first.device, torch.float64 if first.dtype == torch.float64 else torch.float32
    npho, time, mask = fixed_events(device)
    was_training = network.training
    network.eval()
    try:
        with torch.autocast(device.type, enabled=False), torch.backends.cudnn.flags(allow_tf32=False):
            if isinstance(network, Regressor):
                found = network(npho.to(dtype), time.to(dtype))
            else:
                hidden = network(npho.to(dtype), time.to(dtype), mask)["sensors"][mask]
                found = {"sensors": hidden[:: max(1, len(hidden) // (NUM_EVENTS * KEPT_SENSORS))]}
    finally:
        network.train(was_training)
    return {name: value.double().flatten().tolist() for name, value in found.items()}


def moved(network: nn.Module, stored: Mapping[str, Sequence[float]]) -> str:
    """Return how the outputs of a network differ from those stored, or an empty string.

    What float64 gives tells how much of it rounding can be; four times as much is accepted.
    """
    found = outputs_of(network)
    said = difference(stored, found)
    if not said or difference(stored, found, dict.fromkeys(found, _NO_ROUNDING)):
        return said
    try:
        exact = outputs_of(copy.deepcopy(network).double())
    except (RuntimeError, MemoryError):  # no room for it
        return said
    rounding = {name: max(abs(a - b) for a, b in zip(found[name], exact[name], strict=True)) for name in found}
    return difference(stored, found, {name: _ROUNDINGS * size for name, size in rounding.items()})


def difference(
    stored: Mapping[str, Sequence[float]],
    found: Mapping[str, Sequence[float]],
    accepted: Mapping[str, float] | None = None,
) -> str:
    """Return how outputs differ, or an empty string.

    Args:
        stored: What the network gave once.
        found: What it gives now.
        accepted: Difference in network units that is none, by output, where that is more than ``CLOSE``.
    """
    for name in stored.keys() | found.keys():
        before, now = list(stored.get(name, ())), list(found.get(name, ()))
        if len(before) != len(now):
            return f"output {name} has {len(now)} numbers instead of {len(before)}"
        least = (accepted or {}).get(name, 0.0)
        for place, (old, new) in enumerate(zip(before, now, strict=True)):
            if not isinstance(old, int | float) or not abs(new - old) <= max(least, CLOSE * max(1.0, abs(old))):
                return f"output {name}[{place}] is {new:.6g} instead of {old}"
    return ""
