"""``predict --compare``: a regressor on events with dead sensors dead, filled from neighbours, and inpainted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xectool.config.root import RunConfig
from xectool.config.tasks import HEADLINE_METRICS
from xectool.data.dead_masks import open_dead_sensors
from xectool.data.events import EventSource
from xectool.engine.input_events import open_events
from xectool.engine.loading import (
    LoadedModel,
    assumed_losses,
    check_hops,
    check_options,
    events_at_once,
    load_checkpoint,
    ready_model,
    served_in_order,
    told_of,
)
from xectool.engine.missing_truth import missing_truth
from xectool.engine.negative_fills import CountedFill, negative_fills
from xectool.engine.repairing import filler, load_inpainter
from xectool.errors import DataUnusable, UsageError, counted, did_you_mean, in_shell, nearest
from xectool.findings import Finding, Severity
from xectool.runlog.metrics import with_unit
from xectool.tasks.event_variants import Fill, Variant, with_dead, with_neighbours, with_network
from xectool.tasks.neighbour_baselines import DEFAULT_HOPS
from xectool.tasks.paired import PairedMetric
from xectool.training.predicting.variants import ComparisonRun, compare_variants
from xectool.training.process.heap import trimmed
from xectool.training.process.memory_faults import memory_faults
from xectool.training.process.progress import NullObserver, Observer

VARIANTS = ("raw", "neighbour", "inpainted")
_WITHOUT_INPAINTER = VARIANTS[:2]
_OR_INPAINTED = "   # or with a checkpoint of a run of kind inpainter: --inpainter CKPT"
SIGMAS: Final = 3.0
"""Errors by which a difference of the same events is told as one."""
FEWEST_EVENTS: Final = 10
"""Of fewer, drawn again and again, a percentile hardly moves, and variants alike would differ by "3 errors"."""
_BETTER, _WORSE, _NEITHER = "better in", "worse in", f"no difference beyond {SIGMAS:g} errors in"
_UNKNOWN = "too few events to tell in"


@dataclass(frozen=True)
class CompareResult:
    """What a regressor makes of each variant.

    Attributes:
        events: Events predicted.
        variants: In the order they were asked for; the first is the one the others are compared with.
        dead: Where the dead sensors are known from.
        dead_per_event: Mean number of dead sensors in an event.
        hops: Reach of the neighbours of the variant ``neighbour``; None where it is not compared.
        rows: Every metric of every task: ``task, metric, events, values, differences, errors``, the last three by
            variant; ``events`` is how many of the events have a truth of the task.
        findings: What was noticed about the files.
    """

    events: int
    variants: tuple[str, ...]
    dead: str
    dead_per_event: float
    hops: int | None
    rows: tuple[PairedMetric, ...]
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}

    def title(self) -> str:
        """Return the line above the table."""
        reach = "" if self.hops is None else f", neighbours within {self.hops} hop{'s' * (self.hops > 1)}"
        return f"{counted(self.events, 'event')}, {self.dead_per_event:.1f} dead sensors an event ({self.dead}){reach}"

    def table(self) -> tuple[list[str], list[list[object]]]:
        """Return the columns and rows of the table that is shown, a row a metric and variant."""
        reference = self.variants[0]
        rows: list[list[object]] = []
        for row in self.rows:
            rows.append([with_unit(row.metric), row.events, reference, row.values[reference], ""])
            for name in self.variants[1:]:
                error = row.errors[name]
                spread = f"± {error:.2g}" if math.isfinite(error) else "(too few events for an error)"
                change = f"{row.differences[name]:+.3g} {spread}"
                rows.append(["", "", name, row.values[name], change])
        return ["metric", "events", "variant", "value", f"minus {reference}"], rows

    def verdict(self) -> list[str]:
        """Return of each variant but the first in which headline metrics it is better or worse, beyond the errors."""
        rows = [row for row in self.rows if row.metric == HEADLINE_METRICS[row.task]]
        return [self._of(name, rows) for name in self.variants[1:]]

    def _of(self, name: str, rows: Sequence[PairedMetric]) -> str:
        told: dict[str, list[str]] = {_BETTER: [], _WORSE: [], _NEITHER: [], _UNKNOWN: []}
        for row in rows:
            told[_change(row.events, row.differences[name], row.errors[name])].append(with_unit(row.metric))
        said = "; ".join(f"{word} {', '.join(metrics)}" for word, metrics in told.items() if metrics)
        return f"{name} against {self.variants[0]}: {said}"


def compare(  # noqa: PLR0913 - the function is the command: one argument an option
    model: str | Path,
    data: Sequence[str],
    *,
    variants: Sequence[str] = VARIANTS,
    inpainter: str | Path | None = None,
    dead: str | None = None,
    run_number: int | None = None,
    weights: str = "auto",
    batch_size: int | None = None,
    device: str | None = None,
    max_events: int | None = None,
    names: Sequence[str] = (),
    hops: int | None = None,
    observer: Observer | None = None,
) -> CompareResult:
    """Run a regressor on variants of the same events and return its metrics with errors of the paired differences.

    Args:
        model: Checkpoint of a regressor.
        data: ROOT files with truth, globs, directories, ``@list`` files or urls.
        variants: Of ``raw`` (dead sensors dead), ``neighbour`` (solid-angle weighted) and ``inpainted``.
        inpainter: Checkpoint of the inpainter; needed for ``inpainted`` only.
        dead: Origin of the dead channels, which are then dead in every variant before they are filled; None takes the
            sensors without a reading, event by event.
        run_number: Run that a database is asked for.
        weights: Weights of the regressor: ``auto`` (EMA where present), ``ema``, ``model`` or ``best``.
        batch_size: Events in one forward pass; None takes what is fastest on the device.
        device: Device; None takes the configuration's.
        max_events: Stop after this many events.
        names: As of `predict`: names in the files, and what a checkpoint of the older system does not tell.
        hops: Reach of the neighbours of the variant ``neighbour``; None is 1.
        observer: Receives progress.

    Raises:
        XecError: Anything the user can act on.
    """
    watching = observer or NullObserver()
    check_options(weights, batch_size, max_events)
    check_hops(hops)
    _check_names(variants, inpainter, hops)
    _check_options_of(variants, inpainter, hops)
    reach = (hops or DEFAULT_HOPS) if "neighbour" in variants else None
    loaded = _load_regressor(model, weights, device, names)
    filling = None if inpainter is None else load_inpainter(inpainter, "auto", device, "--inpainter")
    fill = None if filling is None else CountedFill(filler(filling))
    renamed = [name for name in names if name not in loaded.told]
    source = open_events(loaded, data, max_events, renamed)
    lacking = missing_truth(loaded, source, renamed)
    if not source.branches.truth:
        raise _no_truth(loaded, source, lacking[0].fix)
    sensors = open_dead_sensors(dead, run_number, source)
    run = ComparisonRun(
        loaded.network,
        loaded.task,
        loaded.execution,
        sensors,
        {name: _variant(name, fill, reach or DEFAULT_HOPS) for name in variants},
        lambda: watching.advanced(1, {}),
    )
    with (
        served_in_order(loaded, source, events_at_once(loaded, batch_size)) as loader,
        memory_faults(loaded.config, "predicting"),
    ):
        watching.phase("compare", loader.plan.num_steps)
        found = compare_variants(trimmed(loader.epoch(0)), run)
    if not found.metrics:  # the branches are there and say 1e10 everywhere
        raise _no_truth(loaded, source)
    notes = () if filling is None else _branch_notes(loaded.config, filling.config)
    again = " ".join(map(in_shell, (str(inpainter), *data)))
    bad = (
        () if fill is None else negative_fills(fill.filled, fill.negative, fill.deep, f"--inpainter {inpainter}", again)
    )
    per_event = found.num_dead / found.num_events
    taken = (*loaded.notes, *assumed_losses(loaded, str(model)), *(() if filling is None else filling.notes))
    findings = (*taken, *source.findings, *lacking, *notes, *bad, *_nothing_dead(per_event))
    return CompareResult(found.num_events, tuple(variants), sensors.origin, per_event, reach, found.metrics, findings)


def _change(events: int, difference: float, error: float) -> str:
    """Return what a difference says of a metric whose smaller values are better."""
    if events < FEWEST_EVENTS or not math.isfinite(difference) or not math.isfinite(error):
        return _UNKNOWN
    if abs(difference) <= SIGMAS * error:
        return _NEITHER
    return _BETTER if difference < 0 else _WORSE


def _no_truth(loaded: LoadedModel, source: EventSource, naming: str = "") -> DataUnusable:
    return DataUnusable(
        f"the files hold no truth of {', '.join(loaded.task.terms)}, so there is nothing to compare",
        where=source.files[0].path,
        fix=naming or "give simulated events with truth; --repair fills dead sensors of data without",
        code="XT-DATA-NO-TRUTH",
    )


def _meant(variants: Sequence[str], inpainter: str | Path | None, hops: int | None) -> str:
    """Return the option with the variants that were asked for by nearly their names, or by another option."""
    near = [name for given in variants for name in nearest(given, VARIANTS, 1)]
    asked = ["neighbour"] * (hops is not None) + ["inpainted"] * (inpainter is not None)
    named = [*(name for name in near if name != "inpainted" or inpainter is not None), *asked]
    meant = dict.fromkeys(named if len(set(named)) > 1 else [*_WITHOUT_INPAINTER, *asked])
    return f"--compare {','.join(meant)}{_OR_INPAINTED if 'inpainted' in {*near} - {*meant} else ''}"


def _check_names(variants: Sequence[str], inpainter: str | Path | None, hops: int | None) -> None:
    for name in variants:
        if name not in VARIANTS:
            hint = did_you_mean(name, VARIANTS)
            problem = f"unknown variant '{name}'" + (f", {hint}" if hint else "")
            raise UsageError(problem, where="--compare", fix=_meant(variants, inpainter, hops))
    if len(set(variants)) != len(variants) or len(variants) < 2:
        raise UsageError(
            f"{', '.join(variants) or 'nothing'}: a comparison needs two different variants or three",
            where="--compare",
            fix=_meant(variants, inpainter, hops),
        )


def _check_options_of(variants: Sequence[str], inpainter: str | Path | None, hops: int | None) -> None:
    if hops is not None and "neighbour" not in variants:
        raise UsageError(
            f"{hops} hops have no effect: 'neighbour' is not compared",
            where="--hops",
            fix=_meant(variants, inpainter, hops),
        )
    if "inpainted" in variants and inpainter is None:
        raise UsageError(
            "the variant 'inpainted' needs an inpainter",
            where="--compare",
            fix=_meant(variants, inpainter, hops),
        )
    if "inpainted" not in variants and inpainter is not None:
        raise UsageError(
            f"the inpainter {inpainter} has no effect: 'inpainted' is not compared",
            where="--inpainter",
            fix=_meant(variants, inpainter, hops),
        )


def _load_regressor(path: str | Path, weights: str, device: str | None, names: Sequence[str]) -> LoadedModel:
    checkpoint = load_checkpoint(path, weights)
    if checkpoint.base_kind != "regressor":
        raise UsageError(
            f"{path} is of kind {checkpoint.kind}; --compare runs a regressor",
            where="--compare",
            fix=f"xectool predict REGRESSOR DATA --compare raw,neighbour,inpainted --inpainter {in_shell(path)}"
            if checkpoint.base_kind == "inpainter"
            else "give the checkpoint of a run of kind regressor",
        )
    return ready_model(checkpoint, path, weights, device, told_of(checkpoint, names))


def _variant(name: str, fill: Fill | None, hops: int) -> Variant:
    if name == "inpainted":
        assert fill is not None  # checked with the options
        return with_network(fill)
    return with_dead if name == "raw" else with_neighbours(hops)


def _branch_notes(regressor: RunConfig, inpainter: RunConfig) -> tuple[Finding, ...]:
    """Say where the inpainter was trained on other branches than those it is given here."""
    pairs = [
        (key, getattr(regressor.data, key), getattr(inpainter.data, key)) for key in ("npho_branch", "time_branch")
    ]
    return tuple(
        Finding(
            "XT-COMPARE-BRANCH",
            Severity.WARNING,
            f"the inpainter was trained on branch '{theirs}', and is given the regressor's '{ours}'",
            where=f"data.{key} of both checkpoints",
            fix="compare models of the same branches, unless both branches hold the same quantity",
        )
        for key, ours, theirs in pairs
        if ours != theirs
    )


def _nothing_dead(per_event: float) -> tuple[Finding, ...]:
    if per_event:
        return ()
    return (
        Finding(
            "XT-REPAIR-NOTHING",
            Severity.WARNING,
            "no event has a dead sensor: all variants are the same",
            where="--dead",
            fix="--dead dead_channels.txt names the sensors that are dead",
        ),
    )
