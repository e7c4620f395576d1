"""The parts of a run for a sweep: as training puts them together, on training events alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from xectool.config.root import RegressorConfig, RunConfig
from xectool.data.source import open_source
from xectool.training.events.mask_patterns import resolve_mask_patterns
from xectool.training.events.targets import resolve_target_scaling
from xectool.training.process.device import apply_determinism, compile_faults, plan_execution
from xectool.training.process.heap import keep_freed_memory
from xectool.training.process.memory_faults import memory_faults
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.build import RunData, build_parts
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import random_state_kept


@contextmanager
def sweep_parts(config: RunConfig, device: str | None) -> Iterator[RunParts]:
    """Give the parts of a run without a weight average; the process is afterwards as it was.

    Args:
        config: The configuration.
        device: Device that goes before the configuration's.

    Raises:
        XecError: Data or device cannot be used, or memory runs out.
    """
    with ExitStack() as stack:
        stack.enter_context(random_state_kept())
        stack.enter_context(memory_faults(config, "sweeping the learning rate"))
        stack.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
        stack.callback(setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
        execution = plan_execution(config.training, device)
        if execution.device.type == "cpu":
            keep_freed_memory()
        apply_determinism(config.training.deterministic)
        stack.enter_context(compile_faults(execution))
        parts = build_parts(_data(config), execution, Ranks())
        stack.callback(parts.train_loader.close)
        yield parts


def _data(config: RunConfig) -> RunData:
    """Return the training events in both places: nothing is validated here."""
    config = config.model_copy(update={"training": config.training.model_copy(update={"ema_decay": None})})
    tasks = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
    source = open_source(config.data, "train", tasks=tasks, require_truth=True)
    if isinstance(config, RegressorConfig):
        config = resolve_target_scaling(config, source)
    return RunData(source, source, resolve_mask_patterns(config, source))
