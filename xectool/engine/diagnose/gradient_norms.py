"""``diagnose gradients``: gradient norms by block, of a run's record or of some steps taken now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from xectool.config.load import load_config
from xectool.config.rates import gentler_options, peak_lr
from xectool.config.root import RegressorConfig, RunConfig
from xectool.diagnosis.cases.nan import settled_overflows
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.gradient_bands import FREQUENT
from xectool.diagnosis.reports.gradients import GradientReport, gradient_report
from xectool.errors import UsageError, in_shell

if TYPE_CHECKING:
    from xectool.training.stepping.step import StepResult

LIVE_STEPS = 20  # enough for a 95 % quantile that is not the largest value


@dataclass(frozen=True)
class GradientHealth:
    """Gradient norms before clipping.

    Attributes:
        source: The run, or the configuration that steps were taken with.
        steps: Steps looked at.
        report: The numbers.
        next: Line to paste; empty where nothing is to be done.
    """

    source: str
    steps: int
    report: GradientReport
    next: str

    @property
    def bad(self) -> bool:
        """Whether a block is dead, explodes or is not finite."""
        return self.report.bad

    def as_dict(self) -> dict[str, object]:
        """Return the result keys of the command-line contract."""
        return {"source": self.source, "steps": self.steps, **vars(self.report), "next": self.next}


def gradients(
    source: Path | str,
    *,
    overrides: Sequence[str] = (),
    steps: int = LIVE_STEPS,
    device: str | None = None,
) -> GradientHealth:
    """Return gradient norms by parameter block: of a run directory from its record, else of steps taken now.

    Args:
        source: Run directory or configuration file. Steps of a configuration are taken in memory; nothing is written.
        overrides: ``key=value`` settings that go before the file's.
        steps: Steps to take with a configuration.
        device: Device that goes before the configuration's.

    Raises:
        UsageError: The directory holds no run record, or ``steps`` is less than 1.
        XecError: The configuration or its data cannot be used.
    """
    place = Path(source).expanduser()
    if place.is_dir():
        report, count = _recorded(place)
        look = f"xectool diagnose {'run' if report.bad else 'loss'} {in_shell(place)}"
        return GradientHealth(str(place), count, report, look * (report.bad or report.total.clipped > FREQUENT))
    report, count, config = _taken(place, overrides, steps, device)
    return GradientHealth(str(place), count, report, _cure(report, config, place, overrides) if report.bad else "")


def _cure(report: GradientReport, config: RunConfig, path: Path, overrides: Sequence[str]) -> str:
    """Return the line against what steps of a configuration have shown."""
    given = " ".join([in_shell(path), *(f"--set {in_shell(text)}" for text in overrides)])
    states = {block.state for block in report.blocks}
    if report.nonfinite or "nonfinite" in states:
        return f"xectool diagnose nan-batch {given}"
    dead = [block.block for block in report.blocks if block.state == "dead"]
    tasks = config.tasks.enabled() if isinstance(config, RegressorConfig) else {}
    without = [f"--set tasks.{name}.weight=1.0" for name, task in tasks.items() if task.weight == 0]
    if dead and without:
        return f"xectool train {given} {' '.join(without)}"
    if dead:
        heads_only = all("heads." in name for name in dead)
        return f"xectool explain {'XT-UNTRAINED-HEAD' if heads_only else 'XT-ZERO-GRADIENT'}"
    return f"xectool train {given} {gentler_options(config)}"


def _recorded(run_dir: Path) -> tuple[GradientReport, int]:
    evidence = gather(run_dir)
    started = evidence.last("run_start")
    expected = tuple(str(name) for name in (started.data.get("blocks") if started else None) or ())
    steps, rows = evidence.steps, ~settled_overflows(evidence)
    clip = float(evidence.setting("training.grad_clip", 1.0) or 0.0)
    named = expected if steps.blocks else ()
    blocks = {name: norms[rows] for name, norms in steps.blocks.items()}
    return gradient_report(steps["grad_norm"][rows], steps["clip_coef"][rows], blocks, named, clip), steps.seen


def _taken(
    path: Path, overrides: Sequence[str], count: int, device: str | None
) -> tuple[GradientReport, int, RunConfig]:
    # Imported here: the recorded form must not wait for torch.
    from xectool.training.process.device import apply_determinism, plan_execution
    from xectool.training.ranks.base import Ranks
    from xectool.training.stepping.build import build_parts, open_data

    if count < 1:
        raise UsageError("at least one step has to be taken", where="--steps", fix=f"--steps {LIVE_STEPS}")
    config = load_config(path, ["training.compile=none", *overrides]).config
    apply_determinism(config.training.deterministic)
    execution = plan_execution(config.training, device)
    parts = build_parts(open_data(config), execution, Ranks())
    size = config.training.grad_accum_steps
    results = []
    try:
        batches = (batch for epoch in range(1, count * size + 1) for batch in parts.train_loader.epoch(epoch))
        for number in range(count):
            window = list(islice(batches, size))
            # The rate at its peak shows what the clip will have to deal with; a warm-up would hide it.
            results.append(parts.stepper.run(window, peak_lr(config.training) * min(1.0, (number + 1) / count)))
    finally:
        parts.train_loader.close()
        parts.val_loader.close()
    return _report_on(results, parts.stepper.blocks.names, config.training.grad_clip), len(results), config


def _report_on(results: Sequence[StepResult], names: tuple[str, ...], clip: float) -> GradientReport:
    seen = dict.fromkeys(name for result in results for name in result.block_norms)
    blocks = {name: np.array([result.block_norms.get(name, np.nan) for result in results]) for name in seen}
    norms = np.array([result.grad_norm for result in results])
    clipped = np.array([result.clip_coef for result in results])
    return gradient_report(norms, clipped, blocks, names, clip)
