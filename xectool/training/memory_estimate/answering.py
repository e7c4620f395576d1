"""What the child process answers."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from xectool.config.host_memory import NumEvents, loader_terms
from xectool.config.load import config_from_dict
from xectool.config.root import RunConfig
from xectool.data.cache.deciding import planned_cache
from xectool.errors import XecError
from xectool.runlog.process import end_with_parent
from xectool.training.memory_estimate.cure import Cures
from xectool.training.memory_estimate.plan import FAR, LARGER, TAPED_WINDOW, request_of
from xectool.training.memory_estimate.recording import Recording
from xectool.training.memory_estimate.request import StepRequest
from xectool.training.memory_estimate.search import Search
from xectool.training.memory_estimate.step import VALIDATION, record
from xectool.training.process.memory import peak_resident_bytes

_SOURCE = "memory estimate"


def main(task: str, question: str, answer: str) -> None:
    """Answer one question, ``estimate`` or ``measure``, from a JSON file into another; ends where nobody waits."""
    end_with_parent()
    asked = json.loads(Path(question).read_text(encoding="utf-8"))
    try:
        found = _estimate(asked) if task == "estimate" else _measure(asked)
    except XecError as error:
        found = {name: getattr(error, name) for name in ("problem", "where", "fix", "code", "exit_code")}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


def _estimate(asked: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    requests = [StepRequest(**item) for item in asked["requests"].values()]
    # A collection in the middle of a step would free what only chance has left; one that looks at all of torch before
    # every step would take as long as a third of it.
    gc.disable()
    gc.freeze()
    # One after the other: builds of PyTorch for GPUs start threads at the first backward pass of a fake tensor, whether
    # there is a GPU or not, and a process forked after that has no gradients.
    recordings = [_record(requests[0])]
    gc.freeze()
    bounds = _validation_bounds(asked["requests"], recordings[0])
    recordings += [_record(*item) for item in zip(requests[1:], bounds, strict=True)]
    found = _Found.of(asked, requests[0], recordings)
    search = asked["search"] and Search.from_json(asked["search"])
    return {
        "recordings": recordings,
        "max_batch": found.largest(search) if search and search.largest else None,
        "cures": found.cures(search) if search else {},
        "loader_bytes": found.loader_bytes(found.config),
        "cache": planned_cache(found.config, asked["cached_events"], asked["elsewhere"]),
        "rss_bytes": peak_resident_bytes(),
    }


@dataclass(frozen=True)
class _Found:
    """What has been taped, and what tapes more.

    Attributes:
        config: The run.
        base: The request of its step.
        events: Of training and of validation.
        tapes: By name.
    """

    config: RunConfig
    base: StepRequest
    events: NumEvents
    tapes: Mapping[str, Recording]

    @classmethod
    def of(cls, asked: Mapping[str, Any], base: StepRequest, recordings: Sequence[dict[str, Any]]) -> _Found:
        """Return the tapes that are there, the inputs of all batches of a window with them."""
        config, windows = _config(base), asked["windows"]
        known = zip(asked["requests"], recordings, strict=True)
        tapes = {name: _whole(found, windows[name]) for name, found in known}
        return cls(config, base, NumEvents(asked["events"], asked["validation_events"]), tapes)

    def loader_bytes(self, config: RunConfig) -> int:
        """Return the bound on the loader of a configuration."""
        return round(sum(loader_terms(config, self.events).values()))

    def largest(self, search: Search) -> int:
        """Return the largest batch that fits."""
        own, window = self.config.validation.batch_size, self.config.training.grad_accum_steps

        def tape(batch_size: int) -> Recording:
            request = replace(self.base, batch_size=batch_size, validation_batch=own or batch_size)
            return _whole(_record(request), window)

        return search.find(self.config, self.tapes, tape, self.loader_bytes)

    def cures(self, search: Search) -> dict[str, Any]:
        """Return settings with which the run fits, of device and host."""
        shares = self.base.valid_npho, self.base.valid_time

        def tape(config: RunConfig) -> Recording:
            request = request_of(config, search.amp, shares, self.base.on_gpu)
            return _whole(_record(request), config.training.grad_accum_steps)

        cures = Cures(search, self.config, self.tapes, tape, self.loader_bytes)
        found = {"device_cure": cures.of_device(), "host_cure": cures.of_host()}
        return {name: need and asdict(need) for name, need in found.items()}


def _whole(recording: Mapping[str, Any], window: int) -> Recording:
    return Recording.from_json(recording).with_more_inputs(window - TAPED_WINDOW)


def _validation_bounds(names: Sequence[str], base: dict[str, Any]) -> list[int]:
    """Return what validation cannot exceed in the steps after the first; 0 for those that must be whole tapes.

    A remedy lowers the memory of validation or leaves it; casts to half precision lie beside what they are made of.
    """
    most = Recording.from_json(base).phase_peaks().get(VALIDATION, 0) * 3 // 2
    return [0 if name in (LARGER, FAR) else most for name in [*names][1:]]


def _record(request: StepRequest, validation_most: int = 0) -> dict[str, Any]:
    """Return a tape."""
    gc.collect()
    return record(_config(request), request, validation_most).to_json()


def _measure(asked: dict[str, Any]) -> dict[str, int]:
    from xectool.training.memory_estimate.measure import measured  # loads what an estimate does without

    request = StepRequest(**asked["request"])
    return measured(_config(request), request, torch.device(asked["device"]))


def _config(request: StepRequest) -> RunConfig:
    return config_from_dict(request.config, _SOURCE)
