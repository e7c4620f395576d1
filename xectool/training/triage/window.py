"""What was wrong with a step: its events, the weights, the precision, or the loss.

Axes: B events of the whole window, in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xectool.data.batch import EventBatch
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.training.triage.bisect import bisect_events
from xectool.training.triage.halves import WidenedHalves
from xectool.training.triage.modules import ModuleFault, first_nonfinite_module
from xectool.training.triage.trial import Trial, kept_generators

MAX_CELLS = 20  # non-finite readings named
MAX_TOP = 10  # events named with their loss
MAX_SHARE = 0.5  # of the events of a window; where more are bad it is rather the weights
MAX_BISECTED = 8  # events that only the gradient gives away
CHANCE = 1e6  # squares of n normal errors all lie below 1e-6 ** (1 / n) of one more in about a case of a thousand
GROWTH = 10.0  # of the gradient norm over some steps: the weights were running away
FAR_FROM_PEERS = 20.0  # times the largest of the rest, however many those are

Losses = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """What was normal before.

    Attributes:
        typical: Loss of the steps before, a running median.
        limit: Loss beyond which a step is a spike.
        trusted: Whether both come from enough steps; before, they may only be what a constant prediction reaches.
        weights: Sound weights from some steps earlier, or None.
        grew: Whether the gradient norm grew tenfold or more over the steps before.
        parameters: Parameters whose gradient was not finite.
    """

    typical: float = math.nan
    limit: float = math.inf
    trusted: bool = True
    weights: Mapping[str, Tensor] | None = None
    grew: bool = False
    parameters: tuple[str, ...] = ()

    @property
    def risen(self) -> float:
        """Loss beyond which half of the events have risen with the others: half way to the limit, in logarithms."""
        return math.sqrt(self.typical * self.limit) if self.typical > 0 else self.limit


@dataclass(frozen=True)
class Triage:
    """The result of the look at one step.

    Attributes:
        suspects: Rows of the window's events that are at fault by themselves or together; empty where it is not they.
        cause: Code of the cause, such as ``XT-NAN-DATA``.
        confidence: ``certain``, ``likely`` or ``possible``.
        losses: Loss of each event alone, shape (B,); NaN where it has no truth.
        input: Non-finite raw values ``[row, sensor, channel, value]`` and the largest sizes.
        module: Where a value first stops being finite, or None.
        finite_in_float32: Whether the step is finite without reduced precision; None where it had none.
        finite_with_saved_weights: Whether it is sound with the earlier weights; None where there are none.
        weights_finite: Whether the weights are.
        weight_norm: Their L2 norm.
        by_mask: Whether the events are as usual with other sensors hidden: then their loss is that of this mask.
    """

    suspects: tuple[int, ...]
    cause: str
    confidence: str
    losses: Losses
    input: dict[str, Any] = field(default_factory=dict)
    module: ModuleFault | None = None
    finite_in_float32: bool | None = None
    finite_with_saved_weights: bool | None = None
    weights_finite: bool = True
    weight_norm: float = math.nan
    by_mask: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return what an incident folder keeps, as plain values."""
        finite = np.isfinite(self.losses)
        order = np.argsort(np.where(finite, -self.losses, -math.inf), kind="stable")[:MAX_TOP]
        return {
            "input": self.input,
            "per_event_loss": {
                "finite": int(finite.sum()),
                "nonfinite": int((~finite).sum()),
                "top": [[int(row), float(self.losses[row])] for row in order],
            },
            "module": None if self.module is None else asdict(self.module),
            "module_input_absmax": None if self.module is None else self.module.input_absmax,
            "finite_in_float32": self.finite_in_float32,
            "finite_with_saved_weights": self.finite_with_saved_weights,
            "weights_finite": self.weights_finite,
            "weight_norm": self.weight_norm,
            "by_mask": self.by_mask,
            "suspects": list(self.suspects),
            "cause": self.cause,
            "confidence": self.confidence,
        }


def has_grown(norms: Sequence[float], grad_norm: float) -> bool:
    """Return whether the gradient norm is, or just was, tenfold what it used to be; skipped steps have no norm.

    Args:
        norms: Gradient norms of the steps before, the newest last; NaN where a step had none.
        grad_norm: That of the step itself.
    """
    known = [norm for norm in norms if math.isfinite(norm)]
    return bool(known) and max(*known[-3:], grad_norm, 0.0) > GROWTH * median(known)


