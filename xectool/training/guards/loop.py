"""Guards on the loop: waiting for data, state made in a forward pass, graphs kept alive, ranks that differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn

from xectool.errors import RunDiverged, UsageError
from xectool.training.guards.base import Guard, Notice, StepFacts
from xectool.training.ranks.agreement import data_facts, digest, leaves
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress

WAIT_STEPS: Final = 50
_OWN_STATE: Final = {"training"}
_ABSENT: Final = object()


class DataWait(Guard):
    """G11: how much of the time the loop waits for data, the first step of each epoch aside."""

    code = "G11"

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self._waits: deque[tuple[float, float]] = deque()
        self._wait_s = self._total_s = 0.0
        self._said = 0

    def after_step(self, progress: Progress, step: StepFacts) -> Iterator[Notice]:
        """Look at the last 50 steps; say so once an epoch."""
        if step.window[0].step == 0:
            return
        self._waits.append((step.wait_s, step.step_s))
        self._wait_s, self._total_s = self._wait_s + step.wait_s, self._total_s + step.step_s
        if len(self._waits) > WAIT_STEPS:
            wait_s, total_s = self._waits.popleft()
            self._wait_s, self._total_s = self._wait_s - wait_s, self._total_s - total_s
        if len(self._waits) < WAIT_STEPS or self._said == progress.epoch:
            return
        share = self._wait_s / self._total_s if self._total_s > 0 else 0.0
        if share > self.config.data_wait_fraction:
            self._said = progress.epoch
            yield Notice("data_wait", {"share": share, "steps": WAIT_STEPS}, "", say=False)


class LazyState(Guard):
    """G22: parameters, buffers or attributes that come into being in a forward pass; the ranks then do not agree."""

    code = "G22"

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self._before: dict[str, dict[str, Any]] | None = None

    def begin(self, progress: Progress) -> Iterator[Notice]:
        """Note what every module has."""
        self._before = module_state(self.parts.model)
        return iter(())

    def after_step(self, progress: Progress, step: StepFacts) -> Iterator[Notice]:
        """Compare after the first step."""
        if self._before is None:
            return
        self.done = True
        before, self._before = self._before, None
        after = module_state(self.parts.model)
        changed = sorted(
            f"{name or 'model'}.{attribute}"
            for name in after
            for attribute in _differing(before.get(name, {}), after[name])
        )
        if changed:
            named = ", ".join(changed[:3])
            message = f"state was created or replaced in forward: {named}; that is not safe with several ranks"
            yield Notice("lazy_state", {"modules": changed}, message)


def module_state(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return what each module holds, by name: tensors by shape and type, submodules by kind, plain values as they are.

    A buffer may rightly change its numbers in a forward pass, such as a running mean; its shape and type may not.
    """
    found = {}
    for name, module in model.named_modules():
        own = {key: value for key, value in vars(module).items() if value is not None and not key.startswith("_")}
        own |= {key: value for key, value in vars(module).items() if isinstance(value, torch.Tensor)}
        own |= module._parameters | {key: value for key, value in module._buffers.items() if value is not None}
        own |= module._modules
        found[name] = {key: _mark(value) for key, value in own.items() if key not in _OWN_STATE}
    return found


def _mark(value: Any) -> Any:
    """Return what tells a value from another one of the same name."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype, value.requires_grad)
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | dict | set):
        return (type(value), len(value))
    return type(value)


def _differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [key for key in before.keys() | after.keys() if before.get(key, _ABSENT) != after.get(key, _ABSENT)]


class MetricGraph(Guard):
    """G28: a metric that is still a tensor with a graph keeps the activations of its step alive."""

    code = "G28"

    def after_step(self, progress: Progress, step: StepFacts) -> Iterator[Notice]:
        """Look at the loss sums.

        Raises:
            UsageError: They hold a graph.
        """
        result = step.result
        if result.sums.requires_grad or result.counts.requires_grad:
            yield from self._look({"loss sums": result.sums, "counts": result.counts})

    def after_validation(self, progress: Progress, metrics: dict[str, Any]) -> Iterator[Notice]:
        """Look at the metrics.

        Raises:
            UsageError: One holds a graph.
        """
        yield from self._look(metrics)

    def _look(self, metrics: dict[str, Any]) -> Iterator[Notice]:
        for name, value in metrics.items():
            if isinstance(value, torch.Tensor) and value.requires_grad:
                yield Notice("metric_graph", {"metric": name})
                raise UsageError(
                    f"metric '{name}' keeps the graph alive",
                    where="the task that computes it",
                    fix=f"return float(value.detach()) for '{name}'",
                    code="XT-METRIC-GRAPH",
                )


class RankSteps(Guard):
    """G20: all ranks have taken the same number of steps."""

    code = "G20"

    def after_epoch(self, progress: Progress, metrics: dict[str, Any]) -> Iterator[Notice]:
        """Compare at the end of an epoch.

        Raises:
            RunDiverged: They differ.
        """
        steps = self.parts.ranks.gather(progress.step)
        yield Notice("ranks", {"steps": {str(rank): count for rank, count in enumerate(steps)}})
        if len(set(steps)) > 1:
            raise RunDiverged(
                f"the ranks have taken different numbers of steps: {steps}",
                where=f"epoch {progress.epoch}",
                fix="--resume auto",
                code="XT-UNEVEN-RANKS",
            )


class RankHashes(Guard):
    """G21: all ranks run the same configuration, code and data."""

    code = "G21"

    def begin(self, progress: Progress) -> Iterator[Notice]:
        """Compare before the first step.

        Raises:
            UsageError: They differ; names the rank and what differs.
        """
        everywhere = self.parts.ranks.gather(fingerprints(self.parts))
        for rank, values in enumerate(everywhere):
            differing = [key for key in values if values[key] != everywhere[0].get(key)]
            if not differing:
                continue
            yield Notice("hash_mismatch", {"rank": rank, "key": differing[0]})
            raise UsageError(
                f"rank {rank} runs with another {differing[0]} than rank 0",
                where=f"rank {rank}",
                fix="start all ranks with the same command, program and files",
                code="XT-RANK-MISMATCH",
            )


def fingerprints(parts: RunParts) -> dict[str, str]:
    """Return digests of what must be the same on all ranks, once all is resolved; the configuration by its keys."""
    found = {"data": digest(data_facts(parts.train_loader.source.files))}
    return found | {key: digest(value) for key, value in leaves(parts.config.to_dict())}
