"""Looks for settings with which a run fits, in the process that tapes steps; what is proposed was estimated itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from xectool.config.host_memory import READERS
from xectool.config.root import RunConfig
from xectool.training.memory_estimate.device import USABLE
from xectool.training.memory_estimate.host import (
    COMPILE_TERM,
    HOST_SHARE,
    LOADER_TERM,
    STEP_TERM,
    HostSide,
    compile_processes,
)
from xectool.training.memory_estimate.plan import ACCUMULATION, BASE, BATCH, BF16, ladder, smaller, with_settings
from xectool.training.memory_estimate.recording import Recording
from xectool.training.memory_estimate.search import Search

_BATCHES_TRIED: Final = 3
Settings = dict[str, str]


@dataclass(frozen=True)
class Need:
    """What a run takes of device or host with some settings.

    Attributes:
        settings: ``key=value`` lines; empty for the run as it is.
        needed_bytes: What it takes with them.
        fits: Whether that is there.
    """

    settings: tuple[str, ...]
    needed_bytes: int
    fits: bool

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Need:
        """Return what ``dataclasses.asdict`` made."""
        return cls(tuple(content["settings"]), int(content["needed_bytes"]), bool(content["fits"]))


@dataclass
class Cures:
    """Settings that let a run fit.

    Args:
        search: The device, the limit of the host, and the numbers of the machine.
        config: The run.
        tapes: Of the step and of each remedy that has one, whole windows.
        tape: Tapes the step of a configuration.
        loader_bytes: Bound on the loader of a configuration.
    """

    search: Search
    config: RunConfig
    tapes: Mapping[str, Recording]
    tape: Callable[[RunConfig], Recording]
    loader_bytes: Callable[[RunConfig], int]
    _taped: dict[frozenset[tuple[str, str]], Recording] = field(init=False)

    def __post_init__(self) -> None:
        rungs = ladder(self.config, self.search.amp)
        self._rungs = {item.key or item.without: _parsed(item.settings) for item in rungs if item.settings}
        known = {name: self._rungs[name] for name in self.tapes if name in self._rungs}
        self._taped = {frozenset(settings.items()): self.tapes[name] for name, settings in known.items()}
        self._taped[frozenset()] = self.tapes[BASE]

    def of_device(self) -> Need | None:
        """Return what lets the step fit into the GPU, the least it needs where nothing does; None where it fits.

        What only just fits is returned where nothing leaves the room that `Device.planned_bytes` does.
        """
        device = self.search.device

        def within(room: float) -> Callable[[Settings], Need]:
            def need(settings: Settings) -> Need:
                bytes_ = device.needed(self._recording(settings))
                return Need(_lines(settings), bytes_, bytes_ <= room)

            return need

        if not device.is_gpu or device.fits(self._recording({})):
            return None
        room, limit = device.planned_bytes, USABLE * device.total_bytes
        found = self._smallest_change(within(room), room)
        only_just = found is not None and not found.fits and found.needed_bytes <= limit
        return self._smallest_change(within(limit), limit) if only_just else found

    def of_host(self) -> Need | None:
        """Return the same for the memory of the host, which on the CPU holds the step too."""
        if self.search.device.is_gpu:
            whole = self._host({}, before_step=False)
            return whole if whole.settings or not whole.fits else None
        room = HOST_SHARE * self.search.host_bytes
        return self._smallest_change(lambda settings: self._host(settings, before_step=not settings), room)

    def _smallest_change(self, need: Callable[[Settings], Need], room: float) -> Need | None:
        """Return the first that fits: as it is, with smaller batches, and with one event and more and more remedies."""
        whole = need({})
        if whole.fits:
            return whole if whole.settings else None
        for settings in self._batches(need, whole, room):
            if (found := need(settings)).fits:
                return found
        single = _parsed(smaller(self.config, 1))
        remedies = {key: rung for key, rung in self._rungs.items() if key not in ("", BATCH, ACCUMULATION)}
        hardest = need(_merged(single, *remedies.values()))
        if not hardest.fits and remedies.pop(BF16, {}):  # casts of large weights may take more than they save
            hardest = min(hardest, need(_merged(single, *remedies.values())), key=lambda found: found.needed_bytes)
        if not hardest.fits:
            return hardest
        tried = (need(_merged(single, *[*remedies.values()][:count])) for count in range(len(remedies)))
        return next((found for found in tried if found.fits), hardest)

    def _batches(self, need: Callable[[Settings], Need], whole: Need, room: float) -> Iterator[Settings]:
        """Yield smaller batches, the first by the straight line through the step and the next smaller one."""
        batch = self.config.data.batch_size
        if batch == 1:
            return
        next_smaller = self._rungs[BATCH]
        saved = (whole.needed_bytes - need(next_smaller).needed_bytes) / (batch - _batch_of(next_smaller))
        most = batch - math.ceil((whole.needed_bytes - room) / max(saved, 1.0))
        for _ in range(_BATCHES_TRIED):
            if most < 1:
                return
            yield (settings := _parsed(smaller(self.config, most)))
            most = _batch_of(settings) - 1

    def _host(self, settings: Settings, before_step: bool) -> Need:
        """Return the host's memory with settings and with those that make its own largest terms smaller.

        Args:
            settings: Of the step.
            before_step: Whether to leave alone what is smaller than the tensors of the step.
        """
        while True:
            config = with_settings(self.config, _lines(settings))
            terms, room = self._terms(config, settings), HOST_SHARE * self.search.host_bytes
            total = sum(terms.values())
            found = Need(_lines(settings), total, total <= room)
            moves = {term: move for term, move in _moves(config).items() if terms.get(term)}
            least = terms.get(STEP_TERM, 0) if before_step else 0
            largest = max(moves, key=lambda term: terms[term], default=None)
            if found.fits or largest is None or terms[largest] < least:
                return found
            settings = settings | moves[largest]

    def _terms(self, config: RunConfig, settings: Settings) -> dict[str, int]:
        search, tape = self.search, self._recording(settings)
        side = HostSide(
            config,
            self.loader_bytes(config),
            tape.peak(),
            search.device.is_gpu,
            compile_processes(config, search.device.is_gpu),
            search.predictions,
            tape.checkpoint_bytes,
        )
        return side.terms(search.calibration)

    def _recording(self, settings: Settings) -> Recording:
        of_step = {key: value for key, value in settings.items() if key not in _OF_HOST}
        key = frozenset(of_step.items())
        if key not in self._taped:
            self._taped[key] = self.tape(with_settings(self.config, _lines(of_step)))
        return self._taped[key]


_OF_HOST: Final = ("data.chunksize", "data.num_workers", "training.compile")


def _moves(config: RunConfig) -> dict[str, Settings]:
    """Return what makes a term of the host smaller, where that can still be done."""
    data, found = config.data, dict[str, Settings]()
    if data.chunksize > data.batch_size:
        found[LOADER_TERM] = {"data.chunksize": str(max(data.batch_size, data.chunksize // 2))}
    if data.num_workers:
        found[READERS] = {"data.num_workers": "0"}
    if config.training.compile != "none":
        found[COMPILE_TERM] = {"training.compile": "none"}
    return found


def _parsed(lines: tuple[str, ...]) -> Settings:
    return dict(line.split("=", 1) for line in lines)


def _merged(*settings: Settings) -> Settings:
    return {key: value for part in settings for key, value in part.items()}


def _lines(settings: Settings) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in settings.items())


def _batch_of(settings: Settings) -> int:
    return int(settings["data.batch_size"])
