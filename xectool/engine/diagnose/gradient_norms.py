"""``diagnose gradients``: gradient norms by block, of a run's record or of some steps taken now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from xectool.config.load import load_config
from xectool.diagnosis.evidence import gather
from xectool.diagnosis.gradient_report import GradientReport, gradient_report
from xectool.errors import UsageError

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
    report, count = _recorded(place) if place.is_dir() else _taken(place, overrides, steps, device)
    following = ""
    if report.bad:
        following = f"xectool diagnose {'run' if place.is_dir() else 'nan-batch'} {place}"
    elif report.grad_clip and report.total.clipped > 0.5:
        following = f"--set training.grad_clip={report.suggested_grad_clip:g}"
    return GradientHealth(str(place), count, report, following)


def _recorded(run_dir: Path) -> tuple[GradientReport, int]:
    evidence = gather(run_dir)
    started = evidence.last("run_start")
    expected = tuple(str(name) for name in (started.data.get("blocks") if started else None) or ())
    steps = evidence.steps
    clip = float(evidence.setting("training.grad_clip", 1.0) or 0.0)
    named = expected if steps.blocks else ()
    return gradient_report(steps["grad_norm"], steps["clip_coef"], steps.blocks, named, clip), steps.seen


def _taken(path: Path, overrides: Sequence[str], count: int, device: str | None) -> tuple[GradientReport, int]:
    # Imported here: the recorded form must not wait for torch.
    from xectool.training.build import build_parts, open_data
    from xectool.training.device import apply_determinism, plan_execution
    from xectool.training.distributed import Ranks

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
            results.append(parts.stepper.run(window, config.training.lr * min(1.0, (number + 1) / count)))
    finally:
        parts.train_loader.close()
        parts.val_loader.close()
    names = list(dict.fromkeys(name for result in results for name in result.block_norms))
    blocks = {name: np.array([result.block_norms.get(name, np.nan) for result in results]) for name in names}
    norms = np.array([result.grad_norm for result in results])
    clipped = np.array([result.clip_coef for result in results])
    return gradient_report(norms, clipped, blocks, parts.stepper.blocks.names, config.training.grad_clip), len(results)