def triage_window(trial: Trial, window: Sequence[EventBatch], kind: str, reference: Reference | None = None) -> Triage:
    """Look at the events of a step whose update has not been made, or where spikes are only recorded has just been.

    Args:
        trial: The model as the step had it.
        window: The raw events of the step.
        kind: ``nonfinite`` or ``spike``.
        reference: What was normal before.
    """
    reference = reference or Reference()
    window = [batch for batch in window if batch.num_events]
    losses = np.concatenate([trial.event_losses(batch) for batch in window]) if window else np.empty(0)
    norm = float(nn.utils.get_total_norm([p.detach() for p in trial.model.parameters()]))
    found = Triage(
        (), "", "possible", losses, look_at_input(window), weights_finite=math.isfinite(norm), weight_norm=norm
    )
    if not window:
        return replace(found, cause="XT-NAN" if kind == "nonfinite" else "XT-SPIKE")
    return _of_spike(trial, window, found, reference) if kind == "spike" else _of_nan(trial, window, found, reference)


def _of_nan(trial: Trial, window: Sequence[EventBatch], found: Triage, reference: Reference) -> Triage:
    found = replace(found, module=_first_module(trial, window))
    if not found.weights_finite:
        return replace(found, cause="XT-NAN-WEIGHTS", confidence="certain")
    truth = np.concatenate([trial.has_truth(batch) for batch in window])
    bad = np.flatnonzero(truth & ~np.isfinite(found.losses))
    found = replace(found, finite_in_float32=_is_finite_in_float32(trial, window))
    if reference.weights is not None:
        with other_weights(trial.model, reference.weights):
            found = replace(found, finite_with_saved_weights=trial.is_finite(window))
    if found.finite_with_saved_weights:
        # the same events were harmless a little earlier
        cause = "XT-AMP-OVERFLOW" if found.finite_in_float32 else "XT-NAN-LR" if reference.grew else "XT-NAN-GRAD"
        return replace(found, cause=cause, confidence="likely")
    if found.finite_in_float32:
        return replace(found, cause="XT-AMP-OVERFLOW", confidence="certain")
    if len(bad):
        return _blame(found, bad, int(truth.sum()), _loss_or_data(trial, window, found))
    rows = bisect_events(lambda chosen: not trial.is_finite(rows_of(window, chosen)), len(truth), MAX_BISECTED)
    if rows and (len(rows) <= MAX_SHARE * len(truth) or len(truth) == 1):
        return replace(found, suspects=tuple(rows), cause="XT-NAN-GRAD", confidence="certain")
    return replace(found, cause="XT-NAN-GRAD", confidence="possible")


def _is_finite_in_float32(trial: Trial, window: Sequence[EventBatch]) -> bool | None:
    """Return whether a step is finite without any float16, a module's own included; None where there is none."""
    reduced = trial.execution.autocast_dtype is not None
    full = replace(trial, execution=replace(trial.execution, autocast_dtype=None, use_scaler=False), loss_scale=1.0)
    with WidenedHalves() as widened:
        finite = full.is_finite(window)
    return finite if reduced or widened.count else None


def _blame(found: Triage, bad: npt.NDArray[np.int64], num_events: int, cause: str) -> Triage:
    """Blame the events that are bad by themselves, unless all of many are: then it is the loss, or the weights."""
    if len(bad) == num_events and num_events > 1:
        cause = cause if cause == "XT-NAN-LOSS" else "XT-NAN-GRAD"
        return replace(found, cause=cause, confidence="possible")
    return replace(found, suspects=tuple(bad.tolist()), cause=cause, confidence="certain")


def _loss_or_data(trial: Trial, window: Sequence[EventBatch], found: Triage) -> str:
    """Return whether the loss is at fault: not finite of finite outputs, with whatever random numbers it was found."""
    if found.module is not None:
        return "XT-NAN-LOSS" if found.module.phase == "loss" else "XT-NAN-DATA"
    sound = not found.input["nonfinite"] and all(trial.has_finite_outputs(batch) for batch in window)
    return "XT-NAN-LOSS" if sound else "XT-NAN-DATA"


