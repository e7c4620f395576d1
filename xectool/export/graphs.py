"""What is exported: a network that takes what a file holds and gives physical units, or network units on both sides.

Axes: B events, S sensors (4760), C predicted channels, K numbers of a task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from xectool.config.tasks import TASK_UNITS
from xectool.detector.constants import DEAD_VALUE, NUM_SENSORS
from xectool.errors import UsageError, nearest, unknown_choice
from xectool.export.ports import BOOL, FLOAT32, Port
from xectool.models.heads import TargetTransform
from xectool.models.inpainter import Inpainter
from xectool.models.mae import MaskedAutoencoder
from xectool.models.normalize import Normalizer
from xectool.models.regressor import Regressor
from xectool.models.sensor_input import HiddenEvent

RAW, NORMALIZED = "raw", "normalized"
INPUT_MODES = (RAW, NORMALIZED)
CHANNEL_UNITS = {"npho": "photons", "time": "s"}
NETWORK_UNITS = "network units"
_DARK = -10.0  # photons that a sensor without light may read
NPHO = Port("npho", FLOAT32, (NUM_SENSORS,), "photons", "Photons of each sensor as read; 1e10, NaN or infinite: none")
TIME = Port("time", FLOAT32, (NUM_SENSORS,), "s", "Time of each sensor as read; 1e10, NaN or infinite: none")
MASK = Port("mask", BOOL, (NUM_SENSORS,), "1", "True where a sensor is hidden or dead and is to be predicted")
X = Port(
    "x", FLOAT32, (NUM_SENSORS, 2), NETWORK_UNITS, "Normalised npho and time; a sentinel where there is no reading"
)


class ExportGraph(nn.Module, ABC):
    """Abstract: takes tensors by position, gives a tuple; in evaluation mode.

    Attributes:
        inputs: What it takes, in order.
        outputs: What it gives, in order.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @abstractmethod
    def forward(self, *readings: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, in the order of :attr:`outputs`."""


class RegressorGraph(ExportGraph):
    """Chosen tasks of a regressor.

    ``raw`` gives ``<task>`` (B, K) in physical units, and ``sigma_<task>`` (B, K) where the head predicts a width.
    ``normalized`` gives ``<task>`` (B, K) in network units; with a Gaussian likelihood (B, 2K), mean and logarithm of
    the variance.

    Args:
        model: The network; it is exported in evaluation mode.
        tasks: Tasks to export, in the order of the outputs.
        mode: One of :data:`INPUT_MODES`.

    Raises:
        UsageError: A task was never trained, or is named twice.
    """

    def __init__(self, model: Regressor, tasks: Sequence[str], mode: str) -> None:
        super().__init__()
        _check_tasks(tasks, model.active_tasks)
        self.model, self.tasks, self.raw = model, tuple(tasks), mode == RAW
        self.inputs = (NPHO, TIME) if self.raw else (X,)
        self.outputs = tuple(port for task in tasks for port in self._ports(task))
        self.eval()

    def _ports(self, task: str) -> list[Port]:
        width = cast(TargetTransform, self.model.target_transforms[task]).width
        with_sigma = task in self.model.nll_tasks
        if self.raw:
            ports = [Port(task, FLOAT32, (width,), TASK_UNITS[task], f"Predicted {task}")]
            sigma = Port(
                f"sigma_{task}", FLOAT32, (width,), TASK_UNITS[task], f"Predicted standard deviation of {task}"
            )
            return [*ports, sigma] if with_sigma else ports
        meaning = f"{task}, then the logarithm of its variance" if with_sigma else task
        return [Port(task, FLOAT32, (2 * width if with_sigma else width,), NETWORK_UNITS, meaning)]

    def answer(self, x: Tensor, valid: Tensor) -> Tensor:
        """Return network units of all tasks, (B, sum of K), of x and the validity of its readings, each (B, S, 2)."""
        return torch.cat(list(self.model.forward_normalized(x, valid).values()), dim=1)

    def forward(self, *readings: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of npho and time, each (B, S), or of x (B, S, 2)."""
        if self.raw:
            found = self.model.forward_normalized(*self.model.normalizer.normalize(*readings))
        else:
            found = self.model.forward_normalized(readings[0])
        found = {task: found[task] for task in self.tasks}
        outputs = self.model.decode(found) if self.raw else found
        return tuple(outputs[port.name] for port in self.outputs)


class SensorGraph(ExportGraph):
    """An autoencoder or inpainter: events with their hidden sensors predicted, one output a channel.

    Hidden sensors hold what the network predicts, all others their reading as it was given. A hidden sensor that the
    network has no output for gets 1e10, or the sentinel in network units.

    Args:
        model: The network; it is exported in evaluation mode.
        mode: One of :data:`INPUT_MODES`.
    """

    covered: Tensor

    def __init__(self, model: MaskedAutoencoder | Inpainter, mode: str) -> None:
        super().__init__()
        self.model, self.raw = model, mode == RAW
        self.channels = model.channels
        self.inputs = (NPHO, TIME, MASK) if self.raw else (X, MASK)
        self.outputs = tuple(
            Port(
                f"pred_{channel}",
                FLOAT32,
                (NUM_SENSORS,),
                CHANNEL_UNITS[channel] if self.raw else NETWORK_UNITS,
                f"{channel} of each sensor: predicted where mask is true, else as given",
            )
            for channel in self.channels
        )
        self.eval()

    def answer(self, x: Tensor, valid: Tensor) -> Tensor:
        """Return network units (B, S, C) of x and the validity of its readings, each (B, S, 2), with some hidden."""
        return self._sensors(self.model.hider.apply(x, torch.arange(NUM_SENSORS).expand(x.shape[:2]) % 7 == 0, valid))

    def forward(self, *readings: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of npho, time and mask, each (B, S), or of x (B, S, 2) and mask (B, S)."""
        *given, mask = readings
        normalizer = self.model.normalizer
        if self.raw:
            x, valid = normalizer.normalize(*given)
            fills = {"npho": DEAD_VALUE, "time": DEAD_VALUE}
            readouts = dict(zip(("npho", "time"), given, strict=True))
        else:
            x, valid = given[0], None
            fills = {"npho": normalizer.sentinel_npho, "time": normalizer.sentinel_time}
            readouts = {"npho": x[..., 0], "time": x[..., 1]}
        sensors = self._sensors(self.model.hider.apply(x, mask, valid))
        outputs = []
        for index, channel in enumerate(self.channels):
            value = self._unit(normalizer, channel, sensors[..., index])
            filled = torch.where(self.model.covered, value, torch.full_like(value, fills[channel]))
            outputs.append(torch.where(mask, filled, readouts[channel]))
        return tuple(outputs)

    def _sensors(self, event: HiddenEvent) -> Tensor:
        if isinstance(self.model, Inpainter):
            return self.model.predict_event(event)
        return self.model.by_sensor(self.model.decode(self.model.tokens(event)))

    def _unit(self, normalizer: Normalizer, channel: str, value: Tensor) -> Tensor:
        if not self.raw:
            return value
        return normalizer.inverse_npho(value) if channel == "npho" else normalizer.inverse_time(value)


def make_graph(model: nn.Module, tasks: Sequence[str], mode: str) -> ExportGraph:
    """Return what to export of a network.

    Args:
        model: A regressor, an autoencoder or an inpainter.
        tasks: Tasks of a regressor; empty takes all that were trained.
        mode: One of :data:`INPUT_MODES`.

    Raises:
        UsageError: A task was never trained; tasks are asked of a network without; the mode is unknown, or cannot
            tell a reading of zero from none.
    """
    if mode not in INPUT_MODES:
        raise unknown_choice("inputs", mode, INPUT_MODES, "--inputs")
    graph: RegressorGraph | SensorGraph
    if isinstance(model, Regressor):
        graph = RegressorGraph(model, tasks or model.active_tasks, mode)
    elif tasks:
        raise UsageError(
            "tasks are chosen of a regressor; this network predicts sensors",
            where=f"--tasks {','.join(tasks)}",
            fix="leave out --tasks",
        )
    else:
        assert isinstance(model, MaskedAutoencoder | Inpainter)
        graph = SensorGraph(model, mode)
    if mode == NORMALIZED:
        _require_readings_apart(graph)
    return graph


@torch.inference_mode()
def _require_readings_apart(graph: RegressorGraph | SensorGraph) -> None:
    """Refuse a network to which it matters whether a reading exists, where network units do not tell it of usual ones.

    They come without the mask that does: a zero may have the value of the sentinel, a negative number that of a zero.
    """
    normalizer = graph.model.normalizer
    sentinels = torch.tensor((normalizer.sentinel_npho, normalizer.sentinel_time))
    bright = max(normalizer.npho_threshold, 0.0) + 1e4
    some = torch.arange(NUM_SENSORS).unsqueeze(0) % 2 == 0
    for place, photons, seconds in ((0, 0.0, 1e-8), (0, _DARK, 1e-8), (1, bright, 0.0)):
        x, valid = normalizer.normalize(torch.where(some, photons, bright), torch.where(some, seconds, 1e-8))
        told = x != sentinels  # in float32, as the graph compares
        if not torch.equal(told, valid) and not torch.equal(graph.answer(x, told), graph.answer(x, valid)):
            name, reading = (("npho", photons), ("time", seconds))[place]
            raise UsageError(
                f"in network units a {name} of {reading:g} is {float(x[0, 0, place]):g}, which does not tell the graph "
                f"whether there is a reading (normalization.sentinel_{name}, below_domain): it would give other "
                "numbers than the checkpoint",
                where="--inputs normalized",
                fix="--inputs raw",
            )


def _check_tasks(tasks: Sequence[str], trained: Sequence[str]) -> None:
    for task in tasks:
        if task not in trained:
            near = nearest(task, trained, 1)
            wanted = dict.fromkeys(near[0] if name == task else name for name in tasks) if near else trained
            raise UsageError(
                f"task '{task}' was never trained in this checkpoint (trained: {', '.join(trained)})",
                where="--tasks",
                fix=f"--tasks {','.join(wanted)}",
                code="XT-EXPORT-TASK",
            )
    if len(set(tasks)) != len(tasks):
        fix = f"--tasks {','.join(dict.fromkeys(tasks))}"
        raise UsageError("a task is named twice", where=f"--tasks {','.join(tasks)}", fix=fix)
