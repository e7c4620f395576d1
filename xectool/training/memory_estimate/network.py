"""The parts of a training step whose tensors have shapes but no data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.training import decay_in
from xectool.detector import faces
from xectool.models.build import build_model
from xectool.models.masking import MaskPolicy
from xectool.tasks import build_task
from xectool.tasks.base import TrainingTask
from xectool.training.optimization.ema import WeightAverage

LONG_RUN: Final = 1_000_000  # steps, for an average: any decay takes the same memory
_LARGE: Final = 1 << 14
_FACTORIES: Final = {torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn}


class _LargeOnMeta(TorchFunctionMode):
    """Makes large new float tensors without memory; tables and scalars keep their values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        plain = kwargs.get("device") is None and kwargs.get("dtype") in (None, torch.float32)
        if func in _FACTORIES and plain and _numel(args, kwargs) >= _LARGE:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _numel(args: Any, kwargs: Any) -> int:
    given = kwargs.get("size", args)
    shape = given[0] if given and isinstance(given[0], tuple | list) else given
    return int(np.prod([int(size) for size in shape], dtype=np.float64))


@dataclass(frozen=True)
class EmptyNetwork:
    """A network, its average and its objective, before their tensors are made ones without data.

    Attributes:
        config: The configuration, data-dependent values replaced by any.
        model: The network.
        average: Its weight average.
        notes: What was replaced.
    """

    config: RunConfig
    model: nn.Module
    average: WeightAverage
    notes: tuple[str, ...] = ()

    @classmethod
    def build(cls, config: RunConfig) -> EmptyNetwork:
        """Build a network of any size without memory for its weights."""
        config, notes = without_data_scaling(config)
        with _LargeOnMeta():
            model = build_model(config)
            average = WeightAverage(model, decay_in(config.training.ema_decay, LONG_RUN))
        return cls(config, model, average, notes)

    def modules(self) -> Iterator[nn.Module]:
        """Yield the network and what holds its average."""
        yield self.model
        yield from (value for value in vars(self.average).values() if isinstance(value, nn.Module))


def without_data_scaling(config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """Return a configuration that needs no events; nothing that is replaced changes a size."""
    if isinstance(config, RegressorConfig):
        enabled = config.tasks.enabled()
        fixed = {name: task.model_copy(update={"scale": 1.0, "shift": 0.0}) for name, task in enabled.items()}
        return config.model_copy(update={"tasks": config.tasks.model_copy(update=fixed)}), ()
    patterns = config.model.mask_patterns
    if not patterns.wanted or patterns.sensors:
        return config, ()
    model = config.model.model_copy(update={"mask_patterns": type(patterns)()})
    note = "model.mask_patterns have not been looked up: as many sensors as model.mask_ratio says are taken for hidden"
    return config.model_copy(update={"model": model}), (note,)


class Emptier:
    """Replaces tensors of modules by ones without data; a tensor that several modules share stays shared.

    Attributes:
        tables: Real values of small index tables and masks, by the storage of what stands for them.
    """

    def __init__(self) -> None:
        self.tables: dict[int, npt.NDArray[Any]] = {}
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def empty(self, module: nn.Module) -> None:
        """Replace all parameters and buffers; to be called where new tensors have no data."""
        places = [own for part in module.modules() for own in (part._parameters, part._buffers)]
        for own in places:
            for name, value in own.items():
                if value is not None and not isinstance(value, FakeTensor):
                    own[name] = self._stand_in(value)

    def _stand_in(self, value: Tensor) -> Any:
        if id(value) not in self._made:
            made: Tensor = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            if not value.is_floating_point() and value.device.type == "cpu":
                with _disable_current_modes():
                    self.tables[made.untyped_storage()._cdata] = value.numpy()
            if isinstance(value, nn.Parameter):
                made = nn.Parameter(made, requires_grad=value.requires_grad)
            # The original is kept as well, so that its id is not given to another one.
            self._made[id(value)] = (made, value)
        return self._made[id(value)][0]


def objective(network: EmptyNetwork) -> TrainingTask:
    """Return the task of a network; its constants still have their values."""
    with _disable_current_modes():
        return build_task(network.config, network.model)


def hidden_share(policy: MaskPolicy, valid: float) -> npt.NDArray[np.float64]:
    """Return the share of events that hide each sensor, shape (S,).

    Args:
        policy: How masks are drawn.
        valid: Share of sensors that can be hidden.
    """
    if policy.patterns is not None:
        table = np.zeros((len(policy.patterns), faces.NUM_SENSORS))
        for row, sensors in enumerate(policy.patterns):
            table[row, list(sensors)] = valid
        share: npt.NDArray[np.float64] = table.mean(axis=0)
        return share
    share = np.zeros(faces.NUM_SENSORS)
    ratios = {"": policy.ratio} if isinstance(policy.ratio, int | float) else dict(policy.ratio)
    for face, ratio in ratios.items():
        ids = faces.sensors(face) if face else np.arange(faces.NUM_SENSORS)
        share[ids] = np.floor(ratio * valid * len(ids)) / len(ids)
    return share


@contextmanager
def replaced(owner: Any, name: str, function: Any) -> Iterator[None]:
    """Put a function in place of a method of one object for a while."""
    object.__setattr__(owner, name, function)
    try:
        yield
    finally:
        object.__delattr__(owner, name)