def _of_spike(trial: Trial, window: Sequence[EventBatch], found: Triage, reference: Reference) -> Triage:
    losses = np.where(np.isnan(found.losses), -math.inf, found.losses)
    high = np.flatnonzero(losses > reference.limit)
    rest = np.delete(found.losses, high)
    rest = rest[~np.isnan(rest)]
    # where no event is left to compare with, nothing says that it is the events; nor where all of them rose
    calm = len(rest) > 0 and float(rest.mean()) <= reference.limit and float(np.median(rest)) <= reference.risen
    if reference.weights is not None:
        with other_weights(trial.model, reference.weights):
            before = np.concatenate([trial.event_losses(batch) for batch in window])
        still = high[~(before[high] <= reference.limit)]
        known = before[~np.isnan(before)]
        sound = not len(known) or float(known.mean()) <= reference.limit
        found = replace(found, finite_with_saved_weights=bool(sound))
        high = still
    elif len(high) > max(1, MAX_SHARE * len(losses)):
        calm = False
    if not reference.trusted:
        calm = calm and _far(losses[high], rest, reference)
    if len(high) and calm:
        lasting = high[trial.usual_losses(window)[high] > reference.limit]
        if not len(lasting):
            return replace(found, cause="XT-SPIKE", confidence="certain", by_mask=True)
        high = lasting
        return replace(found, suspects=tuple(high.tolist()), cause="XT-SPIKE-EVENT", confidence="certain")
    return replace(found, cause="XT-SPIKE-LR", confidence="likely" if reference.grew else "possible")


def _far(high: Losses, rest: Losses, reference: Reference) -> bool:
    """Return whether losses are far beyond all of the rest: a young network is wrong about some events by chance."""
    factor = max(FAR_FROM_PEERS, CHANCE ** (1 / len(rest)))
    return bool(high.min(initial=math.inf) > factor * max(float(rest.max()), abs(reference.typical)))


def rows_of(window: Sequence[EventBatch], chosen: Sequence[int]) -> list[EventBatch]:
    """Return the batches of a window with only the events at ``chosen`` rows, counted over the whole window."""
    rows, start, kept = np.asarray(list(chosen), dtype=np.int64), 0, []
    for batch in window:
        here = rows[(rows >= start) & (rows < start + batch.num_events)] - start
        start += batch.num_events
        if len(here):
            kept.append(batch.take(here))
    return kept


def without_rows(window: Sequence[EventBatch], dropped: Sequence[int]) -> list[EventBatch]:
    """Return all batches of a window without the events at ``dropped`` rows; a batch may become empty."""
    gone, start, kept = np.asarray(list(dropped), dtype=np.int64), 0, []
    for batch in window:
        keep = np.setdiff1d(np.arange(batch.num_events), gone - start)
        start += batch.num_events
        kept.append(batch if len(keep) == batch.num_events else batch.take(keep))
    return kept


def look_at_input(window: Sequence[EventBatch]) -> dict[str, Any]:
    """Return the non-finite raw values of a window, as ``[row, sensor, channel, value]``, and the largest sizes."""
    cells: list[list[Any]] = []
    sizes: dict[str, float] = {}
    start = 0
    for batch in window:
        columns = {"npho": batch.npho, "time": batch.time} | {f"target {t}": v for t, v in batch.targets.items()}
        for channel, values in columns.items():
            finite = torch.isfinite(values)
            for row, sensor in (~finite).nonzero()[: MAX_CELLS - len(cells)].tolist():
                cells.append([start + row, sensor, channel, str(float(values[row, sensor]))])
            known = values[finite].abs()
            known = known[known < UNKNOWN_ABOVE]
            sizes[channel] = max(sizes.get(channel, 0.0), float(known.max()) if known.numel() else 0.0)
        start += batch.num_events
    return {"nonfinite": cells, "absmax": sizes}


class other_weights:  # noqa: N801  reads as the statement it is used in
    """Give a model other weights for a while.

    Args:
        model: The network.
        weights: Its other state, by key.
    """

    def __init__(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        self._model, self._weights = model, weights
        self._own: dict[str, Tensor] = {}

    def __enter__(self) -> None:
        self._own = {key: value.clone() for key, value in self._model.state_dict().items()}
        self._model.load_state_dict(dict(self._weights))

    def __exit__(self, *_: object) -> None:
        self._model.load_state_dict(self._own)


def _first_module(trial: Trial, window: Sequence[EventBatch]) -> ModuleFault | None:
    with kept_generators():
        found = (first_nonfinite_module(trial.model, trial.task, batch, trial.execution) for batch in window)
        return next((fault for fault in found if fault is not None), None)
