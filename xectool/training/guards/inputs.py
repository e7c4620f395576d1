"""G01: the first batch in network units; a wrong scale ruins every run and looks like anything else later."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor

from xectool.config.guards import GuardsConfig
from xectool.config.input_limits import LARGEST_ABS, LARGEST_MEAN, LARGEST_STD, SMALLEST_STD
from xectool.data.batch import EventBatch
from xectool.detector.markers import marker_words, markers_in
from xectool.detector.photon_statistics import PEDESTAL, photon_statistics
from xectool.errors import DataUnusable
from xectool.models.normalize import Normalizer
from xectool.training.guards.base import Guard, Notice
from xectool.training.stepping.evaluate import Predicted
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress

CHANNELS: Final = ("npho", "time")
P99_WARNING: Final = 10.0
# 52.8 MeV are about 7e5 photons of `npho` in all sensors: this is 3 GeV, which nothing in the beam leaves there.
MOST_PHOTONS: Final = 4e7
FEWEST_PHOTONS: Final = -1e4  # of an event: 0.7 MeV less than nothing
FEW: Final = 16  # events that tell a pedestal from light
FEWEST: Final = 20  # valid readings of an event that say anything about its spread


LEVELS: Final = ("", "ok", "warning", "error")  # none where a rank has no event yet


@dataclass(frozen=True)
class Opinion:
    """What one rank thinks of its first batch: the worst channel, why, and the numbers of each channel."""

    level: str = ""
    channel: str = ""
    reason: str = ""
    channels: dict[str, dict[str, float]] = field(default_factory=dict)


class InputScale(Guard):
    """Judges each event by itself and takes the median over the events: one corrupted event is no matter of scale.

    Readings that are not finite are none either: they have guards of their own. The worst opinion of all ranks counts
    on every one of them: where one stopped alone the others would wait for it.
    """

    code = "G01"

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self._done = False
        self._validation: Opinion | None = None

    def before_step(self, progress: Progress, window: Sequence[EventBatch]) -> Iterator[Notice]:
        """Look at the first batch of the attempt, of all ranks together.

        Raises:
            DataUnusable: The scale is out of all proportion, and ``guards.on_input_scale`` is ``stop``.
        """
        if self._done:
            return
        opinions = self.parts.ranks.gather(self._look(window))
        rank, worst = max(enumerate(opinions), key=lambda item: LEVELS.index(item[1].level))
        self._done = bool(worst.level)
        if not self._done:
            return
        whose = f" of rank {rank}" if len(opinions) > 1 and worst.reason else ""
        message = f"first batch{whose}: {worst.channel}: {worst.reason}" if worst.reason else ""
        data = {"channels": worst.channels, "level": worst.level, "channel": worst.channel, "reason": worst.reason}
        code = None if worst.level == "error" else ""  # `diagnose run` makes no finding of a warning
        stop = refusal(worst, self.config, whose)
        yield Notice("input_scale", data | ({"rank": rank} if whose else {}), message, stop is None, code)
        if stop is not None:
            raise stop

    def watch(self, predicted: Iterable[Predicted]) -> Iterator[Predicted]:
        """Return the stream of a validation with a look at the first batch of the attempt."""
        stream = iter(predicted)
        if self._validation is None:
            for item in stream:
                self._validation = self._look([item[0]])
                yield item
                del item
                break
        yield from stream

    def after_validation(self, progress: Progress, metrics: dict[str, Any]) -> Iterator[Notice]:
        """Tell once of a validation whose events are out of scale, which no training notices."""
        found, self._validation = self._validation, Opinion()
        if found is not None and found.level == "error":
            data = {"channels": found.channels, "level": found.level, "channel": found.channel, "reason": found.reason}
            message = f"first validation batch: {found.channel}: {found.reason}"
            yield Notice("input_scale", data | {"sample": "validation"}, message)

    def _look(self, window: Sequence[EventBatch]) -> Opinion:
        """Return what the first batch with events looks like."""
        batch = next((batch for batch in window if batch.num_events), None)
        return Opinion() if batch is None else opinion_of(batch, cast(Normalizer, self.parts.model.normalizer))


def refusal(opinion: Opinion, guards: GuardsConfig, whose: str = "") -> DataUnusable | None:
    """Return what stops a training at a first batch of which a guard is of this opinion, if anything does."""
    if opinion.level != "error" or guards.on_input_scale != "stop":
        return None
    raw = raw_line(opinion.channels[opinion.channel])
    return DataUnusable(
        f"the {opinion.channel} of the first batch{whose} is out of scale: {opinion.reason}",
        where=f"normalization, data.train_path; raw {opinion.channel}: {raw}",
        fix="--set guards.on_input_scale=warn   # trains all the same; look at normalization and branch first",
        code="XT-INPUT-SCALE",
    )


def opinion_of(batch: EventBatch, normalizer: Normalizer) -> Opinion:
    """Return the numbers of each channel of a batch, and what they mean for the network behind a normaliser."""
    npho, times = batch.npho.cpu(), batch.time.cpu()
    with torch.no_grad():
        values, valid = normalizer.normalize(npho, times)
    raw = {"npho": npho, "time": times}
    valid = valid & torch.isfinite(values)
    facts = {name: channel_facts(values[..., i], valid[..., i], raw[name]) for i, name in enumerate(CHANNELS)}
    found = []
    for i, name in enumerate(CHANNELS):
        level, reason = judge(values[..., i], valid[..., i], raw[name] if name == "npho" else None)
        if marked := _marked(raw[name], valid[..., i], name):
            level, reason = max(level, "warning", key=LEVELS.index), "; ".join(filter(None, (reason, marked)))
        found.append(Opinion(level, name if reason else "", reason, facts))
    return max(found, key=lambda opinion: LEVELS.index(opinion.level))


def _marked(raw: Tensor, valid: Tensor, channel: str) -> str:
    """Return which number looks like a marker of no reading among the valid readings of a channel; empty for none."""
    readings = torch.where(valid, raw, torch.nan).numpy(force=True)
    many = int(valid.sum())
    shares = (
        f"{marker_words(number)} looks like your marker of 'no reading' "
        f"(in {100 * float((readings == np.float32(number)).sum()) / many:.3g} % of the readings)"
        for number in markers_in(readings, channel)
    )
    return "; ".join(shares)


def channel_facts(values: Tensor, valid: Tensor, raw: Tensor) -> dict[str, float]:
    """Return the numbers of one channel over its valid readings: network units, then as in the file.

    Args:
        values: Network units, shape (B, S).
        valid: Which readings exist, shape (B, S).
        raw: As in the file, shape (B, S).
    """
    known, source = values[valid].double(), raw[valid].double()
    share = float(valid.double().mean()) if valid.numel() else 0.0
    if not known.numel():
        names = ("mean", "std", "absmax", "p99", "raw_min", "raw_max", "raw_mean")
        return {**dict.fromkeys(names, math.nan), "valid_fraction": share}
    place = max(0, math.ceil(0.99 * known.numel()) - 1)
    return {
        "mean": float(known.mean()),
        "std": float(known.std(correction=0)),
        "absmax": float(known.abs().max()),
        "p99": float(known.sort().values[place]),
        "valid_fraction": share,
        "raw_min": float(source.min()),
        "raw_max": float(source.max()),
        "raw_mean": float(source.mean()),
    }


def judge(values: Tensor, valid: Tensor, photons: Tensor | None) -> tuple[str, str]:
    """Return ``ok``, ``warning`` or ``error`` for one channel of a batch, and the reason.

    Args:
        values: Network units, shape (B, S).
        valid: Which readings exist, shape (B, S).
        photons: Raw photon numbers, shape (B, S), where the channel has such.
    """
    count = valid.sum(dim=1)
    telling = count >= FEWEST
    if not bool(telling.any()):
        return "warning", "no event has enough valid readings"
    zero = torch.zeros_like(values, dtype=torch.float64)
    known = torch.where(valid, values.double(), zero)[telling]
    count, valid = count[telling], valid[telling]
    means = known.sum(dim=1) / count
    spread = (torch.where(valid, known - means[:, None], 0.0).square().sum(dim=1) / count).sqrt()
    mean, std, absmax = (float(x.median()) for x in (means, spread, known.abs().amax(dim=1)))
    if photons is not None:
        total = float(torch.where(valid, photons.double()[telling], 0.0).sum(dim=1).median())
        if total > MOST_PHOTONS or total < FEWEST_PHOTONS:
            dark = float(np.median([photon_statistics(row)[1] for row in photons[:FEW].numpy(force=True)]))
            if abs(dark) > PEDESTAL:
                return (
                    "error",
                    f"{total:.2g} photons an event: {dark:.2g} times their fluctuation in its darkest sensors",
                )
            return "error", f"an event has {total:.2g} photons (52.8 MeV make about 7e5)"
    if abs(mean) > LARGEST_MEAN:
        return "error", f"its mean in network units is {mean:.3g}, beyond {LARGEST_MEAN:g}"
    if not SMALLEST_STD <= std <= LARGEST_STD:
        return "error", f"its spread in network units is {std:.3g}, outside {SMALLEST_STD:g} to {LARGEST_STD:g}"
    if absmax > LARGEST_ABS:
        return "error", f"an event reaches {absmax:.3g} in network units, beyond {LARGEST_ABS:g}"
    if absmax > P99_WARNING:
        return "warning", f"an event reaches {absmax:.3g} in network units; 0 to 3 is usual"
    return "ok", ""


def raw_line(facts: dict[str, float]) -> str:
    """Return range and mean of a channel as the file has them."""
    return f"{facts['raw_min']:.4g} to {facts['raw_max']:.4g}, mean {facts['raw_mean']:.4g}"
