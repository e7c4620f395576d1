"""An exported file in the place of a network: the rest of the program predicts and scores with it as with any other.

Axes: B events, S sensors (4760), C predicted channels, K numbers of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from xectool.config.root import InpainterConfig, MaeConfig, RegressorConfig, RunConfig
from xectool.detector.constants import NUM_SENSORS
from xectool.export.graphs import RAW
from xectool.export.runtime import Runtime
from xectool.models.heads import TargetTransform
from xectool.models.normalize import Normalizer
from xectool.models.regressor import GAUSSIAN_NLL, Regressor
from xectool.models.sensor_input import SensorHider, mask_policy

_PHYSICAL = "physical/"


class ExportedRegressor(nn.Module):
    """A regressor in an exported file.

    Args:
        runtime: Runs the file.
        config: Configuration in the file.
    """

    def __init__(self, runtime: Runtime, config: RegressorConfig) -> None:
        super().__init__()
        tasks = config.tasks.enabled()
        self.runtime, self.raw = runtime, runtime.description.inputs_mode == RAW
        self.normalizer = Normalizer(config.normalization)
        self.active_tasks = tuple(runtime.description.tasks)
        self.nll_tasks = tuple(name for name in self.active_tasks if tasks[name].loss_fn == GAUSSIAN_NLL)
        widths = {port.name: port.shape[0] for port in runtime.description.outputs}
        self.target_transforms = nn.ModuleDict()
        for name in self.active_tasks:
            task = tasks[name]
            width = widths[name] // (2 if name in self.nll_tasks and not self.raw else 1)
            self.target_transforms[name] = TargetTransform(width, task.scale, task.shift, task.log_transform)

    def forward(self, npho: Tensor, time: Tensor) -> dict[str, Tensor]:
        """Return network units by task as `Regressor.forward`, and what the file gave under ``physical/<name>``."""
        if not self.raw:
            return _run(self.runtime, {"x": self.normalizer(npho, time)})
        physical = _run(self.runtime, {"npho": npho, "time": time})
        outputs = {name: self._in_network_units(name, physical) for name in self.active_tasks}
        return outputs | {f"{_PHYSICAL}{name}": value for name, value in physical.items()}

    def decode(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return physical values, and ``sigma_<task>``, of the outputs of :meth:`forward`."""
        if not self.raw:
            return Regressor.decode(cast(Regressor, self), outputs)
        return {name.removeprefix(_PHYSICAL): value for name, value in outputs.items() if name.startswith(_PHYSICAL)}

    def _in_network_units(self, name: str, physical: Mapping[str, Tensor]) -> Tensor:
        """Return what the head gave for a physical prediction: the inverse of the transform in the file."""
        transform = cast(TargetTransform, self.target_transforms[name])
        value = physical[name].double()
        unscaled = value.log() if transform.log_transform else value
        mean = (unscaled - transform.shift.double()) / transform.scale.double()
        if name not in self.nll_tasks:
            return mean.float()
        unit = transform.scale.double() * (value if transform.log_transform else 1.0)
        log_variance = 2.0 * (physical[f"sigma_{name}"].double() / unit).log()
        return torch.cat((mean, log_variance), dim=1).float()


class ExportedSensorModel(nn.Module):
    """An autoencoder or inpainter in an exported file.

    Of a raw file the losses are those of its photons: a prediction beyond 9e9 of them counts as 9e9.

    Args:
        runtime: Runs the file.
        config: Configuration in the file.
    """

    covered: Tensor

    def __init__(self, runtime: Runtime, config: MaeConfig | InpainterConfig) -> None:
        super().__init__()
        state = runtime.description.state
        self.runtime, self.raw = runtime, runtime.description.inputs_mode == RAW
        self.normalizer = Normalizer(config.normalization)
        self.channels = tuple(config.model.predict_channels)
        policy = mask_policy(config.model, config.normalization, config.training.time)
        self.hider = SensorHider(self.normalizer, self.channels, config.model.geometry, policy)
        covered = torch.ones(NUM_SENSORS, dtype=torch.bool)
        covered[torch.tensor(state.get("uncovered", []), dtype=torch.int64)] = False
        self.register_buffer("covered", covered, persistent=False)
        log_vars = state.get("channel_log_vars")
        kept = None if log_vars is None else nn.Parameter(torch.tensor(log_vars), requires_grad=False)
        self.register_parameter("channel_log_vars", kept)

    def forward(self, npho: Tensor, time: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return ``sensors`` (B, S, C) in network units of npho, time and mask, each (B, S)."""
        mask = mask.bool()
        given = {"npho": npho, "time": time} if self.raw else {"x": self.normalizer(npho, time)}
        found = _run(self.runtime, {**given, "mask": mask})
        values = [self._in_network_units(channel, found[f"pred_{channel}"].double()) for channel in self.channels]
        known = (mask & self.covered).unsqueeze(-1)
        return {"sensors": torch.where(known, torch.stack(values, dim=-1), 0.0).float()}

    def _in_network_units(self, channel: str, value: Tensor) -> Tensor:
        if not self.raw:
            return value
        if channel == "time":
            return value / self.normalizer.time_scale - self.normalizer.time_shift
        scheme = self.normalizer.scheme
        counts: Tensor = scheme(value.clamp_min(scheme.lowest))
        return counts


def network_of(runtime: Runtime, config: RunConfig) -> nn.Module:
    """Return what predicts with an exported file.

    Args:
        runtime: Runs the file.
        config: Configuration in the file.
    """
    if isinstance(config, RegressorConfig):
        return ExportedRegressor(runtime, config)
    assert isinstance(config, MaeConfig | InpainterConfig)
    return ExportedSensorModel(runtime, config)


def _run(runtime: Runtime, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    arrays: dict[str, Any] = {name: value.cpu().contiguous().numpy() for name, value in given.items()}
    device = next(iter(given.values())).device
    return {name: torch.from_numpy(value).to(device) for name, value in runtime.run(arrays).items()}
