"""What an exported file must give: the network itself, by a way that does not pass through the exported graph.

Axes: B events, S sensors (4760), C predicted channels, K numbers of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xectool.export.graphs import RAW, ExportGraph
from xectool.models.inpainter import Inpainter
from xectool.models.mae import MaskedAutoencoder
from xectool.models.normalize import Normalizer
from xectool.models.regressor import Regressor

Arrays = dict[str, npt.NDArray[np.generic]]


def feed(graph: ExportGraph, normalizer: Normalizer, npho: Tensor, time: Tensor, mask: Tensor | None) -> Arrays:
    """Return the inputs of a graph, by name, for raw events.

    Args:
        graph: Says what it takes.
        normalizer: Of its network.
        npho: Photons, shape (B, S).
        time: Seconds, shape (B, S).
        mask: Sensors to predict, bool (B, S); None for a regressor.
    """
    made: dict[str, Callable[[], Tensor]] = {
        "npho": lambda: npho,
        "time": lambda: time,
        "x": lambda: normalizer(npho, time),
        "mask": lambda: torch.zeros_like(npho, dtype=torch.bool) if mask is None else mask,
    }
    return {port.name: made[port.name]().contiguous().numpy() for port in graph.inputs}


@torch.inference_mode()
def expected(model: nn.Module, mode: str, given: Mapping[str, npt.NDArray[np.generic]]) -> Arrays:
    """Return what the network gives for the inputs of its exported file, by output name.

    Args:
        model: The network.
        mode: ``raw`` or ``normalized``.
        given: The inputs by name.
    """
    was_training = model.training
    model.eval()
    try:
        tensors = {name: torch.from_numpy(value) for name, value in given.items()}
        found = (
            _of_regressor(model, mode, tensors) if isinstance(model, Regressor) else _of_sensors(model, mode, tensors)
        )
    finally:
        model.train(was_training)
    return {name: value.numpy() for name, value in found.items()}


def _of_regressor(model: Regressor, mode: str, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return model.predict(given["npho"], given["time"]) if mode == RAW else model.forward_normalized(given["x"])


def _of_sensors(model: nn.Module, mode: str, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    assert isinstance(model, Inpainter | MaskedAutoencoder)
    mask = given["mask"]
    if mode == RAW and isinstance(model, Inpainter):
        repaired = model.inpaint(given["npho"], given["time"], mask)
        return {f"pred_{channel}": repaired[channel] for channel in model.channels}
    if isinstance(model, Inpainter):
        sensors = model.fill(given["x"], mask)
    elif mode == RAW:
        sensors = model(given["npho"], given["time"], mask)["sensors"]
    else:
        sensors = model.by_sensor(model.reconstruct(given["x"], mask))
    return {
        f"pred_{channel}": _channel(model, mode, channel, (sensors[..., index], mask), given)
        for index, channel in enumerate(model.channels)
    }


def _channel(
    model: Inpainter | MaskedAutoencoder,
    mode: str,
    channel: str,
    predicted: tuple[Tensor, Tensor],
    given: Mapping[str, Tensor],
) -> Tensor:
    value, mask = predicted
    place = ("npho", "time").index(channel)
    normalizer = model.normalizer
    answer = (given[channel] if mode == RAW else given["x"][..., place]).clone()
    shown = mask & model.covered
    if mode == RAW:
        inverse = normalizer.inverse_npho if channel == "npho" else normalizer.inverse_time
        answer[mask] = 1e10
        answer[shown] = inverse(value)[shown]
    else:
        answer[mask] = (normalizer.sentinel_npho, normalizer.sentinel_time)[place]
        answer[shown] = value[shown]
    return answer
