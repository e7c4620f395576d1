"""Outputs for four fixed events: where the same weights give other numbers, they are read as another network.

Axes: B events (4), S sensors (4760).
"""

from __future__ import annotations

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

    Of a network that predicts sensors, ``KEPT_SENSORS`` hidden ones of each event.
    """
    if not isinstance(network, Regressor | MaskedAutoencoder | Inpainter):
        return {}
    device = next(network.parameters()).device
    npho, time, mask = fixed_events(device)
    was_training = network.training
    network.eval()
    try:
        with torch.autocast(device.type, enabled=False), torch.backends.cudnn.flags(allow_tf32=False):
            if isinstance(network, Regressor):
                found = network(npho, time)
            else:
                hidden = network(npho, time, mask)["sensors"][mask]
                found = {"sensors": hidden[:: max(1, len(hidden) // (NUM_EVENTS * KEPT_SENSORS))]}
    finally:
        network.train(was_training)
    return {name: value.double().flatten().tolist() for name, value in found.items()}


def difference(
    stored: Mapping[str, Sequence[float]], found: Mapping[str, Sequence[float]], tolerance: float = 1e-3
) -> str:
    """Return how outputs differ, or an empty string.

    Args:
        stored: What the network gave once.
        found: What it gives now.
        tolerance: Largest difference over the value, or over 1 where the value is smaller; other machines round
            otherwise.
    """
    for name in stored.keys() | found.keys():
        before, now = list(stored.get(name, ())), list(found.get(name, ()))
        if len(before) != len(now):
            return f"output {name} has {len(now)} numbers instead of {len(before)}"
        for place, (old, new) in enumerate(zip(before, now, strict=True)):
            if not isinstance(old, int | float) or not abs(new - old) <= tolerance * max(1.0, abs(old)):
                return f"output {name}[{place}] is {new:.6g} instead of {old}"
    return ""
